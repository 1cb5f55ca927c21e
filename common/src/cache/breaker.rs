//! Keeps callers from queueing up behind a server that does not answer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open the breaker.
pub(super) const THRESHOLD: u32 = 5;

/// How long it stays open before one call tries again.
pub(super) const OPEN_FOR: Duration = Duration::from_millis(500);

/// How often it is told that commands are refused: a server without memory refuses every one.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Closed: every call goes through. Open: calls fail at once, and one every [`OPEN_FOR`] tries.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    open_until: Option<Instant>,
    told: Option<Instant>,
}

/// What a failure meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// One of a few.
    StillClosed,
    /// The one that opened it.
    Opened,
    /// The attempt failed as those before it did.
    StillOpen,
}

// === impl Breaker ===

impl Breaker {
    /// Whether a call may go through.
    pub(super) fn admits(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                // This one tries; the others wait for its outcome, or for the next turn if it has
                // none.
                state.open_until = Some(now + OPEN_FOR);
                true
            }
        }
    }

    /// Notes an answer; true if that closed the breaker.
    pub(super) fn succeeded(&self) -> bool {
        let mut state = self.state();
        state.failures = 0;
        state.open_until.take().is_some()
    }

    /// Notes an answer that refuses: it is one, but nothing that was asked for. Whether to tell it
    /// now. It opens nothing: nobody waits for a server that answers, and one without memory, which
    /// refuses what it should keep, still gives out what it holds.
    pub(super) fn refused(&self, now: Instant) -> bool {
        self.succeeded();
        let mut state = self.state();
        let tells = state.told.is_none_or(|told| now >= told + TELL_EVERY);
        if tells {
            state.told = Some(now);
        }
        tells
    }

    pub(super) fn failed(&self, now: Instant) -> Failed {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        if state.failures < THRESHOLD {
            return Failed::StillClosed;
        }
        match state.open_until.replace(now + OPEN_FOR) {
            None => Failed::Opened,
            Some(_) => Failed::StillOpen,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_answers_and_told_now_and_then() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        let tells = |at: Instant| {
            breaker.failed(at);
            breaker.refused(at)
        };
        assert!(tells(now));
        assert!((1..10 * THRESHOLD).all(|_| !tells(now)), "once");
        assert!(breaker.admits(now), "failures in between do not add up");
        assert!(tells(now + TELL_EVERY));
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_one_call_at_a_time_tries_again() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 1..THRESHOLD {
            assert_eq!(breaker.failed(start), Failed::StillClosed);
        }
        assert!(!breaker.succeeded(), "it was closed");
        for _ in 1..THRESHOLD {
            assert_eq!(
                breaker.failed(start),
                Failed::StillClosed,
                "a success began the count anew"
            );
        }
        assert_eq!(breaker.failed(start), Failed::Opened);
        assert!(!breaker.admits(start + OPEN_FOR / 2));
        let later = start + OPEN_FOR;
        assert!(breaker.admits(later) && !breaker.admits(later), "one tries");
        assert_eq!(breaker.failed(later), Failed::StillOpen);
        assert!(breaker.admits(later + OPEN_FOR));
        assert!(breaker.succeeded() && breaker.admits(later));
    }
}
