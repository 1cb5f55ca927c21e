//! The outcomes of delivery attempts.

use std::time::Duration;

use crate::address::AddressHash;
use crate::delivery::provider::ProviderRefusal;
use crate::delivery::retry::FailureClass;

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum AttemptOutcome {
    /// A provider accepted the message.
    Sent(SentMessage),
    Failed(AttemptFailure),
    /// The notification expired before the call.
    Expired,
    /// No call was made: all circuit breakers of the channel are open, the process is stopping, or
    /// the lease was no longer certain. The row is released.
    NotStarted,
    /// No call was made: no provider that can deliver to this address can be called now. Their circuit
    /// breakers are open, they are paused, or calls exhaust the share of the caller or of the push
    /// service. The time until the first breaker admits a probe; zero if it is unknown.
    CircuitOpen(Duration),
}

/// A message that a provider accepted.
#[derive(Debug)]
pub(crate) struct SentMessage {
    pub(crate) provider: String,
    pub(crate) detail: Option<String>,
    pub(crate) address: Option<AddressHash>,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    /// The refusal of the provider, or the reason for which none was called.
    pub(crate) refusal: ProviderRefusal,
    /// The name of the provider, if one was called.
    pub(crate) provider: Option<String>,
    /// The hash of the address that the provider was given.
    pub(crate) address: Option<Box<AddressHash>>,
}

// === impl AttemptOutcome ===

impl From<AttemptFailure> for AttemptOutcome {
    fn from(failure: AttemptFailure) -> Self {
        Self::Failed(failure)
    }
}

// === impl AttemptFailure ===

impl AttemptFailure {
    /// Creates the failure of a notification for another reason than the refusal of a provider.
    pub(crate) fn of(class: FailureClass, code: &str) -> Self {
        Self {
            refusal: ProviderRefusal {
                class,
                ..ProviderRefusal::not_sent(code)
            },
            provider: None,
            address: None,
        }
    }

    pub(crate) fn permanent(code: &str) -> Self {
        Self::of(FailureClass::Permanent, code)
    }

    pub(crate) fn transient(code: &str) -> Self {
        Self::of(FailureClass::Transient, code)
    }
}
