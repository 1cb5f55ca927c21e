//! The circuit breaker of a Redis server.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::{BreakerPolicy, CircuitBreaker, FailureEffect};

/// Consecutive failures that open the breaker.
pub(super) const FAILURE_THRESHOLD: u32 = 5;

/// Time for which the breaker stays open before one call probes the server.
pub(super) const OPEN_DURATION: Duration = Duration::from_millis(500);

/// Minimum time between two log messages about rejected commands: a server without memory rejects
/// every write.
const REJECTION_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A circuit breaker that a rejected command does not open.
#[derive(Debug)]
pub(super) struct ServerCircuitBreaker(Mutex<ServerRecord>);

#[derive(Debug)]
struct ServerRecord {
    breaker: CircuitBreaker<Instant>,
    logged_at: Option<Instant>,
}

// === impl ServerCircuitBreaker ===

impl ServerCircuitBreaker {
    /// Returns whether a call may pass.
    pub(super) fn allows_call(&self, now: Instant) -> bool {
        self.0.lock().breaker.allows_call(now)
    }

    /// Records an answer. Returns true if it closed the breaker.
    pub(super) fn record_success(&self) -> bool {
        self.0.lock().breaker.record_success()
    }

    /// Records an answer that rejects the command. Returns whether to log it now. A rejection does
    /// not open the breaker: callers do not wait for a server that answers, and a server without
    /// memory rejects writes but still serves reads.
    pub(super) fn record_rejection(&self, now: Instant) -> bool {
        let mut record = self.0.lock();
        record.breaker.record_success();
        let is_due = record
            .logged_at
            .is_none_or(|logged_at| now >= logged_at + REJECTION_LOG_INTERVAL);
        if is_due {
            record.logged_at = Some(now);
        }
        is_due
    }

    /// Records a call that failed or timed out, and returns its effect.
    pub(super) fn record_failure(&self, now: Instant) -> FailureEffect {
        self.0.lock().breaker.record_failure(now)
    }
}

impl Default for ServerCircuitBreaker {
    fn default() -> Self {
        let breaker = CircuitBreaker::new(BreakerPolicy {
            failure_threshold: FAILURE_THRESHOLD,
            open_time: Backoff::new(OPEN_DURATION, OPEN_DURATION),
            counts_calls_in_flight: true,
        });
        Self(Mutex::new(ServerRecord {
            breaker,
            logged_at: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_do_not_open_and_are_logged_at_intervals() {
        let (breaker, now) = (ServerCircuitBreaker::default(), Instant::now());
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
}
