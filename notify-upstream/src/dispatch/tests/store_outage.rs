//! Tests of acceptance and readiness while the store is unresponsive.

use postern_core::testing::CapturedLog;
use postern_store::database::testing;
use postern_store::database::{Database, StatementHealth};
use sqlx::Executor;

use super::*;
use crate::housekeeping::StoreMaintenance;
use crate::intake::group_commit::COMMIT_TIMEOUT;
use crate::principal::Principal;

/// Upper bound for something that ends by itself, on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn submission_without_a_commit_is_rejected_in_time() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let principal = Principal {
            creator: "service:test".into(),
            actor: None,
        };
        (rig.submissions.timeout, rig.committer.timeout) = (COMMIT_TIMEOUT, COMMIT_TIMEOUT);
        // The committer does not run: it waits for the store.
        let submission = rig.submissions.submit(
            &principal,
            draft(Priority::Normal),
            None,
            BudgetPermit::default(),
        );
        let answer = tokio::time::timeout(STEP_TIMEOUT, submission).await;
        let problem = answer.expect("it ends by itself").expect_err("no commit");
        let response = problem.render("x");
        assert_eq!(
            (response.status.as_u16(), &response.headers["retry-after"]),
            (503, &"1".parse().expect("a value"))
        );
        rig.committer.step().await;
        let depths = store.queue_depths(i64::MAX).await.expect("no error");
        assert_eq!(
            depths.iter().map(|depth| depth.rows).sum::<i64>(),
            0,
            "a rejected submission is not written later"
        );
    }
}

#[tokio::test]
async fn replica_is_not_ready_while_writes_fail() {
    let (log, _guard) = CapturedLog::start();
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let rig = TestReplica::new(&store, &clock(), 8).await;
    let metrics = NotifyMetrics::new();
    let health = metrics.health().clone();
    let maintenance = StoreMaintenance {
        store: store.clone(),
        clock: clock(),
        workers: Arc::clone(&rig.workers),
        suppression: Arc::clone(&rig.suppression),
        dispatch_state: Arc::clone(&rig.dispatch_state),
        metrics: metrics.clone(),
        database: metrics.dependencies().required("database", "test"),
        opened: test.database.clone(),
        statements: StatementHealth::new(
            &test.database,
            metrics.dependencies(),
            &metrics.registry(),
        ),
        retention: Duration::from_secs(90 * 86_400),
    };
    maintenance.check_health().await;
    assert!(health.is_ready(), "{health}");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let mut operator = pool.begin().await.expect("a transaction begins");
    // Reads continue, and writes wait.
    operator
        .execute("LOCK TABLE postern_notify_migrations IN EXCLUSIVE MODE")
        .await
        .expect("locked");
    maintenance.check_health().await;
    assert!(
        health
            .to_string()
            .starts_with("not ready; database: the database accepts no writes"),
        "{health}"
    );
    let unavailable = ["WARN", "dependency unavailable", "database"];
    assert_eq!(log.with(&unavailable), 1, "{}", log.text());
    store.queue_depths(1).await.expect("reads succeed");
    operator.rollback().await.expect("rolled back");
    maintenance.check_health().await;
    assert!(health.is_ready(), "{health}");
    let available = ["INFO", "dependency available again", "database"];
    assert_eq!(log.with(&available), 1, "{}", log.text());
}
