use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::retry::Class;

/// Keeps calls from a provider that fails them all: opens after ten failures in a row that are the provider's own, lets
/// one through after a while, and closes with the first that works.
#[derive(Debug)]
pub struct Breaker {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    failures: u32,
    open_until: Option<Timestamp>,
    wait: Duration,
}

const FAILURES: u32 = 10;
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

// === impl Breaker ===

impl Breaker {
    /// Closed.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// How a call ended: `None` if it worked. A permanent failure is the message's fault and says that the provider works.
    pub fn note(&self, failure: Option<Class>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            None | Some(Class::Permanent) => *state = State::default(),
            Some(Class::Transient | Class::Throttled | Class::Configuration | Class::Ambiguous) => {
                state.failures = state.failures.saturating_add(1);
                if state.failures >= FAILURES {
                    state.wait = (state.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
                    state.open_until = Some(self.clock.now().plus(state.wait));
                }
            }
        }
    }

    /// Whether a call may be made. While it is open, one is let through at the end of each wait.
    #[must_use]
    pub fn lets_through(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match state.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                state.open_until = Some(now.plus(state.wait));
                true
            }
        }
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_probes() {
        let clock = Clock::manual(Timestamp(0));
        let breaker = Breaker::new(clock.clone());
        for _ in 0..9 {
            breaker.note(Some(Class::Transient));
        }
        breaker.note(Some(Class::Permanent));
        assert!(breaker.lets_through() && !breaker.is_open());
        for _ in 0..10 {
            breaker.note(Some(Class::Transient));
        }
        assert!(!breaker.lets_through() && breaker.is_open());
        clock.advance(Duration::from_secs(2));
        assert_eq!((breaker.lets_through(), breaker.lets_through()), (true, false));
        breaker.note(None);
        assert!(breaker.lets_through() && !breaker.is_open());
    }
}
