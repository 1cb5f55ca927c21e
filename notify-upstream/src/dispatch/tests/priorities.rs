//! Tests of claimed rows that wait for a call to the provider.

use tokio::sync::Notify;

use super::*;

/// Creates a replica whose provider makes one call at a time and is blocked by a LOW message, with
/// these rows waiting behind it.
async fn replica_behind_one_call(
    store: &Store,
    others: &[Priority],
) -> (TestReplica, Arc<Notify>, Vec<NotificationId>) {
    let mut rig = TestReplica::calling(store, &clock(), 16, 1).await;
    let gate = rig.script.hold();
    let mut ids = Vec::new();
    for priority in [&[Priority::Low], others].concat() {
        let mut draft = draft(priority);
        draft.request.expires_at = Some(after(60));
        ids.push(ok(rig.submit(draft, None)).await.id);
        rig.poll().await;
        rig.claim().await;
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
        use Priority::{Critical, High, Low, Normal};
        let others = [Low, Normal, Low, Critical, High];
        let (mut rig, gate, ids) = replica_behind_one_call(&store, &others).await;
        end_calls(&mut rig, gate).await;
        let expected = [0, 4, 5, 2, 1, 3].map(|n: usize| ids[n]);
        assert_eq!(rig.script.calls(), expected);
    }
}

#[tokio::test]
async fn notification_expired_while_waiting_is_not_sent() {
    for (store, _database) in stores().await {
        let (mut rig, gate, ids) = replica_behind_one_call(&store, &[Priority::Low]).await;
        for _ in 0..21 {
            rig.advance(3).await;
        }
        end_calls(&mut rig, gate).await;
        let view = rig.assert_view(ids[1], json!({"status": "EXPIRED"})).await;
        assert_eq!(rig.script.calls().len(), 1);
        assert_eq!(event_types(&view), ["QUEUED", "EXPIRED"]);
    }
}

#[tokio::test]
async fn stop_releases_rows_waiting_for_a_call() {
    for (store, _database) in stores().await {
        let (mut rig, gate, ids) = replica_behind_one_call(&store, &[Priority::Low]).await;
        rig.stop.cancel();
        end_calls(&mut rig, gate).await;
        assert_eq!(rig.status(ids[0]).await, "SENT");
        let waits = json!({"status": "QUEUED", "attempts": 0});
        rig.assert_view(ids[1], waits).await;
        assert_eq!(rig.script.calls().len(), 1);
    }
}

#[tokio::test]
async fn waiting_row_is_not_sent_under_an_uncertain_lease() {
    for (store, _database) in stores().await {
        // Longer than a worker starts work without renewal; and long enough for the row to be taken
        // over, with the worker renewed again.
        for (silent_s, is_back) in [(8, false), (11, true)] {
            let (mut rig, gate, ids) = replica_behind_one_call(&store, &[Priority::Low]).await;
            rig.clock.advance(Duration::from_secs(silent_s));
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
        let (mut rig, gate, ids) = replica_behind_one_call(&store, &[Priority::Low; 12]).await;
        rig.script.refuse(&["451"; 13]);
        end_calls(&mut rig, gate).await;
        assert_eq!(rig.script.calls(), ids[..10]);
        for id in &ids[10..] {
            let waits = json!({"status": "QUEUED", "attempts": 0});
            rig.assert_view(*id, waits).await;
        }
    }
}

#[tokio::test]
async fn released_row_precedes_later_rows() {
    for (mut rig, _database) in replicas(2).await {
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(rig.accept(Priority::Normal).await);
        }
        rig.poll().await;
        assert_eq!(rig.claim().await, 2);
        // The lease was renewed too long ago to start work.
        rig.clock.advance(Duration::from_secs(8));
        rig.settle().await;
        assert_eq!(rig.script.calls(), []);
        rig.workers.step().await.expect("lease renewal succeeds");
        ids.push(rig.accept(Priority::Normal).await);
        for _ in 0..2 {
            rig.claim().await;
            rig.settle().await;
        }
        assert_eq!(rig.script.calls(), ids);
        assert_eq!(rig.view(ids[0]).await["attempts"], 1);
    }
}
