//! Tests of acceptance and readiness while the store is unresponsive.

use postern_store::database::{Database, StatementHealth};

use super::*;
use crate::housekeeping::StoreMaintenance;
use crate::intake::group_commit::COMMIT_TIMEOUT;
use crate::testing::service_of;

/// Upper bound for something that ends by itself, on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the maintenance of a replica.
pub(super) fn maintenance(
    rig: &TestReplica,
    metrics: &NotifyMetrics,
    database: &Database,
) -> StoreMaintenance {
    let (dependencies, registry) = (&metrics.dependencies, &metrics.registry);
    StoreMaintenance {
        store: rig.store.clone(),
        clock: rig.clock.clone(),
        workers: Arc::clone(&rig.workers),
        suppression: Arc::clone(&rig.suppression),
        metrics: metrics.clone(),
        database: dependencies.required("database", "test"),
        opened: database.clone(),
        statements: StatementHealth::new(database, dependencies, registry),
        retention: Duration::from_secs(90 * 86_400),
    }
}

#[tokio::test]
async fn submission_without_a_commit_is_rejected_in_time() {
    for (mut rig, _database) in replicas(8).await {
        let caller = service_of("test");
        (rig.submissions.timeout, rig.committer.timeout) = (COMMIT_TIMEOUT, COMMIT_TIMEOUT);
        // The committer does not run: it waits for the store.
        let submission = rig.submissions.submit(
            &caller,
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
        let depths = ok(rig.store.queue_depths(i64::MAX)).await;
        let rows: i64 = depths.iter().map(|(_, rows)| rows).sum();
        assert_eq!(rows, 0, "a rejected submission is not written later");
    }
}
