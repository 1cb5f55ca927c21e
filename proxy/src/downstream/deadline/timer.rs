use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::time::Sleep;

/// One timer for all deadlines of a connection. It is only ever bytes forward when it fires, or
/// back when a nearer deadline comes: on a busy connection that is rare, so a request costs no
/// entry in the timer wheel.
#[derive(Default)]
pub(crate) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

/// A direction in which nothing moves just now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallWindow {
    /// Since when it is being watched.
    pub(crate) since: Instant,
    /// How many bytes had bytes then.
    pub(crate) bytes: u64,
}

impl DeadlineTimer {
    /// Ready once `due` is over.
    pub(crate) fn poll(&mut self, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
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
