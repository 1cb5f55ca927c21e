//! The truth: PostgreSQL or SQLite, the same promises over both.
//!
//! | table | holds | changes |
//! |---|---|---|
//! | `notify_record` | what was asked for | insert only, partitioned by id, that is by time |
//! | `notify_queue` | what is waiting or being sent | small and hot; deleted from on completion |
//! | `notify_mark` | where each lane of the queue begins | a row a lane, kept every 15 s; a start begins there |
//! | `notify_delayed` | repeats and scheduled ones, by due time | moved to the queue when due |
//! | `notify_result` | how each attempt ended | insert only, partitioned like the records |
//! | `notify_receipt` | what providers reported later | insert only, unique per provider event |
//! | `notify_webhook_token` | which body a webhook's token came with first | insert only, for some hours |
//! | `notify_suppression` | addresses that get nothing, or nothing that can be unsubscribed from | an operator takes off |
//! | `notify_suppression_lifted` | what was taken off | so that every replica forgets it |
//! | `notify_worker` | who is alive | a row a process, renewed every 3 s by the database's time |
//!
//! An attempt is written before its call: the claim raises `attempt` and `fence` and is committed
//! before any provider hears of it. A result counts only while the queue row still carries the
//! fence of its claim.

mod id;
pub(crate) mod postgres;
mod read;
pub(crate) mod row;
mod schema;
mod snapshot;
mod snapshot_cache;
mod sqlite;

use postern_common::clock::Timestamp;
use postern_common::database::{Database, is_unavailable};
use postern_common::exit::Exit;
use sqlx::postgres::PgListener;

pub(crate) use row::{
    CancelResult, ClaimRef, DeadFilter, DeadLetter, IdempotencyRecord, LaneDepth, LanePosition,
    LaneScan, LowWatermark, Receipt, SuppressionChange, SuppressionEntry, SuppressionQuery,
    SuppressionRow, WebhookToken,
};
pub use row::{Claim, Claimed, Finished, NewNotification, Next, Record, ResultKind, ResultRow};

pub(crate) use schema::MIGRATIONS;
pub(crate) use snapshot::{HistoryEntry, NotificationSnapshot, ReceiptEntry, WaitingRow};
pub(crate) use snapshot_cache::SnapshotCache;

use crate::address::AddressHash;
use crate::notification::{Channel, NotificationId, Order};
use postgres::Postgres;
use sqlite::Sqlite;

/// One of the two stores.
#[derive(Clone, Debug)]
pub enum Store {
    /// PostgreSQL 15 or later.
    Postgres(Postgres),
    /// One SQLite file.
    Sqlite(Sqlite),
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is away, full or restarting: the same call can succeed later. It may have been done all
    /// the same.
    #[error("the store is not available: {0}")]
    Unavailable(sqlx::Error),
    /// It refused: a fault in the statement or in what it was given.
    #[error("the store refused: {0}")]
    Refused(sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_unavailable(&error) {
            Self::Unavailable(error)
        } else {
            Self::Refused(error)
        }
    }
}

type StoreResult<T> = Result<T, StoreError>;

macro_rules! delegate {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Store {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// The store is away or refuses.
            $vis async fn $name(&self, $($arg: $type),*) -> Result<$result, StoreError> {
                match self {
                    Self::Postgres(store) => store.$name($($arg),*).await,
                    Self::Sqlite(store) => store.$name($($arg),*).await,
                }
            }
        )*}
    };
}

delegate! {
    /// Stores a batch in one transaction, in the order given. Returns the ids that were refused
    /// because their idempotency key is taken; everything else is durable.
    pub fn accept(batch: &[NewNotification]) -> Vec<NotificationId>;
    /// What an idempotency key was used for.
    pub(crate) fn existing(creator: &str, key: &str) -> Option<IdempotencyRecord>;
    /// Forgets idempotency keys that were used before this instant; how many.
    pub(crate) fn delete_idempotency_keys(before: Timestamp) -> u64;
    /// Takes the next rows of a lane, in order, beyond the claim's cursor.
    pub fn claim(claim: &Claim<'_>) -> Vec<Claimed>;
    /// Takes rows out of the queue and writes how their attempts ended; a row whose fence has moved
    /// on is left alone. How many were taken.
    pub fn finish(batch: &[Finished]) -> usize;
    /// Gives back rows whose attempt was never begun; the lanes and orders given back to.
    pub(crate) fn release(rows: &[ClaimRef]) -> Vec<LanePosition>;
    /// Looks at lanes: what waits beyond the cursor, and what was gap below it.
    pub(crate) fn scan_lanes(marks: &[LowWatermark], dead: &[i64]) -> Vec<LaneScan>;
    /// Where the lanes of a channel begin, as it was last kept: nothing that waits or is being sent
    /// stands below, but for what a look from the beginning finds.
    pub(crate) fn low_watermarks(channel: Channel) -> Vec<LanePosition>;
    /// Keeps where lanes begin.
    pub(crate) fn save_low_watermarks(marks: &[LowWatermark]) -> ();
    /// Moves what is due from the delayed rows to the queue, in order of due time; the lanes and
    /// orders moved to.
    pub(crate) fn move_due(now: Timestamp, limit: i64) -> Vec<LanePosition>;
    /// When the next delayed row is due.
    #[cfg(test)]
    pub(crate) fn next_due() -> Option<Timestamp>;
    /// Cancels what has not been begun.
    pub(crate) fn cancel(id: NotificationId, now: Timestamp) -> CancelResult;
    /// Everything that is known about these notifications.
    pub(crate) fn read(ids: &[NotificationId]) -> Vec<NotificationSnapshot>;
    /// Keeps a webhook's token with the body that it came with first; whether it is this one.
    pub(crate) fn bind_webhook_token(token: &WebhookToken, now: Timestamp) -> bool;
    /// Forgets the tokens of webhooks that came before this instant; how many.
    pub(crate) fn delete_webhook_tokens(before: Timestamp) -> u64;
    /// Keeps what providers reported, up to [`row::MAX_RECEIPTS_PER_NOTIFICATION`]; how many were
    /// new.
    pub(crate) fn save_receipts(receipts: &[Receipt]) -> u64;
    /// Puts a worker on the list.
    pub fn register_worker(worker: i64, now: Timestamp) -> ();
    /// Says that a worker is alive; `false` if it was already dead at `dead_before`, and stays so.
    pub(crate) fn renew_worker(worker: i64, now: Timestamp, dead_before: Timestamp) -> bool;
    /// Declares a worker dead; with `gone` it is taken off the list, unless it holds a row all the
    /// same.
    pub(crate) fn retire_worker(worker: i64, gone: bool) -> ();
    /// WorkerRegistry that have not been heard of since this instant.
    pub(crate) fn dead_workers(dead_before: Timestamp) -> Vec<i64>;
    /// Forgets workers that have been dead since this instant and hold nothing.
    pub(crate) fn delete_dead_workers(dead_before: Timestamp) -> u64;
    /// How many rows wait in each lane, counted to at most `cap`.
    pub(crate) fn queue_depths(cap: i64) -> Vec<LaneDepth>;
    /// Makes room for what is to come and drops what is older than `keep_from`.
    pub fn maintain(now: Timestamp, keep_from: Timestamp) -> ();
    /// Failed notifications, oldest first.
    pub(crate) fn dead_letters(filter: &DeadFilter) -> Vec<DeadLetter>;
    /// Queues failed notifications again; how many.
    pub(crate) fn replay(filter: &DeadFilter, first_order: Order, now: Timestamp) -> u64;
    /// Forgets that notifications failed; their history stays. How many.
    pub(crate) fn discard_dead_letters(filter: &DeadFilter) -> u64;
    /// Puts addresses on a list: its kind, SHA-256 of the address, why. One that is there stays as
    /// it is.
    pub(crate) fn suppress(rows: &[SuppressionRow], now: Timestamp) -> u64;
    /// Whether an address is on a list.
    pub(crate) fn is_suppressed(kind: i16, address: &AddressHash) -> bool;
    /// Addresses that were put on a list at or after an instant, the oldest first, at most `page`.
    pub(crate) fn suppressed_since(at: Timestamp, page: i64) -> Vec<SuppressionChange>;
    /// Addresses that were taken off a list at or after an instant, and are not back on it; the
    /// same.
    pub(crate) fn lifted_since(at: Timestamp, page: i64) -> Vec<SuppressionChange>;
    /// Addresses on the lists, the oldest first.
    pub(crate) fn suppressed(filter: &SuppressionQuery) -> Vec<SuppressionEntry>;
    /// Takes addresses off the lists. How many.
    pub(crate) fn lift(filter: &SuppressionQuery, now: Timestamp) -> u64;
}

impl Store {
    /// Takes over an open database and brings its tables up to date.
    ///
    /// # Errors
    /// Status 69: a migration fails, or the tables are of a version that needs a newer binary.
    pub async fn open(database: &Database, connections: u32) -> Result<Self, Exit> {
        database.migrate(&MIGRATIONS).await?;
        Ok(match database {
            Database::Postgres(pool) => Self::Postgres(Postgres::new(pool.clone(), connections)),
            Database::Sqlite(sqlite) => Self::Sqlite(Sqlite::new(sqlite.clone())),
        })
    }

    /// Closes the connections that are the store's own; waits for none that is in use.
    pub(crate) async fn close(&self) {
        match self {
            Self::Postgres(store) => store.close().await,
            Self::Sqlite(_) => {}
        }
    }

    /// Whether several processes may work on it.
    #[must_use]
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Postgres(_) => true,
            Self::Sqlite(_) => false,
        }
    }

    /// What time it is for every process that works on it; `None` over a store of one process.
    ///
    /// # Errors
    /// The store is away or refuses.
    pub(crate) async fn shared_now(&self) -> Result<Option<Timestamp>, StoreError> {
        match self {
            Self::Postgres(store) => store.now().await.map(Some),
            Self::Sqlite(_) => Ok(None),
        }
    }

    /// Tells the other processes something, outside any transaction; over a store of one process
    /// nothing.
    ///
    /// # Errors
    /// The store is away or refuses.
    pub(crate) async fn publish(&self, text: &str) -> Result<(), StoreError> {
        match self {
            Self::Postgres(store) => store.publish(text).await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    /// Hears what processes tell; `None` over a store of one process.
    ///
    /// # Errors
    /// The store is away or refuses.
    pub(crate) async fn listen(&self) -> Result<Option<PgListener>, StoreError> {
        match self {
            Self::Postgres(store) => store.listen().await.map(Some),
            Self::Sqlite(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
