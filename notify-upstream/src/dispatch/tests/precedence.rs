//! What is urgent goes first in the store as well.

use std::pin::pin;

use super::*;
use crate::dispatch::precedence::BESIDE_URGENT;

/// How often this began to hold of the board while that was done.
async fn times(board: &Board, seen: fn(&Precedence) -> bool, done: impl Future) -> usize {
    let (mut done, mut held, mut times) = (pin!(done), false, 0);
    std::future::poll_fn(|context| {
        let polled = done.as_mut().poll(context);
        let before = std::mem::replace(&mut held, seen(board.precedence()));
        times += usize::from(held && !before);
        polled.map(|_| ())
    })
    .await;
    times
}

/// So many wait to be claimed, and all other lanes were seen to be empty.
async fn waiting(store: &Store, priority: Priority, count: usize) -> Rig {
    let mut rig = Rig::new(store, &clock(), 2 * BESIDE_URGENT).await;
    rig.step().await;
    let desk = Arc::clone(rig.board.desk(Channel::Email));
    let taken = desk.permits().take(Lane::first(Channel::Email, Priority::Critical), 1.0, usize::MAX);
    for _ in 0..count {
        rig.accept(priority).await;
    }
    drop(taken);
    rig
}

/// Claims what waits and delivers it while something urgent enters, or nothing does: how often the claims made way, and how
/// often the results did.
async fn made_way(rig: &mut Rig, urgent_enters: bool) -> (usize, usize) {
    let makes_way = |precedence: &Precedence| precedence.making_way() > 0;
    rig.dispatcher.survey().await.expect("looks");
    let board = Arc::clone(&rig.board);
    let entering = board.precedence().enter(urgent_enters.then_some(Priority::High).into_iter());
    let claims = times(&board, makes_way, rig.dispatcher.pass()).await;
    rig.runner.idle().await;
    let results = times(&board, makes_way, rig.finisher.drain()).await;
    drop(entering);
    (claims, results)
}

#[tokio::test]
async fn what_is_urgent_is_entering_until_its_commit() {
    for (store, _database) in stores().await {
        let mut rig = Rig::new(&store, &clock(), 8).await;
        let board = Arc::clone(&rig.board);
        for (priority, expected) in Priority::ALL.into_iter().zip([1, 1, 0, 0]) {
            let entered = times(&board, Precedence::is_entering, rig.accept(priority)).await;
            assert_eq!((entered, board.precedence().is_entering()), (expected, false), "{priority:?}");
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
        let mut rig = waiting(&store, Priority::Low, BESIDE_URGENT + 1).await;
        assert_eq!(made_way(&mut rig, true).await, (2, 2));
        assert_eq!(rig.script.calls().len(), BESIDE_URGENT + 1);
    }
}
