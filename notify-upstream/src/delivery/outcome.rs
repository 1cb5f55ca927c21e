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
