//! Everything that is known about a notification, and what follows from it.

use postern_common::clock::Timestamp;

use super::row::{ReceiptKind, Record, ResultKind, ResultRow};
use crate::address::{Address, AddressHash, Recipient};
use crate::notification::NotificationId;

/// Everything that is known about one notification.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// Which.
    pub(crate) id: NotificationId,
    /// What was asked for.
    pub(crate) record: Record,
    /// When it was to be sent.
    pub(crate) send_at: Option<Timestamp>,
    /// What happened since.
    pub(crate) trail: Vec<Trail>,
}

/// One thing that happened, or is the case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trail {
    /// From the history.
    Result(ResultRow),
    /// From the inbox.
    Receipt(
        ReceiptKind,
        Timestamp,
        String,
        Option<String>,
        Option<String>,
    ),
    /// It waits, or is being sent.
    Waiting(WaitingRow),
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

// === impl Snapshot ===

impl Snapshot {
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
        let trail = self.trail.iter().map(|trail| match trail {
            Trail::Result(result) => {
                optional(&result.provider) + optional(&result.code) + optional(&result.detail)
            }
            Trail::Receipt(_, _, provider, code, detail) => {
                provider.len() + optional(code) + optional(detail)
            }
            Trail::Waiting(_) => 0,
        });
        let fixed = size_of::<Self>() + self.trail.capacity() * size_of::<Trail>();
        fixed + record.sum::<usize>() + optional(addressee) + trail.sum::<usize>()
    }

    /// The addresses that it is known to have gone to, hashed: the one that was asked for, and
    /// those that an `actorId` was resolved to when a provider was called.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = AddressHash> {
        let asked = match serde_json::from_str(&self.record.recipient) {
            Ok(Recipient::Address(address)) => Some(Address::hash(&address)),
            Ok(Recipient::ActorId(_)) | Err(_) => None,
        };
        let tried = self.trail.iter().filter_map(|trail| match trail {
            Trail::Result(result) => result.address,
            Trail::Receipt(..) | Trail::Waiting(_) => None,
        });
        asked.into_iter().chain(tried)
    }

    /// Whether an attempt, since an operator last queued it again, may have reached a provider
    /// without our knowing it.
    #[must_use]
    pub(crate) fn is_in_doubt(&self, leaves_doubt: impl Fn(&str) -> bool) -> bool {
        let results = self.trail.iter().rev().filter_map(|trail| match trail {
            Trail::Result(result) => Some(result),
            Trail::Receipt(..) | Trail::Waiting(_) => None,
        });
        results
            .take_while(|result| result.kind != ResultKind::Replayed)
            .any(|result| {
                result.kind == ResultKind::Lost || result.code.as_deref().is_some_and(&leaves_doubt)
            })
    }

    /// When an operator last queued it again, and after how many attempts.
    #[must_use]
    pub(crate) fn replayed(&self) -> Option<(Timestamp, i32)> {
        self.trail.iter().rev().find_map(|trail| match trail {
            Trail::Result(result) if result.kind == ResultKind::Replayed => {
                Some((result.at, result.attempt))
            }
            Trail::Result(_) | Trail::Receipt(..) | Trail::Waiting(_) => None,
        })
    }

    /// What a provider has reported of it: proof that the provider has it, whatever we know
    /// ourselves.
    #[must_use]
    pub(crate) fn reported_by(&self) -> Option<&str> {
        self.trail.iter().find_map(|trail| match trail {
            Trail::Receipt(ReceiptKind::Failed, ..) | Trail::Result(_) | Trail::Waiting(_) => None,
            Trail::Receipt(_, _, provider, _, _) => Some(provider.as_str()),
        })
    }
}
