//! What goes into the stores and comes out of them.

use postern_common::clock::Timestamp;

use crate::address::AddressHash;
use crate::notification::{Lane, NotificationId, Order, stored_codes};

/// One accepted notification on its way in.
#[derive(Clone, Debug)]
pub struct NewNotification {
    /// What it is called.
    pub id: NotificationId,
    /// Its place in the lane.
    pub order: Order,
    /// What was asked for.
    pub record: Record,
    /// Not before this instant; it waits among the delayed rows.
    pub send_at: Option<Timestamp>,
    /// The worker that has a permit for it already: born leased.
    pub worker: Option<i64>,
    /// Idempotency key and fingerprint of the request.
    pub key: Option<(String, [u8; 32])>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it queued first.
    pub lane: Lane,
    /// Who asked.
    pub creator: String,
    /// The user whom it is for, when addressed by `actorId`.
    pub addressee: Option<String>,
    /// The template's name.
    pub template: String,
    /// The template's version at acceptance.
    pub template_version: i32,
    /// The language that was chosen.
    pub locale: String,
    /// A [`crate::address::Recipient`] as JSON.
    pub recipient: String,
    /// A JSON object.
    pub variables: String,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// Of no interest from then on.
    pub expires_at: Option<Timestamp>,
}

/// What an idempotency key was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyRecord {
    /// The notification.
    pub(crate) id: NotificationId,
    /// Of the request.
    pub(crate) fingerprint: Vec<u8>,
    /// When it was accepted.
    pub(crate) created_at: Timestamp,
}

/// A wish for rows.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// From which lane.
    pub lane: Lane,
    /// Beyond this order.
    pub after: Order,
    /// How many at most.
    pub limit: i64,
    /// For whom.
    pub worker: i64,
    /// WorkerRegistry whose rows may be taken over.
    pub dead: &'a [i64],
    /// The time of the claim.
    pub now: Timestamp,
}

/// A row that is ours until its fence moves on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The notification.
    pub id: NotificationId,
    /// Its place.
    pub order: Order,
    /// The number of this claim.
    pub fence: i32,
    /// The number of the attempt that the claim begins.
    pub attempt: i32,
    /// Whether a dead worker held it: what became of the attempt before is not known.
    pub lost: bool,
    /// From when the time for its attempts counts: its acceptance, or the instant that it was
    /// scheduled for.
    pub wanted_at: Timestamp,
    /// What was asked for.
    pub record: Record,
}

/// The end of an attempt, or of the whole.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The notification.
    pub id: NotificationId,
    /// The fence of the claim.
    pub fence: i32,
    /// The worker that claimed.
    pub worker: i64,
    /// The lane it stood in.
    pub lane: Lane,
    /// What happened.
    pub result: ResultRow,
    /// What comes next.
    pub next: Next,
}

/// What comes after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Done,
    /// Nothing, and it is kept as a dead letter.
    Dead,
    /// Another attempt at this instant.
    Retry(Timestamp),
    /// The same attempt at this instant: none was made, and nothing is put down.
    Later(Timestamp),
}

/// One line of a notification's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRow {
    /// The number of the attempt.
    pub attempt: i32,
    /// What happened.
    pub kind: ResultKind,
    /// When the attempt began, if there was one.
    pub began_at: Option<Timestamp>,
    /// When it happened.
    pub at: Timestamp,
    /// When the next attempt is due.
    pub next_at: Option<Timestamp>,
    /// The provider that was called.
    pub provider: Option<String>,
    /// Our word for the reason.
    pub code: Option<String>,
    /// The provider's words, without addresses.
    pub detail: Option<String>,
    /// The address that a provider was given, hashed.
    pub address: Option<AddressHash>,
    /// The version of the template that the attempt was made with.
    pub template_version: Option<i32>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// An attempt failed and another follows.
    Retrying,
    /// The provider took it.
    Sent,
    /// It failed for good.
    Failed,
    /// Its time was over before it could be sent.
    Expired,
    /// The caller took it back.
    Cancelled,
    /// An operator queued it again.
    Replayed,
    /// The worker died in the attempt: whether it reached the provider is not known.
    Lost,
}

/// Most stored reports of one notification. Beyond it only the first of each kind is stored.
pub(crate) const MAX_RECEIPTS_PER_NOTIFICATION: i64 = 32;

/// A report from a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Which provider.
    pub(crate) provider: String,
    /// The provider's name for the event.
    pub(crate) event_id: String,
    /// The notification that it is about; it may not be known yet.
    pub(crate) id: NotificationId,
    /// What it says.
    pub(crate) kind: ReceiptKind,
    /// When it happened.
    pub(crate) at: Timestamp,
    /// When we heard of it.
    pub(crate) received_at: Timestamp,
    /// Our word for the reason.
    pub(crate) code: Option<String>,
    /// The provider's words, without addresses.
    pub(crate) detail: Option<String>,
}

/// What a provider's report says, in rising rank: the highest that was heard counts, whatever came
/// when. A hard bounce may follow DELIVERED; any other failure does not take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReceiptKind {
    /// It is on its way.
    Sent,
    /// It is late, and still on its way.
    Deferred,
    /// It will not arrive.
    Failed,
    /// It arrived.
    Delivered,
    /// The address refused it for good.
    Bounced,
}

/// Where a lane is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowWatermark {
    /// The lane.
    pub(crate) lane: Lane,
    /// Nothing that we know of stands below.
    pub(crate) low: Order,
    /// Everything up to here has been claimed once.
    pub(crate) cursor: Order,
}

/// What a look at a lane found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneScan {
    /// The lane.
    pub(crate) lane: Lane,
    /// The first row beyond the cursor that can be claimed.
    pub(crate) head: Option<Order>,
    /// The first row up to the cursor that can be claimed: committed late, given back, or its
    /// worker dead.
    pub(crate) gap: Option<Order>,
    /// The first row of any kind up to the cursor.
    pub(crate) lowest: Option<Order>,
}

/// A position in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LanePosition {
    /// The lane.
    pub(crate) lane: Lane,
    /// The order within the lane.
    pub(crate) order: Order,
}

/// The number of rows in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneDepth {
    /// The lane.
    pub(crate) lane: Lane,
    /// Number of rows, waiting or claimed, up to the limit of the query.
    pub(crate) rows: i64,
}

/// A claim on a notification. Invalid once the fence of the row has advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRef {
    /// The notification.
    pub(crate) id: NotificationId,
    /// The fence of the claim.
    pub(crate) fence: i32,
}

/// How a wish to cancel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelResult {
    /// It is cancelled.
    Now,
    /// It was begun, or is over.
    TooLate,
}

/// The signed part of a webhook whose signature does not cover the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookToken {
    /// Which provider.
    pub(crate) provider: &'static str,
    /// The provider's own random token.
    pub(crate) token: String,
    /// SHA-256 of the body that it came with.
    pub(crate) body: [u8; 32],
}

/// Which dead letters.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadFilter {
    /// One notification.
    pub(crate) id: Option<NotificationId>,
    /// A reason.
    pub(crate) code: Option<String>,
    /// Failed at or after.
    pub(crate) since: Option<Timestamp>,
    /// Failed before.
    pub(crate) until: Option<Timestamp>,
    /// At most so many.
    pub(crate) limit: i64,
}

/// A notification that failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    /// Which.
    pub(crate) id: NotificationId,
    /// Where it stood.
    pub(crate) lane: Lane,
    /// Attempts made.
    pub(crate) attempt: i32,
    /// When it failed.
    pub(crate) at: Timestamp,
    /// Why.
    pub(crate) code: Option<String>,
}

/// An address to be added to a suppression list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SuppressionRow {
    /// List and channel, see [`SuppressionList::kind`].
    ///
    /// [`SuppressionList::kind`]: crate::delivery::suppression::SuppressionList::kind
    pub(crate) kind: i16,
    /// SHA-256 of the address.
    pub(crate) address: Vec<u8>,
    /// The code of the reason.
    pub(crate) reason: String,
}

/// The addition of an address to a suppression list, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SuppressionChange {
    /// List and channel, as in [`SuppressionRow`].
    pub(crate) kind: i16,
    /// SHA-256 of the address.
    pub(crate) address: Vec<u8>,
    /// The time of the change.
    pub(crate) at: Timestamp,
}

/// An address on a list of [`crate::delivery::suppression`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SuppressionEntry {
    /// Which list, and of which channel: see [`crate::delivery::suppression::List::kind`].
    pub(crate) kind: i16,
    /// SHA-256 of the address.
    pub(crate) address: Vec<u8>,
    /// Why.
    pub(crate) reason: String,
    /// Since when.
    pub(crate) at: Timestamp,
}

/// Which addresses on the lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct SuppressionQuery {
    /// Of these lists and channels.
    pub(crate) kinds: Vec<i16>,
    /// One address.
    pub(crate) address: Option<AddressHash>,
    /// A reason.
    pub(crate) reason: Option<String>,
    /// Noted at or after.
    pub(crate) since: Option<Timestamp>,
    /// Noted before.
    pub(crate) until: Option<Timestamp>,
    /// At most so many.
    pub(crate) limit: i64,
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

// === impl SuppressionEntry ===

impl SuppressionEntry {
    /// From the columns `channel`, `address`, `reason`, `at`.
    pub(super) fn of_row((kind, address, reason, at): (i16, Vec<u8>, String, i64)) -> Self {
        Self {
            kind,
            address,
            reason,
            at: Timestamp(at),
        }
    }
}

// === impl SuppressionChange ===

impl SuppressionChange {
    /// Creates a change from the columns `channel`, `address`, `at`.
    pub(super) fn of_row((kind, address, at): (i16, Vec<u8>, i64)) -> Self {
        Self {
            kind,
            address,
            at: Timestamp(at),
        }
    }
}

// === impl Next ===

impl Next {
    /// Whether an end is put down in the history.
    #[must_use]
    pub(crate) fn is_recorded(self) -> bool {
        !matches!(self, Self::Later(_))
    }

    /// When the next attempt is due.
    #[must_use]
    pub(crate) fn due(self) -> Option<Timestamp> {
        match self {
            Self::Retry(at) | Self::Later(at) => Some(at),
            Self::Done | Self::Dead => None,
        }
    }
}
