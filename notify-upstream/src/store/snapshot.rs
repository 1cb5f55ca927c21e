//! All stored information about a notification, and conclusions from it.

use postern_core::clock::Timestamp;

use super::row::{ReceiptKind, Record, ResultKind, ResultRow};
use crate::address::{Address, AddressHash, Recipient};
use crate::notification::NotificationId;

/// All stored information about one notification.
#[derive(Clone, Debug)]
pub(crate) struct NotificationSnapshot {
    pub(crate) id: NotificationId,
    pub(crate) record: Record,
    pub(crate) send_at: Option<Timestamp>,
    /// The results and receipts, and the row that waits.
    pub(crate) history: Vec<HistoryEntry>,
}

/// An entry of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HistoryEntry {
    /// The result of an attempt.
    Result(ResultRow),
    /// A delivery report.
    Receipt(ReceiptEntry),
    /// The row of a notification that waits or is in delivery.
    Waiting(WaitingRow),
}

/// A delivery report of a provider, as read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptEntry {
    pub(crate) kind: ReceiptKind,
    /// The time of the event, according to the provider.
    pub(crate) at: Timestamp,
    pub(crate) provider: String,
    pub(crate) code: Option<String>,
    /// The description of the provider, without addresses.
    pub(crate) detail: Option<String>,
}

/// A replay of a failed notification by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) at: Timestamp,
    pub(crate) attempts_before: i32,
}

/// A row of the queue or of the delayed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingRow {
    /// The number of attempts started.
    pub(crate) attempt: i32,
    /// The start of the current attempt; `None` while the row waits.
    pub(crate) since: Option<Timestamp>,
    /// The due time of a delayed row.
    pub(crate) due: Option<Timestamp>,
}

// === impl HistoryEntry ===

impl HistoryEntry {
    /// Returns the result of an attempt, if it is one.
    pub(crate) fn result(&self) -> Option<&ResultRow> {
        match self {
            Self::Result(result) => Some(result),
            Self::Receipt(_) | Self::Waiting(_) => None,
        }
    }
}

// === impl NotificationSnapshot ===

impl NotificationSnapshot {
    /// Returns the hashes of the addresses that the notification is known to have been sent to: the
    /// requested address, and those that an `actorId` was resolved to when a provider was called.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = AddressHash> {
        let asked = serde_json::from_str(&self.record.recipient).ok();
        let asked = asked.and_then(|recipient: Recipient| recipient.address().map(Address::hash));
        let tried = self.results().filter_map(|result| result.address);
        asked.into_iter().chain(tried)
    }

    /// Returns the time of the last replay by an operator and the number of attempts before it.
    pub(crate) fn last_replay(&self) -> Option<Replay> {
        let mut replays = self.results().rev();
        let replay = replays.find(|result| result.kind == ResultKind::Replayed)?;
        Some(Replay {
            at: replay.at,
            attempts_before: replay.attempt,
        })
    }

    /// Returns the results of attempts, oldest first.
    pub(crate) fn results(&self) -> impl DoubleEndedIterator<Item = &ResultRow> {
        self.history.iter().filter_map(HistoryEntry::result)
    }

    /// Returns the provider of a report that proves that the provider has the message.
    pub(crate) fn reporting_provider(&self) -> Option<&str> {
        self.history.iter().find_map(|entry| match entry {
            HistoryEntry::Receipt(ReceiptEntry { kind, provider, .. }) => {
                (*kind != ReceiptKind::Failed).then_some(&**provider)
            }
            HistoryEntry::Result(_) | HistoryEntry::Waiting(_) => None,
        })
    }
}
