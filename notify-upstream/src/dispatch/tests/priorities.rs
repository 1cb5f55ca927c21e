//! What is in hand and waits for its turn at the provider.

use tokio::sync::Notify;

use super::*;
use crate::intake::request::ValidatedRequest;

/// A provider that takes one call at a time, with a LOW that it has and does not end, and these
/// behind it.
async fn behind_one(
    store: &Store,
    clock: &Clock,
    others: Vec<ValidatedRequest>,
) -> (TestReplica, Arc<Notify>, Vec<NotificationId>) {
    let mut rig = TestReplica::calling(store, clock, 16, 1).await;
    let gate = rig.script.hold();
    let mut ids = Vec::new();
    for draft in [vec![draft(Priority::Low)], others].concat() {
        ids.push(rig.submit(draft, None).await.expect("accepted").id);
        rig.dispatcher.scan_lanes().await.expect("looks");
        rig.dispatcher.pass().await.expect("claims");
        // It has come as far as it can.
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(rig.script.calls(), ids[..1]);
    (rig, gate, ids)
}

/// Ends every call when it has begun, and writes what became of all.
async fn end(rig: &mut TestReplica, gate: Arc<Notify>) {
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
async fn the_most_urgent_in_hand_has_the_next_turn() {
    for (store, _database) in stores().await {
        let others = [
            Priority::Low,
            Priority::Normal,
            Priority::Low,
            Priority::Critical,
            Priority::High,
        ];
        let (mut rig, gate, ids) = behind_one(&store, &clock(), others.map(draft).to_vec()).await;
        end(&mut rig, gate).await;
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
async fn what_expires_before_its_turn_is_not_sent() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut short = draft(Priority::Low);
        short.request.expires_at = Some(after(2));
        let (mut rig, gate, ids) = behind_one(&store, &clock, vec![short]).await;
        clock.advance(Duration::from_secs(3));
        end(&mut rig, gate).await;
        let view = rig.view(ids[1]).await;
        assert_eq!(
            (&view["status"], rig.script.calls().len()),
            (&"EXPIRED".into(), 1)
        );
        assert_eq!(kinds(&view), ["QUEUED", "EXPIRED"]);
    }
}

#[tokio::test]
async fn a_stop_hands_back_what_has_had_no_turn() {
    for (store, _database) in stores().await {
        let (mut rig, gate, ids) = behind_one(&store, &clock(), vec![draft(Priority::Low)]).await;
        rig.stop.cancel();
        end(&mut rig, gate).await;
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
async fn a_stop_hands_back_what_asks_the_provider_for_an_earlier_attempt() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        rig.script.can_be_asked();
        rig.script.refuse(&["broken"]);
        let id = rig.accept(Priority::Critical).await;
        rig.step().await;
        clock.advance(Duration::from_secs(2));
        rig.mover.step().await.expect("moves");
        let _forever = rig.script.hold();
        rig.dispatcher.scan_lanes().await.expect("looks");
        assert_eq!(rig.dispatcher.pass().await.expect("claims"), 1);
        while rig.script.looks() == 0 {
            tokio::task::yield_now().await;
        }
        rig.stop.cancel();
        rig.settle().await;
        let view = rig.view(id).await;
        assert_eq!(
            (&view["status"], &view["attempts"]),
            (&"QUEUED".into(), &1.into())
        );
    }
}

#[tokio::test]
async fn what_waits_for_its_turn_is_not_sent_by_a_worker_that_may_be_dead() {
    for (store, _database) in stores().await {
        // Longer than a worker begins anything without a word; and so long that others have taken
        // over, and it is back.
        for (silent_s, is_back) in [(8, false), (11, true)] {
            let clock = clock();
            let (mut rig, gate, ids) = behind_one(&store, &clock, vec![draft(Priority::Low)]).await;
            clock.advance(Duration::from_secs(silent_s));
            if is_back {
                rig.workers.step().await.expect("renews");
                assert!(rig.workers.is_alive());
            }
            end(&mut rig, gate).await;
            assert_eq!(rig.script.calls(), ids[..1], "silent for {silent_s} s");
        }
    }
}

#[tokio::test]
async fn what_waits_for_its_turn_when_the_provider_is_given_up_goes_back() {
    for (store, _database) in stores().await {
        let (mut rig, gate, ids) =
            behind_one(&store, &clock(), vec![draft(Priority::Low); 12]).await;
        rig.script.refuse(&["451"; 13]);
        end(&mut rig, gate).await;
        assert_eq!(rig.script.calls(), ids[..10]);
        for id in &ids[10..] {
            let view = rig.view(*id).await;
            assert_eq!(
                (&view["status"], &view["attempts"]),
                (&"QUEUED".into(), &0.into())
            );
        }
    }
}

#[tokio::test]
async fn what_was_handed_back_goes_before_what_came_after_it() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 2).await;
        let mut ids = [
            rig.accept(Priority::Normal).await,
            rig.accept(Priority::Normal).await,
        ]
        .to_vec();
        rig.dispatcher.scan_lanes().await.expect("looks");
        assert_eq!(rig.dispatcher.pass().await.expect("claims"), 2);
        // Our last word is too old by now to begin anything.
        rig.clock.advance(Duration::from_secs(8));
        rig.settle().await;
        assert_eq!(rig.script.calls(), []);
        rig.workers.step().await.expect("renews");
        ids.push(rig.accept(Priority::Normal).await);
        // Nobody looks below what was claimed.
        for _ in 0..2 {
            rig.dispatcher.pass().await.expect("claims");
            rig.settle().await;
        }
        assert_eq!(rig.script.calls(), ids);
        assert_eq!(rig.view(ids[0]).await["attempts"], 1);
    }
}
