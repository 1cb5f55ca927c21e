//! What the checker reports.

use std::fmt;

/// A violated guarantee.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Violation {
    /// An accepted notification was not delivered.
    Lost {
        /// Id of the notification.
        id: String,
        /// What is known about it.
        detail: String,
    },
    /// One idempotency key has two notifications.
    KeyAcceptedTwice {
        /// The key.
        key: String,
    },
    /// More notifications were delivered than were submitted.
    Unaccounted {
        /// Number of delivered notifications that no response has named.
        delivered: usize,
        /// Number of keys without an accepted notification, to which they can belong.
        unanswered: usize,
    },
    /// A temporary token was exchanged twice.
    TokenExchangedTwice {
        /// Digest of the token.
        token: String,
    },
    /// A refresh token was rejected that had not been used before the grace period.
    RefreshRejected {
        /// Number of the sign-in.
        sign_in: u64,
    },
    /// More notifications of the same priority overtook one than can be in delivery.
    OutOfOrder {
        /// Id of the notification.
        id: String,
        /// Number of notifications that overtook it.
        overtaken_by: usize,
    },
    /// A notification was delivered more often than faults explain.
    TooManyDeliveries {
        /// Id of the notification.
        id: String,
        /// Number of deliveries.
        deliveries: usize,
        /// Number of faults that affected it.
        faults: usize,
    },
    /// A response belongs to another request.
    WrongResponse {
        /// The request.
        request: String,
        /// Expected and received id.
        detail: String,
    },
    /// A process that was asked to stop ended with an error.
    UncleanExit {
        /// Name of the process.
        process: String,
    },
    /// Requests of a kind failed although no fault was left.
    NotRecovered {
        /// The kind of request.
        request: String,
    },
    /// The history has too few successful requests to prove anything.
    TooLittle {
        /// What is missing.
        detail: String,
    },
}

// === impl Violation ===

impl fmt::Display for Violation {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { id, detail } => {
                write!(to, "accepted notification {id} was lost: {detail}")
            }
            Self::KeyAcceptedTwice { key } => write!(to, "key {key} has two notifications"),
            Self::Unaccounted {
                delivered,
                unanswered,
            } => write!(
                to,
                "{delivered} notifications were delivered that no response has named, for {unanswered} unanswered keys"
            ),
            Self::TokenExchangedTwice { token } => {
                write!(to, "temporary token {token} was exchanged twice")
            }
            Self::RefreshRejected { sign_in } => {
                write!(to, "a new refresh token of sign-in {sign_in} was rejected")
            }
            Self::OutOfOrder { id, overtaken_by } => {
                write!(
                    to,
                    "notification {id} was overtaken by {overtaken_by} of its priority"
                )
            }
            Self::TooManyDeliveries {
                id,
                deliveries,
                faults,
            } => write!(
                to,
                "notification {id} was delivered {deliveries} times, with {faults} faults"
            ),
            Self::WrongResponse { request, detail } => {
                write!(to, "{request} was answered for another: {detail}")
            }
            Self::UncleanExit { process } => write!(to, "{process} did not stop cleanly"),
            Self::NotRecovered { request } => {
                write!(to, "{request} does not succeed after the last fault")
            }
            Self::TooLittle { detail } => write!(to, "nothing is proven: {detail}"),
        }
    }
}
