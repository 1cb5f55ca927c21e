//! The input and output types of the store.

use postern_core::clock::Timestamp;
use serde::Serialize;

use crate::address::AddressHash;
use crate::notification::{Channel, Lane, NotificationId, Order, stored_codes};

/// Returns a text on one line of at most `max_bytes`: databases refuse NUL.
pub(crate) fn printable(text: &str, max_bytes: usize) -> String {
    let text = &text[..text.floor_char_boundary(max_bytes)];
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.collect::<String>().trim().to_owned()
}

/// A notification to be stored.
#[derive(Clone, Debug)]
pub(crate) struct NewNotification {
    pub id: NotificationId,
    /// The position in the lane.
    pub order: Order,
    pub record: Record,
    /// The scheduled time. Until then the row is among the delayed ones.
    pub send_at: Option<Timestamp>,
    /// The idempotency key and the fingerprint of the request.
    pub key: Option<(String, [u8; 32])>,
}

/// An accepted request. Never updated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub lane: Lane,
    /// The caller: `service:{service id}` or `user:{issuer}|{subject}`.
    pub creator: String,
    /// The user whose `actorId` was addressed.
    pub addressee: Option<String>,
    pub template: String,
    /// The version of the template at acceptance.
    pub template_version: i32,
    pub locale: String,
    /// The recipient, as JSON.
    pub recipient: String,
    /// The variables, as a JSON object.
    pub variables: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub request_id: Option<String>,
    /// The W3C `traceparent` of the span that accepted the request.
    pub trace_context: Option<String>,
}

/// The first request with an idempotency key: its notification, its fingerprint and the time of its
/// acceptance.
pub(crate) type IdempotencyRecord = (NotificationId, Vec<u8>, Timestamp);

/// The parameters of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub lane: Lane,
    /// The maximum number of rows.
    pub limit: usize,
    /// The number of rows of users, if they wait, before those of services.
    pub for_users: usize,
    /// The users whose rows are left out.
    pub full: &'a [String],
    /// The user after whom the turns of users continue.
    pub last_user: &'a str,
    pub worker: i64,
    /// The dead workers whose rows may be taken over.
    pub dead: &'a [i64],
    /// The time of the claim.
    pub now: Timestamp,
}

/// A claimed row. The claim is valid until the fence advances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub id: NotificationId,
    /// The position in the lane.
    pub order: Order,
    pub fence: i32,
    /// The number of the attempt that the claim starts.
    pub attempt: i32,
    /// The start of the retry window: acceptance, or the scheduled time.
    pub wanted_at: Timestamp,
    pub record: Record,
}

/// A result to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub id: NotificationId,
    pub fence: i32,
    pub worker: i64,
    /// The lane of a further attempt.
    pub lane: Lane,
    /// The caller that created the notification.
    pub creator: String,
    pub result: ResultRow,
    /// The further processing of the notification.
    pub next: Next,
}

/// The further processing of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// None: the notification is complete.
    Done,
    /// None: the notification is a dead letter.
    Dead,
    /// Another attempt at this time.
    Retry(Timestamp),
    /// The same attempt at this time. No call was made and no result is recorded.
    Later(Timestamp),
}

/// A result in the history of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResultRow {
    pub attempt: i32,
    pub kind: ResultKind,
    /// The start of the attempt, if a call was made.
    pub began_at: Option<Timestamp>,
    pub at: Timestamp,
    pub next_at: Option<Timestamp>,
    pub provider: Option<String>,
    pub code: Option<String>,
    /// The response of the provider, without addresses.
    pub detail: Option<String>,
    /// The hash of the address that the provider was given.
    pub address: Option<AddressHash>,
    pub template_version: Option<i32>,
}

/// The kind of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultKind {
    /// The attempt failed and is repeated.
    Retrying,
    /// A provider accepted the message.
    Sent,
    /// The notification failed permanently.
    Failed,
    /// The notification expired before it could be sent.
    Expired,
    /// The caller cancelled the notification.
    Cancelled,
    /// An operator queued the notification again.
    Replayed,
    /// The worker died during the attempt; it is unknown whether the provider accepted the message.
    Lost,
}

/// Maximum number of stored reports of one notification. Beyond it only the first of each kind is
/// stored.
pub(crate) const MAX_RECEIPTS_PER_NOTIFICATION: i64 = 32;

/// A delivery report of a provider or mail server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderReport {
    pub(crate) event_id: String,
    /// The notification, which may be unknown, or `None` if the event concerns none of this service.
    pub(crate) id: Option<NotificationId>,
    pub(crate) kind: ReceiptKind,
    /// The time of the event, according to the provider.
    pub(crate) at: Timestamp,
    pub(crate) code: Option<String>,
    /// The description of the provider, without addresses.
    pub(crate) detail: Option<String>,
    /// An address that is proven not to exist.
    pub(crate) dead_address: Option<String>,
    /// The address of a recipient who complained or unsubscribed, for the reason in `code`.
    pub(crate) objector: Option<AddressHash>,
}

/// The state reported by a provider, in ascending rank. The highest reported rank counts, in
/// whatever order reports arrive. A hard bounce may follow DELIVERED; other failures do not revoke
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReceiptKind {
    /// In transit.
    Sent,
    /// Delayed, and still in transit.
    Deferred,
    /// Not delivered.
    Failed,
    Delivered,
    /// Rejected permanently by the recipient's system.
    Bounced,
}

/// The state of the workers after a renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseRenewal {
    /// The workers whose leases were renewed.
    pub(crate) renewed: Vec<i64>,
    /// Workers whose leases have expired.
    pub(crate) dead: Vec<i64>,
    /// The time of the database, unless no worker is registered.
    pub(crate) now: Option<Timestamp>,
}

/// A part of a list, newest first. What is given restricts it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListQuery {
    pub(crate) creator: Option<String>,
    /// The recipient, see [`recipient_key`](crate::address::recipient_key).
    pub(crate) recipient: Option<i64>,
    /// An actor whose notifications of other creators are listed as well.
    pub(crate) addressee: Option<String>,
    /// The request. There is no index: the range of ids must be short.
    pub(crate) request: Option<String>,
    /// Only ids from this one.
    pub(crate) from: NotificationId,
    /// Only ids below this one.
    pub(crate) before: NotificationId,
    pub(crate) limit: usize,
}

/// The signed part of a webhook whose signature does not cover the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookToken {
    /// The random token of the provider.
    pub(crate) token: String,
    /// The SHA-256 of the body.
    pub(crate) body: [u8; 32],
}

/// An entry of a suppression list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SuppressionEntry {
    /// List and channel, see [`SuppressionList::kind`].
    ///
    /// [`SuppressionList::kind`]: crate::delivery::suppression::SuppressionList::kind
    pub(crate) kind: i16,
    /// SHA-256 of the address.
    pub(crate) address: Vec<u8>,
    /// The category that the address has left; empty if it is suppressed.
    pub(crate) category: String,
    /// The code of the reason.
    pub(crate) reason: String,
    pub(crate) at: Timestamp,
}

/// A selection of suppression entries.
#[derive(Clone, Debug)]
pub(crate) struct SuppressionQuery {
    /// The kinds, see [`SuppressionEntry`].
    pub(crate) kinds: Vec<i16>,
    pub(crate) address: Option<AddressHash>,
    /// Only entries behind this one, in the order of the result: time, kind, address and category.
    pub(crate) after: Option<(Timestamp, i16, AddressHash, String)>,
    pub(crate) limit: i64,
}

/// A selection of dead letters.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadFilter {
    pub(crate) id: Option<NotificationId>,
    pub(crate) code: Option<String>,
    /// Failed at this time or later.
    pub(crate) since: Option<Timestamp>,
    /// Failed before this time.
    pub(crate) before: Option<Timestamp>,
    /// The provider of the last result that names one.
    pub(crate) provider: Option<String>,
    pub(crate) template: Option<String>,
    pub(crate) channel: Option<Channel>,
    pub(crate) limit: i64,
}

/// A notification that failed permanently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    pub(crate) id: NotificationId,
    pub(crate) lane: Lane,
    pub(crate) attempt: i32,
    pub(crate) at: Timestamp,
    pub(crate) code: Option<String>,
    pub(crate) template: Option<String>,
    /// The recipient, as JSON.
    pub(crate) recipient: Option<String>,
}

/// A provider that an operator has paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ProviderPause {
    #[serde(skip)]
    pub(crate) provider: String,
    pub(crate) operator: String,
    pub(crate) at: Timestamp,
    pub(crate) reason: Option<String>,
}

stored_codes!(ResultKind {
    Retrying = 1,
    Sent = 2,
    Failed = 3,
    Expired = 4,
    Cancelled = 5,
    Replayed = 6,
    Lost = 7,
});

stored_codes!(ReceiptKind {
    Sent = 1,
    Deferred = 2,
    Delivered = 3,
    Failed = 4,
    Bounced = 5,
});

// === impl DeadFilter ===

impl DeadFilter {
    /// Returns the lanes of the channel, as they are stored.
    pub(super) fn lanes(&self) -> Option<Vec<i16>> {
        let lanes = self.channel.map(Lane::of);
        lanes.map(|lanes| lanes.map(Lane::code).into())
    }
}

// === impl ResultRow ===

impl ResultRow {
    /// Creates the result of something other than a call to a provider.
    pub(crate) fn event(attempt: i32, kind: ResultKind, at: Timestamp) -> Self {
        Self {
            attempt,
            kind,
            began_at: None,
            at,
            next_at: None,
            provider: None,
            code: None,
            detail: None,
            address: None,
            template_version: None,
        }
    }
}

// === impl Next ===

impl Next {
    /// Returns whether the result is recorded in the history.
    pub(crate) fn is_recorded(self) -> bool {
        !matches!(self, Self::Later(_))
    }

    /// Returns when the next attempt is due.
    pub(crate) fn due(self) -> Option<Timestamp> {
        match self {
            Self::Retry(at) | Self::Later(at) => Some(at),
            Self::Done | Self::Dead => None,
        }
    }
}
