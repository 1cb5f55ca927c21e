//! The timer of all deadlines of a connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::time::Sleep;

/// A single timer for all deadlines of a connection. It is moved only when it fires, or for an
/// earlier deadline: on a busy connection that is rare, so that a request causes no operation on
/// the timer wheel.
#[derive(Default)]
pub struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

/// A measurement window of a transfer rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallWindow {
    /// Beginning of the window.
    pub(crate) since: Instant,
    /// Bytes that had been transferred at its beginning.
    pub(crate) bytes: u64,
}

impl DeadlineTimer {
    /// Completes when `due` has passed.
    pub fn poll(&mut self, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let due = tokio::time::Instant::from_std(due);
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
