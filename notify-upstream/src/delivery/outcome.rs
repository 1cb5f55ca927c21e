//! The outcomes of delivery attempts.

use std::time::Duration;

use crate::address::AddressHash;
use crate::delivery::provider::INTERNAL_ERROR;
use crate::delivery::retry::FailureClass;

/// The outcome of an attempt, with the version of the template that was used.
#[derive(Debug)]
pub(crate) struct AttemptReport {
    /// The outcome.
    pub(crate) outcome: AttemptOutcome,
    /// The version of the template, if the template was found.
    pub(crate) template_version: Option<u32>,
}

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum AttemptOutcome {
    /// A provider accepted the message.
    Sent(SentMessage),
    /// The attempt failed.
    Failed(AttemptFailure),
    /// The notification expired before the call.
    Expired,
    /// No call was made: all circuit breakers of the channel are open, the process is stopping, or
    /// the lease was no longer certain. The row is released.
    NotStarted,
    /// No call was made: the channel has a working provider, but none of those that can deliver to
    /// this address can be called now. The time until one may be; zero if it is unknown.
    CircuitOpen(Duration),
}

/// A message that a provider accepted.
#[derive(Debug)]
pub(crate) struct SentMessage {
    /// The name of the provider.
    pub(crate) provider: String,
    /// The response of the provider.
    pub(crate) detail: Option<String>,
    /// The hash of the address.
    pub(crate) address: Option<AddressHash>,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    /// The class, which decides about further attempts.
    pub(crate) class: FailureClass,
    /// The name of the provider, if one was called.
    pub(crate) provider: Option<String>,
    /// The stable code of the reason.
    pub(crate) code: String,
    /// The response of the provider, without addresses.
    pub(crate) detail: Option<String>,
    /// The minimum delay that the provider asked for.
    pub(crate) retry_after: Option<Duration>,
    /// The hash of the address that the provider was given.
    pub(crate) address: Option<Box<AddressHash>>,
}

// === impl AttemptFailure ===

impl AttemptFailure {
    /// Creates the failure of an internal error. It is retried.
    pub(crate) fn internal() -> Self {
        Self::of(FailureClass::Transient, INTERNAL_ERROR)
    }

    /// Creates the failure of a notification whose attempts are exhausted, although no result of
    /// one could be written.
    pub(crate) fn attempts_exhausted() -> Self {
        Self::permanent("attempts_exhausted")
    }

    /// Creates the failure of a notification for which no provider could be called within the retry
    /// window.
    pub(crate) fn circuit_open() -> Self {
        Self::of(FailureClass::Transient, "circuit_open")
    }

    pub(super) fn permanent(code: &str) -> Self {
        Self::of(FailureClass::Permanent, code)
    }

    pub(super) fn of(class: FailureClass, code: &str) -> Self {
        Self {
            class,
            provider: None,
            code: code.to_owned(),
            detail: None,
            retry_after: None,
            address: None,
        }
    }
}
