//! Tests of claimed rows that wait for a call to the provider.

use postern_core::testing::assert_members;
use tokio::sync::Notify;

use super::*;
use crate::intake::request::ValidatedRequest;

/// Creates a replica whose provider makes one call at a time and is blocked by a LOW message, with
/// these rows waiting behind it.
async fn replica_behind_one_call(
    store: &Store,
    clock: &Clock,
    others: Vec<ValidatedRequest>,
) -> (TestReplica, Arc<Notify>, Vec<NotificationId>) {
    let mut rig = TestReplica::calling(store, clock, 16, 1).await;
    let gate = rig.script.hold();
    let mut ids = Vec::new();
    for draft in [vec![draft(Priority::Low)], others].concat() {
        ids.push(rig.submit(draft, None).await.expect("no error").id);
        rig.dispatcher.poll().await.expect("no error");
        rig.dispatcher.claim_available().await.expect("no error");
        // The first one is called, after an answer of the store.
        while rig.script.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        // Let all tasks proceed until they wait.
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(rig.script.calls(), ids[..1]);
    (rig, gate, ids)
}

/// Ends every call once it has started, and writes all results.
async fn end_calls(rig: &mut TestReplica, gate: Arc<Notify>) {
    let ends = tokio::spawn(async move {
        loop {
            gate.notify_one();
            tokio::task::yield_now().await;
        }
    });
    rig.settle().await;
    ends.abort();
}

#[tokio::test]
async fn highest_priority_gets_the_next_call() {
    for (store, _database) in stores().await {
        let others = [
            Priority::Low,
            Priority::Normal,
            Priority::Low,
            Priority::Critical,
            Priority::High,
        ];
        let (mut rig, gate, ids) =
            replica_behind_one_call(&store, &clock(), others.map(draft).to_vec()).await;
        end_calls(&mut rig, gate).await;
        let order: Vec<_> = rig
            .script
            .calls()
            .iter()
            .map(|id| ids.iter().position(|known| known == id))
            .collect();
        assert_eq!(order, [0, 4, 5, 2, 1, 3].map(Some));
    }
}

#[tokio::test]
async fn notification_expired_while_waiting_is_not_sent() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut short = draft(Priority::Low);
        short.request.expires_at = Some(after(2));
        let (mut rig, gate, ids) = replica_behind_one_call(&store, &clock, vec![short]).await;
        clock.advance(Duration::from_secs(3));
        end_calls(&mut rig, gate).await;
        let view = rig.view(ids[1]).await;
        assert_eq!(
            (&view["status"], rig.script.calls().len()),
            (&"EXPIRED".into(), 1)
        );
        assert_eq!(event_types(&view), ["QUEUED", "EXPIRED"]);
    }
}

#[tokio::test]
async fn stop_releases_rows_waiting_for_a_call() {
    for (store, _database) in stores().await {
        let (mut rig, gate, ids) =
            replica_behind_one_call(&store, &clock(), vec![draft(Priority::Low)]).await;
        rig.stop.cancel();
        end_calls(&mut rig, gate).await;
        let (first, second) = (rig.view(ids[0]).await, rig.view(ids[1]).await);
        assert_eq!(
            (&first["status"], &second["status"]),
            (&"SENT".into(), &"QUEUED".into())
        );
        assert_eq!(
            (&second["attempts"], rig.script.calls().len()),
            (&0.into(), 1)
        );
    }
}

#[tokio::test]
async fn waiting_row_is_not_sent_under_an_uncertain_lease() {
    for (store, _database) in stores().await {
        // Longer than a worker starts work without renewal; and long enough for the row to be taken
        // over, with the worker renewed again.
        for (silent_s, is_back) in [(8, false), (11, true)] {
            let clock = clock();
            let (mut rig, gate, ids) =
                replica_behind_one_call(&store, &clock, vec![draft(Priority::Low)]).await;
            clock.advance(Duration::from_secs(silent_s));
            if is_back {
                rig.workers.step().await.expect("lease renewal succeeds");
                assert!(rig.workers.is_alive());
            }
            end_calls(&mut rig, gate).await;
            assert_eq!(rig.script.calls(), ids[..1], "no renewal for {silent_s} s");
        }
    }
}

#[tokio::test]
async fn waiting_row_is_released_when_the_breaker_opens() {
    for (store, _database) in stores().await {
        let (mut rig, gate, ids) =
            replica_behind_one_call(&store, &clock(), vec![draft(Priority::Low); 12]).await;
        rig.script.refuse(&["451"; 13]);
        end_calls(&mut rig, gate).await;
        assert_eq!(rig.script.calls(), ids[..10]);
        for id in &ids[10..] {
            let view = rig.view(*id).await;
            assert_members(&view, &json!({"status": "QUEUED", "attempts": 0}));
        }
    }
}

#[tokio::test]
async fn released_row_precedes_later_rows() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 2).await;
        let mut ids = [
            rig.accept(Priority::Normal).await,
            rig.accept(Priority::Normal).await,
        ]
        .to_vec();
        rig.dispatcher.poll().await.expect("no error");
        assert_eq!(rig.dispatcher.claim_available().await.expect("no error"), 2);
        // The lease was renewed too long ago to start work.
        rig.clock.advance(Duration::from_secs(8));
        rig.settle().await;
        assert_eq!(rig.script.calls(), []);
        rig.workers.step().await.expect("lease renewal succeeds");
        ids.push(rig.accept(Priority::Normal).await);
        for _ in 0..2 {
            rig.dispatcher.claim_available().await.expect("no error");
            rig.settle().await;
        }
        assert_eq!(rig.script.calls(), ids);
        assert_eq!(rig.view(ids[0]).await["attempts"], 1);
    }
}
