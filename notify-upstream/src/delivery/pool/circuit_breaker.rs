//! The circuit breaker of a provider.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::delivery::provider::{FaultScope, ProviderRefusal};
use crate::delivery::retry::FailureClass;

/// A circuit breaker, which stops calls to a failing provider. It opens after ten consecutive
/// failures of the provider, or after ten consecutive refusals of recipients that differ in domain
/// and in caller. After a delay one call, the probe, is allowed (half-open); the first successful
/// call closes it.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    clock: Clock,
    state: Mutex<FailureCounters>,
}

#[derive(Debug, Default)]
struct FailureCounters {
    /// Number of consecutive failures of the provider.
    failures: u32,
    /// Recipients refused since the last successful call, each of a different caller and domain.
    refused: Vec<CallSource>,
    open: Option<OpenPeriod>,
}

#[derive(Debug)]
struct OpenPeriod {
    until: Timestamp,
    /// Delay between probes.
    wait: Duration,
    /// Whether a probe is in progress.
    probing: bool,
    cause: FaultScope,
    /// Callers whose recipients were refused. The next probe is reserved for other callers.
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

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// All calls are allowed.
    Closed,
    /// One call, the probe, is allowed.
    HalfOpen,
    /// No call is allowed for the given time.
    Open(Duration),
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

const MAX_FAILURES: u32 = 10;
const MAX_REFUSALS: usize = 10;
const MIN_OPEN_TIME: Duration = Duration::from_secs(2);
const MAX_OPEN_TIME: Duration = Duration::from_secs(60);
/// Maximum number of callers that the probe is not given to.
const MAX_TRIED_CALLERS: usize = 64;

// === impl CallOutcome ===

impl CallOutcome {
    /// Classifies a call by its refusal. Returns `None` for a message that was refused before the
    /// call, which says nothing about the provider.
    #[must_use]
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

// === impl CircuitBreaker ===

impl CircuitBreaker {
    /// Creates a closed circuit breaker.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    /// Records the outcome of a call. The delay grows with each failed probe, not with each call
    /// that was in flight when the circuit breaker opened.
    pub(crate) fn record(
        &self,
        outcome: CallOutcome,
        source: &CallSource,
    ) -> Option<BreakerTransition> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match outcome {
            CallOutcome::Answered => {
                let was_open = std::mem::take(&mut *state).open.is_some();
                was_open.then_some(BreakerTransition::Closed)
            }
            CallOutcome::ProviderFailed => state.provider_failed(now),
            CallOutcome::RecipientRefused => state.recipient_refused(now, source),
        }
    }

    /// Returns whether a call of this caller is allowed. In the half-open state the call becomes
    /// the probe.
    #[must_use]
    pub(crate) fn allows_call(&self, caller: &str) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match &mut state.open {
            None => true,
            Some(open) if !open.may_probe(caller, now) => false,
            Some(open) => {
                // If the probe has no outcome, the next is allowed after the same delay.
                (open.until, open.probing) = (now.plus(open.wait), true);
                true
            }
        }
    }

    /// Returns a probe that was not made: the next one is allowed at once.
    pub(crate) fn release_probe(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = state.open.as_mut().filter(|open| open.probing) {
            (open.until, open.probing) = (self.clock.now(), false);
        }
    }

    /// Returns the state without changing it.
    #[must_use]
    pub(crate) fn state(&self) -> BreakerState {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state
            .open
            .as_ref()
            .map(|open| open.until.since(self.clock.now()))
        {
            None => BreakerState::Closed,
            Some(Duration::ZERO) => BreakerState::HalfOpen,
            Some(left) => BreakerState::Open(left),
        }
    }
}

// === impl FailureCounters ===

impl FailureCounters {
    fn provider_failed(&mut self, now: Timestamp) -> Option<BreakerTransition> {
        match &mut self.open {
            Some(OpenPeriod { probing: false, .. }) => None,
            Some(open) => {
                open.cause = FaultScope::Provider;
                open.wait = (open.wait * 2).min(MAX_OPEN_TIME);
                (open.until, open.probing) = (now.plus(open.wait), false);
                Some(BreakerTransition::Opened(open.wait))
            }
            None => {
                self.failures += 1;
                if self.failures < MAX_FAILURES {
                    return (self.failures == 1).then_some(BreakerTransition::FirstFailure);
                }
                Some(self.open(now, FaultScope::Provider))
            }
        }
    }

    fn recipient_refused(
        &mut self,
        now: Timestamp,
        source: &CallSource,
    ) -> Option<BreakerTransition> {
        match &mut self.open {
            Some(OpenPeriod { probing: false, .. }) => None,
            // The provider answers again; the failures of before no longer count.
            Some(OpenPeriod {
                cause: FaultScope::Provider,
                ..
            }) => {
                *self = Self {
                    refused: vec![source.clone()],
                    ..Self::default()
                };
                Some(BreakerTransition::Closed)
            }
            Some(open) => {
                (open.until, open.probing) = (now.plus(open.wait), false);
                open.tried.push_back(source.caller.clone());
                if open.tried.len() > MAX_TRIED_CALLERS {
                    open.tried.pop_front();
                }
                Some(BreakerTransition::Opened(open.wait))
            }
            None => {
                // A refusal is an answer of the provider.
                self.failures = 0;
                let shares = |known: &CallSource| {
                    known.caller == source.caller || known.domain == source.domain
                };
                if !self.refused.iter().any(shares) {
                    self.refused.push(source.clone());
                }
                (self.refused.len() >= MAX_REFUSALS).then(|| self.open(now, FaultScope::Recipient))
            }
        }
    }

    fn open(&mut self, now: Timestamp, cause: FaultScope) -> BreakerTransition {
        let tried = std::mem::take(&mut self.refused)
            .into_iter()
            .map(|source| source.caller)
            .collect();
        self.open = Some(OpenPeriod {
            until: now.plus(MIN_OPEN_TIME),
            wait: MIN_OPEN_TIME,
            probing: false,
            cause,
            tried,
        });
        BreakerTransition::Opened(MIN_OPEN_TIME)
    }
}

// === impl OpenPeriod ===

impl OpenPeriod {
    /// Returns whether a call may be the probe. A caller whose recipients were refused yields to
    /// other callers for one delay.
    fn may_probe(&self, caller: &str, now: Timestamp) -> bool {
        let is_turn = self.cause == FaultScope::Provider
            || !self.tried.iter().any(|tried| tried == caller)
            || now >= self.until.plus(self.wait);
        now >= self.until && is_turn
    }
}

#[cfg(test)]
mod tests;
