//! Tests of providers that operators have paused, over both stores.

use super::*;
use crate::store::ProviderPause;
use postern_core::testing::assert_members;

fn pause_of(provider: &str) -> ProviderPause {
    ProviderPause {
        provider: provider.to_owned(),
        operator: "ada".to_owned(),
        at: START,
        reason: Some("wrong sender".to_owned()),
    }
}

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
        assert!(store.pause_provider(&pause).await.expect("stored"));
        assert!(!store.pause_provider(&pause).await.expect("unchanged"));
        sync(&[&first, &second]).await;
        let mut expected = vec![Vec::new(); 4];
        for round in 0..12 {
            let priority = Priority::ALL[3 - round % 4];
            let id = first.accept(priority).await;
            expected[priority.index()].push(id);
        }
        let expected = expected.concat();
        // Longer than every window of retries.
        for _ in 0..4 {
            clock.advance(Duration::from_secs(24 * 3600));
            for replica in [&mut first, &mut second] {
                replica
                    .workers
                    .step()
                    .await
                    .expect("lease renewal succeeds");
                replica.step().await;
            }
        }
        let view = second.view(expected[0]).await;
        assert_members(&view, &json!({"status": "QUEUED", "attempts": 0}));
        assert_eq!(view["waitReason"], "PROVIDER_PAUSED", "{view}");
        assert!(view["nextAttemptAt"].is_null(), "{view}");
        assert_eq!(second.script.calls(), []);
        // A replica that starts during the pause does not call the provider either.
        let mut restarted = TestReplica::new(&store, &clock, 1).await;
        sync(&[&restarted]).await;
        restarted.step().await;
        assert_eq!(restarted.script.calls(), []);
        assert!(store.resume_provider("script").await.expect("removed"));
        assert!(!store.resume_provider("script").await.expect("unchanged"));
        sync(&[&restarted]).await;
        // LOW follows when nothing more urgent has waited for some scans.
        for _ in 0..40 {
            clock.advance(Duration::from_secs(1));
            restarted
                .workers
                .step()
                .await
                .expect("lease renewal succeeds");
            restarted.step().await;
        }
        assert_eq!(restarted.script.calls(), expected);
        let view = restarted.view(expected[0]).await;
        assert_members(&view, &json!({"status": "SENT", "attempts": 1}));
    }
}

#[tokio::test]
async fn expired_notifications_are_not_sent_after_a_pause() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        store
            .pause_provider(&pause_of("script"))
            .await
            .expect("stored");
        sync(&[&rig]).await;
        let mut expiring = draft(Priority::Normal);
        expiring.request.expires_at = Some(after(30));
        let expiring = rig.submit(expiring, None).await.expect("accepted").id;
        let lasting = rig.accept(Priority::Normal).await;
        rig.step().await;
        clock.advance(Duration::from_secs(60));
        rig.workers.step().await.expect("lease renewal succeeds");
        rig.step().await;
        store.resume_provider("script").await.expect("removed");
        sync(&[&rig]).await;
        rig.step().await;
        assert_eq!(rig.view(expiring).await["status"], "EXPIRED");
        assert_eq!(rig.view(lasting).await["status"], "SENT");
        assert_eq!(rig.script.calls(), [lasting]);
    }
}
