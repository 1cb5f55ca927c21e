//! The store: PostgreSQL or SQLite with the same guarantees. All SQL of the service is here.
//!
//! | table | content | changes |
//! |---|---|---|
//! | `notify_record` | accepted notifications | insert only, partitioned by identifier, that is by time |
//! | `notify_queue` | rows that wait or are in delivery | small and hot; deleted on completion |
//! | `notify_delayed` | retries and scheduled notifications, by due time | moved to the queue when due |
//! | `notify_result` | results of attempts | insert only, partitioned like the records |
//! | `notify_receipt` | delivery reports of providers | insert only, unique per provider event |
//! | `notify_webhook_token` | webhook tokens with the body of their first use | insert only, kept for hours |
//! | `notify_suppression` | suppressed and unsubscribed addresses | removed by operators |
//! | `notify_suppression_lifted` | removed addresses | read by all replicas |
//! | `notify_provider_pause` | providers paused by operators | read by all replicas when one is announced, and every minute |
//! | `notify_worker` | live workers | one row per worker, renewed every 2.5 s by the database's clock |
//!
//! An attempt is recorded before its call: the claim increments `attempt` and `fence` and commits
//! before a provider is called. A result counts only while the queue row carries the fence of its
//! claim.
//!
//! Rows and queries enter; snapshots and claims leave. Depends on `notification` and `address`.

mod id;
pub(crate) mod postgres;
mod read;
mod replica_signal;
pub(crate) mod row;
mod schema;
mod snapshot;
mod sqlite;

use postern_common::clock::Timestamp;
use postern_common::database::{Database, Dialect, PoolUsage, is_unavailable};
use postern_common::exit::Exit;
use postern_common::with_dialect;
use postern_common::{Code, Problem};
use sqlx::postgres::PgListener;

pub(crate) use replica_signal::ReplicaSignal;
pub(crate) use row::{
    CancelResult, ClaimRef, DeadFilter, DeadLetter, IdempotencyRecord, LaneDepth, LanePosition,
    LeaseRenewal, ListQuery, ListScope, ListedRow, MovedRows, ProviderPause, Receipt,
    SuppressionChange, SuppressionEntry, SuppressionQuery, SuppressionRow, WebhookToken,
};
pub(crate) use row::{
    Claim, Claimed, Finished, NewNotification, Next, Record, ResultKind, ResultRow,
};

pub(crate) use schema::MIGRATIONS;
pub(crate) use snapshot::{HistoryEntry, NotificationSnapshot, ReceiptEntry, Replay, WaitingRow};

use crate::address::AddressHash;
use crate::notification::{Lane, NotificationId, Order};
use postgres::Postgres;
use sqlite::Sqlite;

/// The store in one of the two databases.
#[derive(Clone, Debug)]
pub(crate) struct Store(Dialect<Postgres, Sqlite>);

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is unavailable, full or restarting: the same call can succeed later. The
    /// statement may have been executed.
    #[error("the store is not available: {0}")]
    Unavailable(sqlx::Error),
    /// The database rejected the statement or its arguments.
    #[error("the store refused: {0}")]
    Refused(sqlx::Error),
}

impl StoreError {
    /// Returns whether the same call can succeed later.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Refused(_) => false,
        }
    }
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Code::Unavailable.into(),
            StoreError::Refused(_) => Code::Internal.into(),
        }
    }
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
            ///
            /// # Errors
            /// The store is unavailable or rejects the statement.
            $vis async fn $name(&self, $($arg: $type),*) -> Result<$result, StoreError> {
                with_dialect!(&self.0, store => store.$name($($arg),*).await)
            }
        )*}
    };
}

delegate! {
    /// Stores a batch in one transaction, in the order given. Returns the identifiers that were
    /// rejected because their idempotency key is in use; all others are durable.
    pub(crate) fn accept(batch: &[NewNotification]) -> Vec<NotificationId>;
    /// Returns the request that an idempotency key was used for.
    pub(crate) fn idempotency_record(creator: &str, key: &str) -> Option<IdempotencyRecord>;
    /// Deletes idempotency keys used before `before`, and returns their number.
    pub(crate) fn delete_idempotency_keys(before: Timestamp) -> u64;
    /// Claims the first rows of a lane that wait, or whose worker is dead, in order.
    pub(crate) fn claim(claim: &Claim<'_>) -> Vec<Claimed>;
    /// Removes rows from the queue and records the results of their attempts. Rows with a higher
    /// fence are not changed. Returns the number of removed rows.
    pub(crate) fn finish(batch: &[Finished]) -> usize;
    /// Releases rows whose attempt was not started. Rows with a higher fence are not changed.
    pub(crate) fn release(rows: &[ClaimRef]) -> ();
    /// Returns the position of the first row of each lane that waits, or whose worker is dead. Lanes
    /// without such a row are left out.
    pub(crate) fn lane_heads(lanes: &[Lane], dead: &[i64]) -> Vec<LanePosition>;
    /// Moves due rows from the delayed rows to the queue, in order of due time. Returns their lanes,
    /// and when the next one is due.
    pub(crate) fn move_due(now: Timestamp, limit: i64) -> MovedRows;
    /// Returns when the next delayed row is due.
    #[cfg(test)]
    pub(crate) fn next_due() -> Option<Timestamp>;
    /// Cancels a notification whose delivery has not started.
    pub(crate) fn cancel(id: NotificationId, now: Timestamp) -> CancelResult;
    /// Reads all that is stored about these notifications.
    pub(crate) fn read(ids: &[NotificationId]) -> Vec<NotificationSnapshot>;
    /// Returns a part of a list of notifications, newest first.
    pub(crate) fn list(query: &ListQuery) -> Vec<ListedRow>;
    /// Stores a webhook token with the body of its first use. Returns whether the body is the same.
    pub(crate) fn bind_webhook_token(token: &WebhookToken, now: Timestamp) -> bool;
    /// Deletes webhook tokens received before `before`, and returns their number.
    pub(crate) fn delete_webhook_tokens(before: Timestamp) -> u64;
    /// Stores delivery reports, up to [`row::MAX_RECEIPTS_PER_NOTIFICATION`], and returns the
    /// number of new ones.
    pub(crate) fn save_receipts(receipts: &[Receipt]) -> u64;
    /// Registers a worker.
    /// `now` is the time of the lease; `None` is the clock of the database.
    pub(crate) fn register_worker(worker: i64, now: Option<Timestamp>) -> ();
    /// Renews the leases of workers, and returns the state of all. A worker that was last renewed
    /// more than `timeout_ms` milliseconds before `now` stays dead. `now` is as for
    /// `register_worker`.
    pub(crate) fn renew_workers(workers: &[i64], now: Option<Timestamp>, timeout_ms: i64) -> LeaseRenewal;
    /// Declares a worker dead. With `gone` it is deleted, unless it still holds a row.
    pub(crate) fn retire_worker(worker: i64, gone: bool) -> ();
    /// Deletes workers last renewed before `dead_before` that hold no rows, and returns their
    /// number.
    pub(crate) fn delete_dead_workers(dead_before: Timestamp) -> u64;
    /// Returns the number of rows in each lane, counted up to `cap`.
    pub(crate) fn queue_depths(cap: i64) -> Vec<LaneDepth>;
    /// Creates the partitions of the near future, and deletes data older than `keep_from`.
    pub(crate) fn maintain(now: Timestamp, keep_from: Timestamp) -> ();
    /// Returns failed notifications, oldest first.
    pub(crate) fn dead_letters(filter: &DeadFilter) -> Vec<DeadLetter>;
    /// Queues failed notifications again, and returns their number.
    pub(crate) fn replay(filter: &DeadFilter, first_order: Order, now: Timestamp) -> u64;
    /// Deletes dead letters and returns their number. The history is kept.
    pub(crate) fn discard_dead_letters(filter: &DeadFilter) -> u64;
    /// Returns the paused providers.
    pub(crate) fn paused_providers() -> Vec<ProviderPause>;
    /// Pauses a provider, and returns whether it was not paused before.
    pub(crate) fn pause_provider(pause: &ProviderPause) -> bool;
    /// Ends the pause of a provider, and returns whether it was paused.
    pub(crate) fn resume_provider(provider: &str) -> bool;
    /// Adds addresses to suppression lists, and returns the number of new ones. Existing entries
    /// are not changed.
    pub(crate) fn suppress(rows: &[SuppressionRow], now: Timestamp) -> u64;
    /// Returns whether an address is on a list.
    pub(crate) fn is_suppressed(kind: i16, address: &AddressHash) -> bool;
    /// Returns additions at or after `at`, oldest first, at most `page`.
    pub(crate) fn additions_since(at: Timestamp, page: i64) -> Vec<SuppressionChange>;
    /// Returns removals at or after `at` of addresses that are not on the list again, oldest first,
    /// at most `page`.
    pub(crate) fn removals_since(at: Timestamp, page: i64) -> Vec<SuppressionChange>;
    /// Returns the entries that match, oldest first.
    pub(crate) fn suppression_entries(filter: &SuppressionQuery) -> Vec<SuppressionEntry>;
    /// Removes the entries that match, and returns their number.
    pub(crate) fn remove_suppressed(filter: &SuppressionQuery, now: Timestamp) -> u64;
}

impl Store {
    /// Opens the store in an open database and migrates its tables.
    ///
    /// # Errors
    /// Exit code 69 if a migration fails or the schema requires a newer binary.
    pub(crate) async fn open(database: &Database, connections: u32) -> Result<Self, Exit> {
        database.migrate(&MIGRATIONS).await?;
        Ok(Self::unmigrated(database, connections))
    }

    /// Opens the store of commands, which do not migrate its tables.
    ///
    /// # Errors
    /// Exit code 69 if the database is unavailable, or its tables are not those of this binary.
    pub(crate) async fn open_migrated(database: &Database, connections: u32) -> Result<Self, Exit> {
        database.verify_schema(&MIGRATIONS).await?;
        Ok(Self::unmigrated(database, connections))
    }

    /// Creates the store without changing the database, which may have no tables yet.
    pub(crate) fn unmigrated(database: &Database, connections: u32) -> Self {
        Self(match database {
            Dialect::Postgres(pool) => Dialect::Postgres(Postgres::new(pool.clone(), connections)),
            Dialect::Sqlite(sqlite) => Dialect::Sqlite(Sqlite::new(sqlite.clone())),
        })
    }

    /// Closes the connections that the store has opened, without waiting for those in use.
    pub(crate) async fn close(&self) {
        match &self.0 {
            Dialect::Postgres(store) => store.close().await,
            Dialect::Sqlite(_) => {}
        }
    }

    /// Returns the use of the connections of the queue, or `None` for SQLite.
    pub(crate) fn queue_usage(&self) -> Option<PoolUsage> {
        match &self.0 {
            Dialect::Postgres(store) => Some(store.usage()),
            Dialect::Sqlite(_) => None,
        }
    }

    /// Returns whether several processes may share the store.
    #[must_use]
    pub(crate) fn is_shared(&self) -> bool {
        match &self.0 {
            Dialect::Postgres(_) => true,
            Dialect::Sqlite(_) => false,
        }
    }

    /// Returns the current time of the database, or `None` for a store of a single process.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn shared_now(&self) -> Result<Option<Timestamp>, StoreError> {
        match &self.0 {
            Dialect::Postgres(store) => store.now().await.map(Some),
            Dialect::Sqlite(_) => Ok(None),
        }
    }

    /// Sends a notification to the other processes, outside any transaction. Does nothing for a
    /// store of a single process.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn publish(&self, text: &str) -> Result<(), StoreError> {
        match &self.0 {
            Dialect::Postgres(store) => store.publish(text).await,
            Dialect::Sqlite(_) => Ok(()),
        }
    }

    /// Opens a listener for the notifications of other processes. Returns `None` for a store of a
    /// single process.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn listen(&self) -> Result<Option<PgListener>, StoreError> {
        match &self.0 {
            Dialect::Postgres(store) => store.listen().await.map(Some),
            Dialect::Sqlite(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
