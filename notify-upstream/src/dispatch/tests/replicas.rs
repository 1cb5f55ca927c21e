//! Tests of several replicas, and of a replica whose schema is too old.

use postern_store::database::Migrations;

use super::store_outage::maintenance;
use super::*;
use crate::lease::LeaseClock;
use crate::testing::{execute, postgres_store};

#[tokio::test]
async fn poll_finds_rows_that_another_replica_left() {
    let (store, _test) = postgres_store(4).await;
    let clock = clock();
    let mut one = TestReplica::new(&store, &clock, 1).await;
    let mut other = TestReplica::new(&store, &clock, 8).await;
    other.step().await;
    let _held = one.script.hold();
    one.accept(Priority::High).await;
    let left = [
        one.accept(Priority::High).await,
        one.accept(Priority::Normal).await,
    ];
    assert_eq!(one.claim().await, 1, "one permit");
    assert_eq!(other.claim().await, 0, "all lanes are empty");
    other.poll().await;
    assert_eq!(other.claim().await, 2);
    other.settle().await;
    assert_eq!(other.script.calls(), left);
}

#[tokio::test]
async fn different_host_clocks_do_not_expire_leases() {
    let (store, test) = postgres_store(4).await;
    let (slow, fast) = (clock(), Clock::manual(after(3600)));
    let start =
        |clock: &Clock| WorkerRegistry::start(store.clone(), clock.clone(), LeaseClock::Store);
    let (behind, ahead) = (start(&slow).await, start(&fast).await);
    for workers in [&behind, &ahead, &behind] {
        workers.step().await.expect("lease renewal succeeds");
        assert!(workers.dead().is_empty());
        assert!(workers.is_alive());
    }
    let (dead, holder) = (behind.current().id, behind.current());
    let silent = format!("UPDATE notify_worker SET seen_at = seen_at - 11000 WHERE id = {dead}");
    execute(&test.database, &silent).await;
    ahead.step().await.expect("lease renewal succeeds");
    assert_eq!(*ahead.dead(), [dead], "by the clock of the store");
    behind.step().await.expect("lease renewal succeeds");
    assert!(!behind.may_start(&holder), "the lease is lost");
}

/// A migration that removes a column, of the release after the next.
const CONTRACTED: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(
        1000,
        "-- oldest-binary: 1000\nALTER TABLE notify_result ADD COLUMN cost BIGINT",
    )],
    sqlite: &[(
        1000,
        "-- oldest-binary: 1000\nALTER TABLE notify_result ADD COLUMN cost INTEGER",
    )],
};

#[tokio::test]
async fn nothing_starts_on_an_unsupported_schema() {
    for (mut rig, test) in replicas(8).await {
        let metrics = NotifyMetrics::new();
        let health = metrics.health.clone();
        let maintenance = maintenance(&rig, &metrics, &test.database);
        maintenance.check_health().await;
        let before = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.script.calls(), [before]);
        test.database
            .migrate(&CONTRACTED)
            .await
            .expect("the release after the next");
        maintenance.check_health().await;
        assert!(!health.is_ready());
        let after = rig.accept(Priority::Critical).await;
        rig.workers.step().await.expect("lease renewal succeeds");
        rig.step().await;
        assert_eq!(rig.script.calls(), [before], "nothing is claimed");
        assert_eq!(rig.status(after).await, "QUEUED");
    }
}
