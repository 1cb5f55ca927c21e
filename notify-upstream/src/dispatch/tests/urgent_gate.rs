//! Tests of priority isolation for claims and results.

use std::pin::pin;

use super::*;
use crate::dispatch::urgent_gate::URGENT_BATCH_SIZE;

/// Enough attempts that at least one does not complete immediately.
const TRIES: usize = 100;

/// Returns whether an urgent commit was observed in flight while `done` ran. False if it completed
/// without waiting.
async fn urgent_commit_observed(dispatch_state: &DispatchState, done: impl Future) -> bool {
    let (mut done, mut seen) = (pin!(done), false);
    std::future::poll_fn(|context| {
        let polled = done.as_mut().poll(context);
        seen |= dispatch_state.urgent_gate().has_urgent_in_flight();
        polled.map(|_| ())
    })
    .await;
    seen
}

/// Creates a replica with `count` waiting rows and all other lanes scanned.
async fn replica_with_waiting_rows(store: &Store, priority: Priority, count: usize) -> TestReplica {
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

/// Claims and delivers the waiting rows, optionally with an urgent commit in flight, and returns
/// how often claims and results yielded.
async fn count_yields(rig: &mut TestReplica, urgent_enters: bool) -> (usize, usize) {
    rig.dispatcher.scan_lanes().await.expect("no error");
    let dispatch_state = Arc::clone(&rig.dispatch_state);
    let entering = dispatch_state
        .urgent_gate()
        .begin_commit(urgent_enters.then_some(Priority::High).into_iter());
    rig.dispatcher.claim_available().await.expect("no error");
    let claims = dispatch_state.urgent_gate().yields();
    rig.runner.wait_until_idle().await;
    rig.result_writer.drain().await;
    drop(entering);
    (claims, dispatch_state.urgent_gate().yields() - claims)
}

#[tokio::test]
async fn urgent_submission_is_in_flight_until_commit() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let dispatch_state = Arc::clone(&rig.dispatch_state);
        for priority in Priority::ALL {
            let mut seen = false;
            for _ in 0..TRIES {
                seen = urgent_commit_observed(&dispatch_state, rig.accept(priority)).await;
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
async fn non_urgent_claims_and_results_yield() {
    for (store, _database) in stores().await {
        for (priority, expected) in Priority::ALL.into_iter().zip([0, 0, 1, 1]) {
            for (urgent_enters, expected) in [(true, expected), (false, 0)] {
                let mut rig = replica_with_waiting_rows(&store, priority, 1).await;
                let made = count_yields(&mut rig, urgent_enters).await;
                assert_eq!(made, (expected, expected), "{priority:?}, {urgent_enters}");
                assert_eq!(rig.script.calls().len(), 1);
            }
        }
    }
}

#[tokio::test]
async fn batches_are_small_during_urgent_submissions() {
    for (store, _database) in stores().await {
        let mut rig = replica_with_waiting_rows(&store, Priority::Low, URGENT_BATCH_SIZE + 1).await;
        assert_eq!(count_yields(&mut rig, true).await, (2, 2));
        assert_eq!(rig.script.calls().len(), URGENT_BATCH_SIZE + 1);
    }
}
