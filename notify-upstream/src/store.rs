//! The store: PostgreSQL or SQLite with the same guarantees. All SQL of the service is here.
//!
//! | table | content | changes |
//! |---|---|---|
//! | `notify_record` | accepted notifications | insert only |
//! | `notify_queue` | rows that wait or are in delivery | small and hot; deleted on completion |
//! | `notify_delayed` | retries and scheduled notifications, by due time | moved to the queue when due |
//! | `notify_result` | results of attempts | insert only |
//! | `notify_receipt` | delivery reports of providers | insert only, unique per provider event |
//! | `notify_webhook_token` | webhook tokens with the body of their first use | insert only, kept for hours |
//! | `notify_suppression` | suppressed and unsubscribed addresses | removed by operators |
//! | `notify_provider_pause` | providers paused by operators | read by all replicas every two seconds |
//! | `notify_worker` | live workers | one row per worker, renewed every 2.5 s by the database's clock |
//!
//! An attempt is recorded before its call: the claim increments `attempt` and `fence` and commits
//! before a provider is called. A result counts only while the queue row carries the fence of its
//! claim.
//!
//! Each statement has one text for both databases; what differs is in [`dialect`]. Rows of a batch
//! are one parameter, so that a batch of any size is one statement.
//!
//! Rows and queries enter; snapshots and claims leave. Every function fails if the database is
//! unavailable or rejects the statement. Depends on `notification` and `address`.

mod accept;
mod claim;
mod dialect;
mod history;
mod id;
mod operator;
mod queue;
mod read;
mod retention;
pub(crate) mod row;
mod schema;
mod snapshot;
mod suppression;
mod worker;

use postern_core::exit::Exit;
use postern_core::{Code, Problem};
use postern_store::database::{Database, is_unavailable};

pub(crate) use row::{
    Claim, Claimed, DeadFilter, DeadLetter, Finished, ListQuery, NewNotification, Next,
    ProviderPause, ProviderReport, Record, ResultKind, ResultRow, SuppressionEntry,
    SuppressionQuery, WebhookToken, printable,
};
pub(crate) use schema::MIGRATIONS;
pub(crate) use snapshot::{HistoryEntry, NotificationSnapshot, ReceiptEntry, Replay, WaitingRow};

use dialect::{Connections, Syntax};

/// The store in one of the two databases.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    syntax: Syntax,
    connections: Connections,
}

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
        Self {
            syntax: Syntax::of(database),
            connections: Connections::new(database, connections),
        }
    }
}

#[cfg(test)]
mod tests;
