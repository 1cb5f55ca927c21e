//! The circuit breaker of a provider.

use std::time::Duration;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::{BreakerPolicy, BreakerState, CircuitBreaker, FailureEffect};

use crate::delivery::provider::{FaultScope, ProviderRefusal};
use crate::delivery::retry::FailureClass;

/// A circuit breaker, which stops calls to a failing provider. It opens after ten consecutive
/// failures. A refusal that may concern the recipient is an answer: whoever chooses recipients must
/// not stop the messages of others.
pub(crate) struct ProviderCircuitBreaker {
    clock: Clock,
    breaker: Mutex<CircuitBreaker>,
}

/// The outcome of a call, as far as it says something about the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// The provider accepted the message.
    Accepted,
    /// The provider refused the message or its recipient.
    Refused,
    ProviderFailed,
}

/// A change caused by the outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerTransition {
    /// Opened, or stayed open after a probe, for the given time.
    Opened(Duration),
    Closed,
}

/// The open time grows with each failed probe, not with each call that was in flight when the
/// breaker opened.
const POLICY: BreakerPolicy = BreakerPolicy {
    failure_threshold: 10,
    open_time: Backoff::new(Duration::from_secs(2), Duration::from_secs(60)),
    counts_calls_in_flight: false,
};

// === impl CallOutcome ===

impl CallOutcome {
    /// Classifies a call by its refusal. Returns `None` for a message that was refused before the
    /// call, which says nothing about the provider.
    pub(crate) fn of(refusal: Option<&ProviderRefusal>) -> Option<Self> {
        let Some(refusal) = refusal else {
            return Some(Self::Accepted);
        };
        match refusal.scope {
            FaultScope::NotSent => None,
            FaultScope::Provider if refusal.class != FailureClass::Permanent => {
                Some(Self::ProviderFailed)
            }
            FaultScope::Provider | FaultScope::Recipient => Some(Self::Refused),
        }
    }
}

// === impl ProviderCircuitBreaker ===

impl ProviderCircuitBreaker {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            breaker: Mutex::new(CircuitBreaker::new(POLICY)),
        }
    }

    pub(crate) fn record(&self, outcome: CallOutcome) -> Option<BreakerTransition> {
        let mut breaker = self.breaker.lock();
        match outcome {
            CallOutcome::Accepted | CallOutcome::Refused => {
                let is_closed = breaker.record_success();
                is_closed.then_some(BreakerTransition::Closed)
            }
            CallOutcome::ProviderFailed => match breaker.record_failure(self.clock.now()) {
                FailureEffect::StillClosed(_) | FailureEffect::Ignored => None,
                FailureEffect::Opened(open_time) | FailureEffect::Reopened(open_time) => {
                    Some(BreakerTransition::Opened(open_time))
                }
            },
        }
    }

    /// Returns whether a call is allowed. In the half-open state the call becomes the probe.
    #[must_use]
    pub(crate) fn allows_call(&self) -> bool {
        self.breaker.lock().allows_call(self.clock.now())
    }

    /// Returns a probe that was not made: the next one is allowed at once.
    pub(crate) fn release_probe(&self) {
        self.breaker.lock().release_probe(self.clock.now());
    }

    /// Returns the state without changing it.
    pub(crate) fn state(&self) -> BreakerState {
        self.breaker.lock().state(self.clock.now())
    }
}
