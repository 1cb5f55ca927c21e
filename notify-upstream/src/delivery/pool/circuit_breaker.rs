use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::delivery::provider::{FaultScope, ProviderRefusal};
use crate::delivery::retry::FailureClass;

/// A circuit breaker. Open, it keeps calls from a provider that fails them all: it opens after ten
/// failures in a row that are the provider's own, or ten refusals in a row of recipients each of
/// another domain and another caller; lets one probe through after a while; and closes with the
/// first call that works.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    clock: Clock,
    state: Mutex<FailureCounters>,
}

#[derive(Debug, Default)]
struct FailureCounters {
    /// Failures of the provider in a row.
    failures: u32,
    /// Recipients refused since a call last worked, no two of one caller or one domain.
    refused: Vec<CallSource>,
    open: Option<OpenPeriod>,
}

#[derive(Debug)]
struct OpenPeriod {
    until: Timestamp,
    /// From one probe to the next.
    wait: Duration,
    /// One was let through, and has not ended.
    probing: bool,
    cause: FaultScope,
    /// Callers whose recipients were refused: another caller has the next probe.
    tried: VecDeque<String>,
}

/// Who asked for a message, and where it goes: what two refusals must not share to be independent
/// of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallSource {
    /// The creator of the notification.
    pub(crate) caller: String,
    /// The domain, number or token of the recipient, see [`domain_of`](super::domain_of).
    pub(crate) domain: String,
}

/// How a call ended, as far as it says something about the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// The provider answered: it took the message, or refused that one for good.
    Answered,
    /// The provider failed.
    ProviderFailed,
    /// It refused for now what may be the recipient's fault.
    RecipientRefused,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// Any.
    Closed,
    /// One, to see whether it works again.
    HalfOpen,
    /// None for so long.
    Open(Duration),
}

/// What a call has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerTransition {
    /// The first failure of the provider after a call that worked.
    FirstFailure,
    /// It has opened for so long, or stays open after a probe.
    Opened(Duration),
    /// It has closed.
    Closed,
}

const MAX_FAILURES: u32 = 10;
const MAX_REFUSALS: usize = 10;
const MIN_OPEN_TIME: Duration = Duration::from_secs(2);
const MAX_OPEN_TIME: Duration = Duration::from_secs(60);
/// Most callers that let another one have the next probe.
const MAX_TRIED_CALLERS: usize = 64;

// === impl CallOutcome ===

impl CallOutcome {
    /// Classifies a call by its refusal; `None` for a message that was refused before any call,
    /// which says nothing about the provider.
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
    /// Closed.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    /// Records how a call ended. The wait grows with each probe that the provider fails, not with
    /// each call that was in flight when it opened.
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

    /// Takes the right to a call for this caller. While it is open, one has it at the end of each
    /// wait.
    #[must_use]
    pub(crate) fn allows_call(&self, caller: &str) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match &mut state.open {
            None => true,
            Some(open) if !open.may_probe(caller, now) => false,
            Some(open) => {
                // If nothing is heard of this one, there is another after the same wait.
                (open.until, open.probing) = (now.plus(open.wait), true);
                true
            }
        }
    }

    /// Gives back the right to a probe that was not made: the next may be made at once.
    pub(crate) fn release_probe(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = state.open.as_mut().filter(|open| open.probing) {
            (open.until, open.probing) = (self.clock.now(), false);
        }
    }

    /// Whether a call may be made; nothing is taken.
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
            // What kept the provider from answering is over.
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
                // It answers, after all.
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
    /// One whose recipients were refused lets others go first, for one wait.
    fn may_probe(&self, caller: &str, now: Timestamp) -> bool {
        let is_turn = self.cause == FaultScope::Provider
            || !self.tried.iter().any(|tried| tried == caller)
            || now >= self.until.plus(self.wait);
        now >= self.until && is_turn
    }
}

#[cfg(test)]
mod tests;
