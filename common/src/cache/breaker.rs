//! A circuit breaker, which keeps callers from waiting for an unresponsive server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Consecutive failures that open the breaker.
pub(super) const FAILURE_THRESHOLD: u32 = 5;

/// Time for which the breaker stays open before one call probes the server.
pub(super) const OPEN_DURATION: Duration = Duration::from_millis(500);

/// Minimum time between two log messages about rejected commands: a server without memory rejects
/// every write.
const REJECTION_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A circuit breaker. Closed: calls pass. Open: calls fail immediately, except one probe per
/// [`OPEN_DURATION`].
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Mutex<BreakerState>);

#[derive(Debug, Default)]
struct BreakerState {
    failures: u32,
    open_until: Option<Instant>,
    logged_at: Option<Instant>,
}

/// The state of the breaker after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureEffect {
    /// The breaker is closed; the failure threshold is not reached.
    StillClosed,
    /// This failure opened the breaker.
    Opened,
    /// The probe failed and the breaker remains open.
    StillOpen,
}

// === impl CircuitBreaker ===

impl CircuitBreaker {
    /// Returns whether a call may pass.
    pub(super) fn allows_call(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                // This call is the probe. Other calls fail until it succeeds, or until the next
                // probe.
                state.open_until = Some(now + OPEN_DURATION);
                true
            }
        }
    }

    /// Records an answer. Returns true if it closed the breaker.
    pub(super) fn record_success(&self) -> bool {
        let mut state = self.state();
        state.failures = 0;
        state.open_until.take().is_some()
    }

    /// Records an answer that rejects the command. Returns whether to log it now. A rejection does
    /// not open the breaker: callers do not wait for a server that answers, and a server without
    /// memory rejects writes but still serves reads.
    pub(super) fn record_rejection(&self, now: Instant) -> bool {
        self.record_success();
        let mut state = self.state();
        let is_due = state
            .logged_at
            .is_none_or(|logged_at| now >= logged_at + REJECTION_LOG_INTERVAL);
        if is_due {
            state.logged_at = Some(now);
        }
        is_due
    }

    /// Records a call that failed or timed out, and returns its effect.
    pub(super) fn record_failure(&self, now: Instant) -> FailureEffect {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        if state.failures < FAILURE_THRESHOLD {
            return FailureEffect::StillClosed;
        }
        match state.open_until.replace(now + OPEN_DURATION) {
            None => FailureEffect::Opened,
            Some(_) => FailureEffect::StillOpen,
        }
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_do_not_open_and_are_logged_at_intervals() {
        let (breaker, now) = (CircuitBreaker::default(), Instant::now());
        let is_due = |at: Instant| {
            breaker.record_failure(at);
            breaker.record_rejection(at)
        };
        assert!(is_due(now));
        assert!((1..10 * FAILURE_THRESHOLD).all(|_| !is_due(now)), "once");
        assert!(
            breaker.allows_call(now),
            "rejections reset the failure count"
        );
        assert!(is_due(now + REJECTION_LOG_INTERVAL));
    }

    #[test]
    fn five_failures_open_the_breaker_and_one_call_probes() {
        let (breaker, start) = (CircuitBreaker::default(), Instant::now());
        for _ in 1..FAILURE_THRESHOLD {
            assert_eq!(breaker.record_failure(start), FailureEffect::StillClosed);
        }
        assert!(!breaker.record_success(), "the breaker was closed");
        for _ in 1..FAILURE_THRESHOLD {
            assert_eq!(
                breaker.record_failure(start),
                FailureEffect::StillClosed,
                "a success resets the count"
            );
        }
        assert_eq!(breaker.record_failure(start), FailureEffect::Opened);
        assert!(!breaker.allows_call(start + OPEN_DURATION / 2));
        let later = start + OPEN_DURATION;
        assert!(
            breaker.allows_call(later) && !breaker.allows_call(later),
            "one call probes"
        );
        assert_eq!(breaker.record_failure(later), FailureEffect::StillOpen);
        assert!(breaker.allows_call(later + OPEN_DURATION));
        assert!(breaker.record_success() && breaker.allows_call(later));
    }
}
