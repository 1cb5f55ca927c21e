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
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until: Timestamp,
    /// From one probe to the next.
    wait: Duration,
    /// One was let through, and has not ended.
    probing: bool,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Any.
    Closed,
    /// One, to see whether it works again.
    Due,
    /// None for so long.
    Open(Duration),
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
    /// The wait grows with each probe that fails, not with each call that was in flight when it opened.
    pub fn note(&self, failure: Option<Class>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match failure {
            None | Some(Class::Permanent) => *state = State::default(),
            Some(Class::Transient | Class::Throttled | Class::Configuration | Class::Ambiguous) => {
                match &mut state.open {
                    Some(Open { probing: false, .. }) => {}
                    Some(open) => {
                        let wait = (open.wait * 2).min(LONGEST_WAIT);
                        *open = Open { until: now.plus(wait), wait, probing: false };
                    }
                    None => {
                        state.failures += 1;
                        let open = Open { until: now.plus(FIRST_WAIT), wait: FIRST_WAIT, probing: false };
                        state.open = (state.failures >= FAILURES).then_some(open);
                    }
                }
            }
        }
    }

    /// Takes the right to a call. While it is open, one has it at the end of each wait.
    #[must_use]
    pub fn lets_through(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match &mut state.open {
            None => true,
            Some(open) if now < open.until => false,
            Some(open) => {
                // If nothing is heard of this one, there is another after the same wait.
                (open.until, open.probing) = (now.plus(open.wait), true);
                true
            }
        }
    }

    /// Whether a call may be made; nothing is taken.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let open = self.state.lock().unwrap_or_else(PoisonError::into_inner).open;
        match open.map(|open| open.until.since(self.clock.now())) {
            None => Standing::Closed,
            Some(Duration::ZERO) => Standing::Due,
            Some(left) => Standing::Open(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(breaker: &Breaker, times: u32) {
        for _ in 0..times {
            breaker.note(Some(Class::Transient));
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_probes() {
        let clock = Clock::manual(Timestamp(0));
        let breaker = Breaker::new(clock.clone());
        failed(&breaker, 9);
        breaker.note(Some(Class::Permanent));
        assert!(breaker.lets_through());
        failed(&breaker, 10);
        assert_eq!((breaker.lets_through(), breaker.standing()), (false, Standing::Open(FIRST_WAIT)));
        clock.advance(Duration::from_secs(2));
        assert_eq!((breaker.standing(), breaker.standing()), (Standing::Due, Standing::Due));
        assert_eq!((breaker.lets_through(), breaker.lets_through()), (true, false));
        breaker.note(None);
        assert!(breaker.lets_through() && breaker.standing() == Standing::Closed);
    }

    #[test]
    fn the_wait_grows_with_each_probe_and_not_with_what_was_in_flight() {
        let clock = Clock::manual(Timestamp(0));
        let breaker = Breaker::new(clock.clone());
        failed(&breaker, 25);
        for wait_s in [2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(breaker.standing(), Standing::Open(Duration::from_secs(wait_s)));
            clock.advance(Duration::from_secs(wait_s));
            assert!(breaker.lets_through());
            failed(&breaker, 3);
        }
    }
}
