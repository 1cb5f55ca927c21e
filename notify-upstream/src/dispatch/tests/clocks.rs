//! Tests with a clock of the database that is wrong: nothing is lost, and nothing is sent twice.

use std::time::Instant;

use super::*;

/// Sets the clock of the database.
async fn set_ahead(rig: &TestReplica, hours: u64) {
    let ahead = Duration::from_secs(hours * 3600);
    let correct = || {
        let now = Clock::system().now().plus(ahead);
        rig.clock.correct(now, Instant::now());
    };
    correct();
    rig.workers.step().await.expect("lease renewal succeeds");
    // The renewal has read the clock of the database, which is right.
    correct();
}

#[tokio::test]
async fn key_is_kept_while_the_clock_of_the_database_is_ahead() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &Clock::system().shared(), 8).await;
        let first = rig.submit(draft(Priority::Normal), Some("a")).await;
        let other = rig.submit(draft(Priority::Normal), Some("b")).await;
        for hours in [25, 0] {
            set_ahead(&rig, hours).await;
            let repeated = rig.submit(draft(Priority::Normal), Some("a")).await;
            assert_eq!(repeated.as_ref().ok(), first.as_ref().ok(), "{hours} h");
        }
        let repeated = rig.submit(draft(Priority::Normal), Some("b")).await;
        assert_eq!(repeated.ok(), other.ok());
        rig.step().await;
        assert_eq!(rig.script.calls().len(), 2);
    }
}

#[tokio::test]
async fn retries_and_expiry_wait_while_the_clock_of_the_database_is_ahead() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &Clock::system().shared(), 8).await;
        let mut expiring = draft(Priority::Normal);
        expiring.request.expires_at = Some(rig.clock.now().plus(Duration::from_secs(7200)));
        let expiring = ok(rig.submit(expiring, None)).await.id;
        let ids = [rig.accept(Priority::Normal).await, expiring];
        rig.script.refuse(&["450"; 2]);
        set_ahead(&rig, 73).await;
        rig.step().await;
        assert_eq!(rig.script.calls().len(), 2);
        for id in ids {
            let view = rig.view(id).await;
            assert_eq!(view["status"], "QUEUED", "{view}");
            assert!(view["nextAttemptAt"].is_string(), "{view}");
        }
    }
}
