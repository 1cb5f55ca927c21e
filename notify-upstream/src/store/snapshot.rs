//! Everything that is known about a notification, and what follows from it.

use postern_common::clock::Timestamp;

use super::row::{ReceiptKind, Record, ResultKind, ResultRow};
use crate::address::{Address, AddressHash, Recipient};
use crate::notification::NotificationId;

/// Everything that is known about one notification.
#[derive(Clone, Debug)]
pub(crate) struct NotificationSnapshot {
    /// Which.
    pub(crate) id: NotificationId,
    /// What was asked for.
    pub(crate) record: Record,
    /// When it was to be sent.
    pub(crate) send_at: Option<Timestamp>,
    /// What happened since.
    pub(crate) history: Vec<HistoryEntry>,
}

/// One thing that happened, or is the case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HistoryEntry {
    /// From the history.
    Result(ResultRow),
    /// From the inbox.
    Receipt(ReceiptEntry),
    /// It waits, or is being sent.
    Waiting(WaitingRow),
}

/// A delivery report of a provider, as read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptEntry {
    /// The state that was reported.
    pub(crate) kind: ReceiptKind,
    /// The time of the event, according to the provider.
    pub(crate) at: Timestamp,
    /// The name of the provider.
    pub(crate) provider: String,
    /// The code of the reason.
    pub(crate) code: Option<String>,
    /// The description of the provider, without addresses.
    pub(crate) detail: Option<String>,
}

/// A queue row or a delayed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingRow {
    /// Attempts begun so far.
    pub(crate) attempt: i32,
    /// When the present attempt began; `None` while it waits.
    pub(crate) since: Option<Timestamp>,
    /// When it is due, if it waits for a time.
    pub(crate) due: Option<Timestamp>,
}

// === impl NotificationSnapshot ===

impl NotificationSnapshot {
    /// About how many bytes of memory it takes.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let Record {
            creator,
            addressee,
            template,
            locale,
            recipient,
            variables,
            ..
        } = &self.record;
        let record = [creator, template, locale, recipient, variables]
            .into_iter()
            .map(String::len);
        let entry = self.history.iter().map(|entry| match entry {
            HistoryEntry::Result(result) => {
                optional(&result.provider) + optional(&result.code) + optional(&result.detail)
            }
            HistoryEntry::Receipt(receipt) => {
                receipt.provider.len() + optional(&receipt.code) + optional(&receipt.detail)
            }
            HistoryEntry::Waiting(_) => 0,
        });
        let fixed = size_of::<Self>() + self.history.capacity() * size_of::<HistoryEntry>();
        fixed + record.sum::<usize>() + optional(addressee) + entry.sum::<usize>()
    }

    /// The addresses that it is known to have gone to, hashed: the one that was asked for, and
    /// those that an `actorId` was resolved to when a provider was called.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = AddressHash> {
        let asked = match serde_json::from_str(&self.record.recipient) {
            Ok(Recipient::Address(address)) => Some(Address::hash(&address)),
            Ok(Recipient::ActorId(_)) | Err(_) => None,
        };
        let tried = self.history.iter().filter_map(|entry| match entry {
            HistoryEntry::Result(result) => result.address,
            HistoryEntry::Receipt(_) | HistoryEntry::Waiting(_) => None,
        });
        asked.into_iter().chain(tried)
    }

    /// Whether an attempt, since an operator last queued it again, may have reached a provider
    /// without our knowing it.
    #[must_use]
    pub(crate) fn has_ambiguous_attempt(&self, is_ambiguous: impl Fn(&str) -> bool) -> bool {
        let results = self.history.iter().rev().filter_map(|entry| match entry {
            HistoryEntry::Result(result) => Some(result),
            HistoryEntry::Receipt(_) | HistoryEntry::Waiting(_) => None,
        });
        results
            .take_while(|result| result.kind != ResultKind::Replayed)
            .any(|result| {
                result.kind == ResultKind::Lost || result.code.as_deref().is_some_and(&is_ambiguous)
            })
    }

    /// When an operator last queued it again, and after how many attempts.
    #[must_use]
    pub(crate) fn replayed(&self) -> Option<(Timestamp, i32)> {
        self.history.iter().rev().find_map(|entry| match entry {
            HistoryEntry::Result(result) if result.kind == ResultKind::Replayed => {
                Some((result.at, result.attempt))
            }
            HistoryEntry::Result(_) | HistoryEntry::Receipt(_) | HistoryEntry::Waiting(_) => None,
        })
    }

    /// What a provider has reported of it: proof that the provider has it, whatever we know
    /// ourselves.
    #[must_use]
    pub(crate) fn reported_by(&self) -> Option<&str> {
        self.history.iter().find_map(|entry| match entry {
            HistoryEntry::Receipt(receipt) => {
                (receipt.kind != ReceiptKind::Failed).then_some(receipt.provider.as_str())
            }
            HistoryEntry::Result(_) | HistoryEntry::Waiting(_) => None,
        })
    }
}
