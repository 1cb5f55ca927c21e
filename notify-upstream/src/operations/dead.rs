//! Dead letters: notifications that failed permanently.

use postern_core::Clock;
use postern_core::clock::Timestamp;
use serde::Serialize;

use crate::address::Recipient;
use crate::notification::{NotificationId, OrderSequence};
use crate::store::{DeadFilter, DeadLetter, HistoryEntry, ResultRow, Store, StoreError};

/// A dead letter with what its history says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetterView {
    pub(crate) notification_id: String,
    /// The time of the failure.
    pub(crate) at: Timestamp,
    pub(crate) channel: &'static str,
    pub(crate) priority: &'static str,
    pub(crate) attempts: i32,
    /// The code of the reason.
    pub(crate) code: Option<String>,
    pub(crate) recipient_kind: Option<&'static str>,
    pub(crate) template: Option<String>,
    /// The provider of the last result that names one.
    pub(crate) provider: Option<String>,
    /// The last reply of a provider, without addresses.
    pub(crate) last_reply: Option<String>,
}

/// Returns dead letters with what their history says, oldest first.
///
/// # Errors
/// A store is unavailable or rejects the statement.
pub(crate) async fn list(
    store: &Store,
    filter: &DeadFilter,
) -> Result<Vec<DeadLetterView>, StoreError> {
    let letters = store.dead_letters(filter).await?;
    let ids: Vec<NotificationId> = letters.iter().map(|letter| letter.id).collect();
    let histories = store.histories(&ids).await?;
    let view = |letter: &DeadLetter| {
        let history = histories.get(&letter.id).map_or(&[][..], Vec::as_slice);
        DeadLetterView::of(letter, history)
    };
    Ok(letters.iter().map(view).collect())
}

/// Queues dead letters again, with all attempts and a new deadline, and returns their number.
///
/// # Errors
/// A store is unavailable or rejects the statement.
pub(crate) async fn replay(
    store: &Store,
    filter: &DeadFilter,
    clock: &Clock,
) -> Result<u64, StoreError> {
    store.synchronize(clock).await?;
    let count = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let first = OrderSequence::new(clock.clone()).orders(count);
    store.replay(filter, first, clock.now()).await
}

// === impl DeadLetterView ===

impl DeadLetterView {
    fn of(letter: &DeadLetter, history: &[HistoryEntry]) -> Self {
        let last = last_result(history);
        let recipient = letter.recipient.as_deref();
        let recipient: Option<Recipient> =
            recipient.and_then(|text| serde_json::from_str(text).ok());
        Self {
            notification_id: letter.id.to_string(),
            at: letter.at,
            channel: letter.lane.channel.as_str(),
            priority: letter.lane.priority.as_str(),
            attempts: letter.attempt,
            code: letter.code.clone(),
            recipient_kind: recipient.map(|recipient| recipient.kind()),
            template: letter.template.clone(),
            provider: last.and_then(|result| result.provider.clone()),
            last_reply: last.and_then(|result| result.detail.clone()),
        }
    }
}

/// Returns the last result that a provider gave, or else the last one.
fn last_result(history: &[HistoryEntry]) -> Option<&ResultRow> {
    let results = || {
        history.iter().rev().filter_map(|entry| match entry {
            HistoryEntry::Result(result) => Some(result),
            HistoryEntry::Receipt(_) | HistoryEntry::Waiting(_) => None,
        })
    };
    results()
        .find(|result| result.provider.is_some())
        .or_else(|| results().next())
}
