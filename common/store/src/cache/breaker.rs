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

/// A circuit breaker that a rejected command does not open.
#[derive(Debug)]
pub(super) struct ServerCircuitBreaker(Mutex<CircuitBreaker<Instant>>);

// === impl ServerCircuitBreaker ===

impl ServerCircuitBreaker {
    /// Returns whether a call may pass.
    pub(super) fn allows_call(&self, now: Instant) -> bool {
        self.0.lock().allows_call(now)
    }

    /// Records an answer. Returns true if it closed the breaker. An answer that rejects the command
    /// does not open it: callers do not wait for a server that answers, and a server without memory
    /// rejects writes but still serves reads.
    pub(super) fn record_answer(&self) -> bool {
        self.0.lock().record_success()
    }

    /// Records a call that failed or timed out, and returns its effect.
    pub(super) fn record_failure(&self, now: Instant) -> FailureEffect {
        self.0.lock().record_failure(now)
    }
}

impl Default for ServerCircuitBreaker {
    fn default() -> Self {
        Self(Mutex::new(CircuitBreaker::new(BreakerPolicy {
            failure_threshold: FAILURE_THRESHOLD,
            open_time: Backoff::new(OPEN_DURATION, OPEN_DURATION),
            counts_calls_in_flight: true,
        })))
    }
}
