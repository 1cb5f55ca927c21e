//! A circuit breaker, which keeps callers from waiting for a failing server.
//!
//! ```text
//!           consecutive failures                open time elapsed
//!   Closed ─────────────────────► Open ────────────────────────► HalfOpen
//!     ▲                            ▲                                │
//!     │                            └── the probe fails: open again ─┤
//!     └────────────────────────────────── a call succeeds ──────────┘
//! ```

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::clock::Timestamp;

/// When a circuit breaker opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct BreakerPolicy {
    /// Consecutive failures that open the breaker.
    pub failure_threshold: u32,
    /// Time for which the breaker is open, by the number of failures since it opened, the one that
    /// opened it included.
    pub open_time: Backoff,
    /// Whether a failure in the open state counts although its call is not the probe, but started
    /// before the breaker opened. If so, it opens the breaker anew.
    pub counts_calls_in_flight: bool,
}

/// A circuit breaker. Closed: calls pass. Open: calls fail at once. Half-open: one call passes, the
/// probe. If the probe has no outcome, the next one passes after another open time.
///
/// The caller provides the time and the synchronization.
#[derive(Debug)]
pub struct CircuitBreaker<T = Timestamp> {
    policy: BreakerPolicy,
    consecutive_failures: u32,
    open: Option<OpenPeriod<T>>,
}

#[derive(Debug)]
struct OpenPeriod<T> {
    until: T,
    failures: u32,
    is_probing: bool,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls are allowed.
    Closed,
    /// One call, the probe, is allowed.
    HalfOpen,
    /// No call is allowed for the given time.
    Open(Duration),
}

/// The effect of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureEffect {
    /// The breaker stays closed after this number of consecutive failures.
    StillClosed(u32),
    /// The breaker has opened for the given time.
    Opened(Duration),
    /// The breaker was open and has opened anew for the given time.
    Reopened(Duration),
    /// The breaker was open, and the call was not the probe.
    Ignored,
}

/// A point in time.
pub trait Moment: Copy + Ord {
    /// Returns the moment `duration` later.
    #[must_use]
    fn later(self, duration: Duration) -> Self;

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    fn elapsed_since(self, earlier: Self) -> Duration;
}

impl<T: Moment> CircuitBreaker<T> {
    /// Creates a closed circuit breaker.
    #[must_use]
    pub const fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            consecutive_failures: 0,
            open: None,
        }
    }

    /// Returns the state without changing it.
    #[must_use]
    pub fn state(&self, now: T) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if now >= open.until => BreakerState::HalfOpen,
            Some(open) => BreakerState::Open(open.until.elapsed_since(now)),
        }
    }

    /// Returns whether a call may be made. In the half-open state the call becomes the probe.
    pub fn allows_call(&mut self, now: T) -> bool {
        let state = self.state(now);
        if let (BreakerState::HalfOpen, Some(open)) = (state, &mut self.open) {
            open.is_probing = true;
            open.until = now.later(self.policy.open_time.delay(open.failures));
        }
        !matches!(state, BreakerState::Open(_))
    }

    /// Returns whether a call is the probe and has no outcome yet.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_probing)
    }

    /// Closes the breaker and resets its counters. Returns whether it was open.
    pub fn record_success(&mut self) -> bool {
        self.consecutive_failures = 0;
        self.open.take().is_some()
    }

    /// Counts a failed call.
    pub fn record_failure(&mut self, now: T) -> FailureEffect {
        match &mut self.open {
            None => {
                self.consecutive_failures = self.consecutive_failures.saturating_add(1);
                match self.consecutive_failures {
                    few if few < self.policy.failure_threshold => FailureEffect::StillClosed(few),
                    _ => {
                        self.open = Some(OpenPeriod {
                            until: now,
                            failures: 1,
                            is_probing: false,
                        });
                        FailureEffect::Opened(self.reopen(now))
                    }
                }
            }
            Some(open) if open.is_probing || self.policy.counts_calls_in_flight => {
                open.failures = open.failures.saturating_add(1);
                FailureEffect::Reopened(self.reopen(now))
            }
            Some(_) => FailureEffect::Ignored,
        }
    }

    /// Opens the breaker again. Returns for how long, which is zero if the breaker is closed.
    fn reopen(&mut self, now: T) -> Duration {
        let Some(open) = &mut self.open else {
            return Duration::ZERO;
        };
        let open_time = self.policy.open_time.delay(open.failures);
        open.until = now.later(open_time);
        open.is_probing = false;
        open_time
    }

    /// Takes back a probe that was not made: the next one is allowed at once.
    pub fn release_probe(&mut self, now: T) {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_probing) {
            (open.until, open.is_probing) = (now, false);
        }
    }
}

impl Moment for Timestamp {
    fn later(self, duration: Duration) -> Self {
        self.plus(duration)
    }

    fn elapsed_since(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl Moment for Instant {
    fn later(self, duration: Duration) -> Self {
        self + duration
    }

    fn elapsed_since(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failure_threshold: 3,
        open_time: Backoff::new(Duration::from_secs(1), Duration::from_secs(4)),
        counts_calls_in_flight: false,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix_seconds(second)
    }

    fn open_for(seconds: u64) -> BreakerState {
        BreakerState::Open(Duration::from_secs(seconds))
    }

    fn opened(policy: BreakerPolicy) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(policy);
        for failures in 1..policy.failure_threshold {
            let effect = breaker.record_failure(at(0));
            assert_eq!(effect, FailureEffect::StillClosed(failures));
        }
        let effect = breaker.record_failure(at(0));
        assert_eq!(effect, FailureEffect::Opened(Duration::from_secs(1)));
        breaker
    }

    #[test]
    fn success_resets_the_failure_count() {
        let mut breaker = CircuitBreaker::new(POLICY);
        for _ in 0..10 {
            breaker.record_failure(at(0));
            breaker.record_failure(at(0));
            assert!(!breaker.record_success(), "the breaker was closed");
        }
        assert_eq!(breaker.state(at(0)), BreakerState::Closed);
    }

    #[test]
    fn one_call_probes_and_closes() {
        let mut breaker = opened(POLICY);
        assert_eq!(breaker.state(at(0)), open_for(1));
        assert!(!breaker.allows_call(at(0)) && !breaker.is_probing());
        assert_eq!(breaker.state(at(1)), BreakerState::HalfOpen);
        assert!(breaker.allows_call(at(1)) && !breaker.allows_call(at(1)));
        assert!(breaker.is_probing());
        assert!(breaker.allows_call(at(2)), "the probe has no outcome");
        assert!(breaker.record_success());
        assert_eq!(breaker.state(at(2)), BreakerState::Closed);
        assert!(breaker.allows_call(at(2)) && breaker.allows_call(at(2)));
    }

    #[test]
    fn open_time_grows_with_failed_probes() {
        let (mut breaker, mut now) = (opened(POLICY), 0);
        for seconds in [1, 2, 4, 4] {
            assert_eq!(breaker.record_failure(at(now)), FailureEffect::Ignored);
            assert_eq!(breaker.state(at(now)), open_for(seconds));
            now += i64::try_from(seconds).expect("seconds");
            assert!(breaker.allows_call(at(now)));
            let effect = breaker.record_failure(at(now));
            assert!(matches!(effect, FailureEffect::Reopened(_)), "{effect:?}");
        }
    }

    #[test]
    fn open_time_grows_with_calls_in_flight_if_they_count() {
        let mut breaker = opened(BreakerPolicy {
            counts_calls_in_flight: true,
            ..POLICY
        });
        let effect = breaker.record_failure(at(0));
        assert_eq!(effect, FailureEffect::Reopened(Duration::from_secs(2)));
        assert_eq!(breaker.state(at(0)), open_for(2));
    }

    #[test]
    fn probe_without_result_does_not_prolong_the_open_time() {
        let mut breaker = opened(POLICY);
        assert!(breaker.allows_call(at(1)));
        breaker.release_probe(at(1));
        assert!(breaker.allows_call(at(2)));
        assert_eq!(breaker.reopen(at(2)), Duration::from_secs(1));
        assert_eq!(breaker.state(at(2)), open_for(1));
    }
}
