//! What the checker reports.

use std::fmt;

/// A violated guarantee.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Violation {
    /// The guarantee.
    pub kind: Kind,
    /// What has happened, with the id, key or token digest by which the history is searched.
    pub detail: String,
}

/// A kind of violation.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// An accepted notification was not delivered.
    Lost,
    /// One idempotency key has two notifications.
    KeyAcceptedTwice,
    /// More notifications were delivered than were submitted.
    Unaccounted,
    /// A temporary token was exchanged twice.
    TokenExchangedTwice,
    /// A refresh token was rejected that had not been used before the grace period.
    RefreshRejected,
    /// More notifications of the same priority overtook one than can be in delivery.
    OutOfOrder,
    /// A notification was delivered more often than faults explain.
    TooManyDeliveries,
    /// A response belongs to another request.
    WrongResponse,
    /// A process that was asked to stop ended with an error.
    UncleanExit,
    /// Requests of a kind failed although no fault was left.
    NotRecovered,
    /// The history has too few successful requests to prove anything.
    TooLittle,
}

impl fmt::Display for Violation {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.detail)
    }
}
