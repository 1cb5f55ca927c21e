use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::delivery::provider::{FaultScope, Refusal};
use crate::delivery::retry::Class;

/// A circuit breaker. Open, it keeps calls from a provider that fails them all: it opens after ten
/// failures in a row that are the provider's own, or ten refusals in a row of recipients each of
/// another domain and another caller; lets one probe through after a while; and closes with the
/// first call that works.
#[derive(Debug)]
pub(crate) struct Breaker {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures of the provider in a row.
    failures: u32,
    /// Recipients refused since a call last worked, no two of one caller or one domain.
    refused: Vec<Source>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
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
pub(crate) struct Source {
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
pub(crate) enum Standing {
    /// Any.
    Closed,
    /// One, to see whether it works again.
    Due,
    /// None for so long.
    Open(Duration),
}

/// What a call has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The first failure of the provider after a call that worked.
    FirstFailure,
    /// It has opened for so long, or stays open after a probe.
    Opened(Duration),
    /// It has closed.
    Closed,
}

const FAILURES: u32 = 10;
const REFUSALS: usize = 10;
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Most callers that let another one have the next probe.
const MAX_TRIED: usize = 64;

// === impl CallOutcome ===

impl CallOutcome {
    /// Classifies a call by its refusal; `None` for a message that was refused before any call,
    /// which says nothing about the provider.
    #[must_use]
    pub(crate) fn of(refusal: Option<&Refusal>) -> Option<Self> {
        match refusal {
            Some(Refusal {
                scope: FaultScope::NotSent,
                ..
            }) => None,
            None
            | Some(Refusal {
                class: Class::Permanent,
                ..
            }) => Some(Self::Answered),
            Some(Refusal {
                scope: FaultScope::Provider,
                ..
            }) => Some(Self::ProviderFailed),
            Some(Refusal {
                scope: FaultScope::Recipient,
                ..
            }) => Some(Self::RecipientRefused),
        }
    }
}

// === impl Breaker ===

impl Breaker {
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
    pub(crate) fn record(&self, outcome: CallOutcome, source: &Source) -> Option<Change> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match outcome {
            CallOutcome::Answered => {
                let was_open = std::mem::take(&mut *state).open.is_some();
                was_open.then_some(Change::Closed)
            }
            CallOutcome::ProviderFailed => state.provider_failed(now),
            CallOutcome::RecipientRefused => state.recipient_refused(now, source),
        }
    }

    /// Takes the right to a call for this caller. While it is open, one has it at the end of each
    /// wait.
    #[must_use]
    pub(crate) fn lets_through(&self, caller: &str) -> bool {
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
    pub(crate) fn return_probe(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = state.open.as_mut().filter(|open| open.probing) {
            (open.until, open.probing) = (self.clock.now(), false);
        }
    }

    /// Whether a call may be made; nothing is taken.
    #[must_use]
    pub(crate) fn standing(&self) -> Standing {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state
            .open
            .as_ref()
            .map(|open| open.until.since(self.clock.now()))
        {
            None => Standing::Closed,
            Some(Duration::ZERO) => Standing::Due,
            Some(left) => Standing::Open(left),
        }
    }
}

// === impl State ===

impl State {
    fn provider_failed(&mut self, now: Timestamp) -> Option<Change> {
        match &mut self.open {
            Some(Open { probing: false, .. }) => None,
            Some(open) => {
                open.cause = FaultScope::Provider;
                open.wait = (open.wait * 2).min(LONGEST_WAIT);
                (open.until, open.probing) = (now.plus(open.wait), false);
                Some(Change::Opened(open.wait))
            }
            None => {
                self.failures += 1;
                if self.failures < FAILURES {
                    return (self.failures == 1).then_some(Change::FirstFailure);
                }
                Some(self.open(now, FaultScope::Provider))
            }
        }
    }

    fn recipient_refused(&mut self, now: Timestamp, source: &Source) -> Option<Change> {
        match &mut self.open {
            Some(Open { probing: false, .. }) => None,
            // What kept the provider from answering is over.
            Some(Open {
                cause: FaultScope::Provider,
                ..
            }) => {
                *self = Self {
                    refused: vec![source.clone()],
                    ..Self::default()
                };
                Some(Change::Closed)
            }
            Some(open) => {
                (open.until, open.probing) = (now.plus(open.wait), false);
                open.tried.push_back(source.caller.clone());
                if open.tried.len() > MAX_TRIED {
                    open.tried.pop_front();
                }
                Some(Change::Opened(open.wait))
            }
            None => {
                // It answers, after all.
                self.failures = 0;
                let shares =
                    |known: &Source| known.caller == source.caller || known.domain == source.domain;
                if !self.refused.iter().any(shares) {
                    self.refused.push(source.clone());
                }
                (self.refused.len() >= REFUSALS).then(|| self.open(now, FaultScope::Recipient))
            }
        }
    }

    fn open(&mut self, now: Timestamp, cause: FaultScope) -> Change {
        let tried = std::mem::take(&mut self.refused)
            .into_iter()
            .map(|source| source.caller)
            .collect();
        self.open = Some(Open {
            until: now.plus(FIRST_WAIT),
            wait: FIRST_WAIT,
            probing: false,
            cause,
            tried,
        });
        Change::Opened(FIRST_WAIT)
    }
}

// === impl Open ===

impl Open {
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
