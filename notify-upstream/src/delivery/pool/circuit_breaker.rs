//! The circuit breaker of a provider.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::{BreakerPolicy, BreakerState, CircuitBreaker, FailureEffect};
use postern_core::clock::Timestamp;

use crate::delivery::provider::{FaultScope, ProviderRefusal};
use crate::delivery::retry::FailureClass;

/// A circuit breaker, which stops calls to a failing provider. It opens after ten consecutive
/// failures of the provider, or after ten consecutive refusals of recipients that differ in domain
/// and in caller.
#[derive(Debug)]
pub(crate) struct ProviderCircuitBreaker {
    clock: Clock,
    record: Mutex<ProviderRecord>,
}

#[derive(Debug)]
struct ProviderRecord {
    breaker: CircuitBreaker,
    /// Recipients refused since the last successful call, each of a different caller and domain.
    refused: Vec<CallSource>,
    /// If refusals opened the breaker, the callers whose recipients were refused until then and by
    /// probes. The next probe is reserved for other callers.
    tried: VecDeque<String>,
}

/// The creator and the destination of a message. Two refusals are independent if they share
/// neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallSource {
    /// The creator of the notification.
    pub(crate) caller: String,
    /// The domain, number or token of the recipient, see [`domain_of`](super::domain_of).
    pub(crate) domain: String,
}

/// The outcome of a call, as far as it says something about the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// The provider answered: it accepted the message or refused it permanently.
    Answered,
    /// The provider failed.
    ProviderFailed,
    /// The provider refused the message temporarily, possibly because of the recipient.
    RecipientRefused,
}

/// A change caused by the outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerTransition {
    /// The first failure of the provider after a successful call.
    FirstFailure,
    /// Opened, or stayed open after a probe, for the given time.
    Opened(Duration),
    /// Closed.
    Closed,
}

const MAX_REFUSALS: usize = 10;
/// The open time grows with each failed probe, not with each call that was in flight when the
/// breaker opened.
const POLICY: BreakerPolicy = BreakerPolicy {
    failure_threshold: 10,
    open_time: Backoff::new(Duration::from_secs(2), Duration::from_secs(60)),
    counts_calls_in_flight: false,
};
/// Maximum number of callers that the probe is not given to.
const MAX_TRIED_CALLERS: usize = 64;

// === impl CallOutcome ===

impl CallOutcome {
    /// Classifies a call by its refusal. Returns `None` for a message that was refused before the
    /// call, which says nothing about the provider.
    pub(crate) fn of(refusal: Option<&ProviderRefusal>) -> Option<Self> {
        match refusal {
            Some(ProviderRefusal {
                scope: FaultScope::NotSent,
                ..
            }) => None,
            None
            | Some(ProviderRefusal {
                class: FailureClass::Permanent,
                ..
            }) => Some(Self::Answered),
            Some(ProviderRefusal {
                scope: FaultScope::Provider,
                ..
            }) => Some(Self::ProviderFailed),
            Some(ProviderRefusal {
                scope: FaultScope::Recipient,
                ..
            }) => Some(Self::RecipientRefused),
        }
    }
}

// === impl ProviderCircuitBreaker ===

impl ProviderCircuitBreaker {
    /// Creates a closed circuit breaker.
    pub(crate) fn new(clock: Clock) -> Self {
        let record = ProviderRecord {
            breaker: CircuitBreaker::new(POLICY),
            refused: Vec::new(),
            tried: VecDeque::new(),
        };
        Self {
            clock,
            record: Mutex::new(record),
        }
    }

    /// Records the outcome of a call.
    pub(crate) fn record(
        &self,
        outcome: CallOutcome,
        source: &CallSource,
    ) -> Option<BreakerTransition> {
        let mut record = self.record.lock();
        match outcome {
            CallOutcome::Answered => record.close().then_some(BreakerTransition::Closed),
            CallOutcome::ProviderFailed => record.provider_failed(self.clock.now()),
            CallOutcome::RecipientRefused => record.recipient_refused(self.clock.now(), source),
        }
    }

    /// Returns whether a call of this caller is allowed. In the half-open state the call becomes
    /// the probe.
    #[must_use]
    pub(crate) fn allows_call(&self, caller: &str) -> bool {
        let (mut record, now) = (self.record.lock(), self.clock.now());
        record.is_turn_of(caller, now) && record.breaker.allows_call(now)
    }

    /// Returns a probe that was not made: the next one is allowed at once.
    pub(crate) fn release_probe(&self) {
        self.record.lock().breaker.release_probe(self.clock.now());
    }

    /// Returns the state without changing it.
    pub(crate) fn state(&self) -> BreakerState {
        self.record.lock().breaker.state(self.clock.now())
    }
}

// === impl ProviderRecord ===

impl ProviderRecord {
    /// Closes the breaker and returns whether it was open.
    fn close(&mut self) -> bool {
        self.refused.clear();
        self.tried.clear();
        self.breaker.record_success()
    }

    fn provider_failed(&mut self, now: Timestamp) -> Option<BreakerTransition> {
        match self.breaker.record_failure(now) {
            FailureEffect::StillClosed(1) => Some(BreakerTransition::FirstFailure),
            FailureEffect::StillClosed(_) | FailureEffect::Ignored => None,
            FailureEffect::Opened(open_time) | FailureEffect::Reopened(open_time) => {
                self.refused.clear();
                self.tried.clear();
                Some(BreakerTransition::Opened(open_time))
            }
        }
    }

    fn recipient_refused(
        &mut self,
        now: Timestamp,
        source: &CallSource,
    ) -> Option<BreakerTransition> {
        if self.breaker.is_probing() {
            if self.tried.is_empty() {
                // The provider failed before and answers again; its failures no longer count.
                self.close();
                self.refused.push(source.clone());
                return Some(BreakerTransition::Closed);
            }
            self.tried.push_back(source.caller.clone());
            if self.tried.len() > MAX_TRIED_CALLERS {
                self.tried.pop_front();
            }
            return Some(BreakerTransition::Opened(self.breaker.reopen(now)));
        }
        if self.breaker.is_open() {
            return None;
        }
        // A refusal is an answer of the provider.
        self.breaker.record_success();
        let shares =
            |known: &CallSource| known.caller == source.caller || known.domain == source.domain;
        if !self.refused.iter().any(shares) {
            self.refused.push(source.clone());
        }
        if self.refused.len() < MAX_REFUSALS {
            return None;
        }
        let callers = self.refused.drain(..).map(|source| source.caller);
        self.tried.extend(callers);
        Some(BreakerTransition::Opened(self.breaker.open(now)))
    }

    /// Returns whether a call may be the probe, if the breaker is half-open. A caller whose
    /// recipients were refused yields to other callers for one open time.
    fn is_turn_of(&self, caller: &str, now: Timestamp) -> bool {
        let has_waited = |since: Timestamp| now >= since.plus(POLICY.open_time.initial);
        !self.tried.iter().any(|tried| tried == caller)
            || self.breaker.half_open_since(now).is_some_and(has_waited)
    }
}

#[cfg(test)]
mod tests;
