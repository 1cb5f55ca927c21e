//! Tests of providers that operators have paused, over both stores.

use super::*;
use crate::testing::pause_of;

async fn sync(replicas: &[&TestReplica]) {
    for replica in replicas {
        replica.pauses.sync().await.expect("the pauses are read");
    }
}

#[tokio::test]
async fn paused_notifications_wait_and_are_sent_in_order() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut first = TestReplica::new(&store, &clock, 1).await;
        let mut second = TestReplica::new(&store, &clock, 1).await;
        let pause = pause_of("script");
        assert!(ok(store.pause_provider(&pause)).await);
        assert!(!ok(store.pause_provider(&pause)).await);
        sync(&[&first, &second]).await;
        let mut expected = vec![Vec::new(); 4];
        for round in 0..12 {
            let priority = Priority::ALL[3 - round % 4];
            let id = first.accept(priority).await;
            expected[priority.index()].push(id);
        }
        let expected = expected.concat();
        let mut expiring = draft(Priority::Normal);
        expiring.request.expires_at = Some(after(30));
        let expiring = ok(first.submit(expiring, None)).await.id;
        // Longer than every window of retries.
        for _ in 0..4 {
            clock.advance(Duration::from_secs(24 * 3600));
            for replica in [&mut first, &mut second] {
                ok(replica.workers.step()).await;
                replica.step().await;
            }
        }
        let waits = json!({"status": "QUEUED", "attempts": 0, "waitReason": "PROVIDER_PAUSED"});
        let view = second.assert_view(expected[0], waits).await;
        assert!(view["nextAttemptAt"].is_null(), "{view}");
        assert_eq!(second.script.calls(), []);
        // A replica that starts during the pause does not call the provider either.
        let mut restarted = TestReplica::new(&store, &clock, 1).await;
        sync(&[&restarted]).await;
        restarted.step().await;
        assert_eq!(restarted.script.calls(), []);
        assert!(ok(store.resume_provider("script")).await);
        assert!(!ok(store.resume_provider("script")).await);
        sync(&[&restarted]).await;
        // LOW follows when nothing more urgent has waited for some scans.
        for _ in 0..40 {
            restarted.advance(1).await;
            restarted.step().await;
        }
        assert_eq!(restarted.script.calls(), expected);
        let sent = json!({"status": "SENT", "attempts": 1});
        restarted.assert_view(expected[0], sent).await;
        assert_eq!(restarted.status(expiring).await, "EXPIRED");
    }
}
