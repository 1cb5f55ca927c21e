//! What is urgent goes first in the store as well.

use std::pin::pin;

use super::*;
use crate::dispatch::urgent_gate::URGENT_BATCH_SIZE;

/// Enough that an answer is not there at once each time.
const TRIES: usize = 100;

/// Whether something urgent was seen to enter while that was done; not where it was done in one go.
async fn entered(dispatch_state: &DispatchState, done: impl Future) -> bool {
    let (mut done, mut seen) = (pin!(done), false);
    std::future::poll_fn(|context| {
        let polled = done.as_mut().poll(context);
        seen |= dispatch_state.urgent_gate().has_urgent_in_flight();
        polled.map(|_| ())
    })
    .await;
    seen
}

/// So many wait to be claimed, and all other lanes were seen to be empty.
async fn waiting(store: &Store, priority: Priority, count: usize) -> TestReplica {
    let mut rig = TestReplica::new(store, &clock(), 2 * URGENT_BATCH_SIZE).await;
    rig.step().await;
    let channel_state = Arc::clone(rig.dispatch_state.channel(Channel::Email));
    let taken = channel_state.permits().take(
        Lane::first(Channel::Email, Priority::Critical),
        1.0,
        usize::MAX,
    );
    for _ in 0..count {
        rig.accept(priority).await;
    }
    drop(taken);
    rig
}

/// Claims what waits and delivers it while something urgent enters, or nothing does: how often the
/// claims made way, and how often the results did.
async fn made_way(rig: &mut TestReplica, urgent_enters: bool) -> (usize, usize) {
    rig.dispatcher.scan_lanes().await.expect("looks");
    let dispatch_state = Arc::clone(&rig.dispatch_state);
    let entering = dispatch_state
        .urgent_gate()
        .begin_commit(urgent_enters.then_some(Priority::High).into_iter());
    rig.dispatcher.pass().await.expect("claims");
    let claims = dispatch_state.urgent_gate().yields();
    rig.runner.wait_until_idle().await;
    rig.finisher.drain().await;
    drop(entering);
    (claims, dispatch_state.urgent_gate().yields() - claims)
}

#[tokio::test]
async fn what_is_urgent_is_entering_until_its_commit() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let dispatch_state = Arc::clone(&rig.dispatch_state);
        for priority in Priority::ALL {
            let mut seen = false;
            for _ in 0..TRIES {
                seen = entered(&dispatch_state, rig.accept(priority)).await;
                assert!(!dispatch_state.urgent_gate().has_urgent_in_flight());
                if seen {
                    break;
                }
            }
            assert_eq!(seen, priority.is_urgent(), "{priority:?}");
        }
    }
}

#[tokio::test]
async fn claims_and_results_make_way_unless_they_are_urgent_themselves() {
    for (store, _database) in stores().await {
        for (priority, expected) in Priority::ALL.into_iter().zip([0, 0, 1, 1]) {
            for (urgent_enters, expected) in [(true, expected), (false, 0)] {
                let mut rig = waiting(&store, priority, 1).await;
                let made = made_way(&mut rig, urgent_enters).await;
                assert_eq!(made, (expected, expected), "{priority:?}, {urgent_enters}");
                assert_eq!(rig.script.calls().len(), 1);
            }
        }
    }
}

#[tokio::test]
async fn claims_and_results_are_small_while_something_urgent_comes() {
    for (store, _database) in stores().await {
        let mut rig = waiting(&store, Priority::Low, URGENT_BATCH_SIZE + 1).await;
        assert_eq!(made_way(&mut rig, true).await, (2, 2));
        assert_eq!(rig.script.calls().len(), URGENT_BATCH_SIZE + 1);
    }
}
