//! Persistence in PostgreSQL or SQLite. All SQL of the crate is in this module; it depends on
//! `model`.
//!
//! Both databases accept the same statements (`$1` parameters, `ON CONFLICT`, `RETURNING`), so most
//! exist once. The macros below choose the connection: a reader, the writer, or a transaction.

mod attempts;
mod codes;
mod group_commit;
mod groups;
mod pools;
mod schema;
mod sessions;
mod signing_keys;
mod users;

pub(crate) use self::codes::{CodeCheck, CodeKey, CodeTimes};
pub(crate) use self::groups::GroupRow;
pub(crate) use self::sessions::{
    ChallengeRow, RefreshSession, RotateToken, SessionOutcome, SessionWrite, StartSession,
    TokenFamily,
};
pub(crate) use self::signing_keys::SigningKeyRow;
pub(crate) use self::users::{Page, UserColumn, UserFilter};

use self::group_commit::GroupCommitter;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use postern_common::exit::Exit;

/// Runs a reading statement: on SQLite's readers, or on any PostgreSQL connection.
macro_rules! reading {
    ($store:expr, $connection:ident => $body:expr) => {
        match &$store.database {
            postern_common::database::Database::Postgres($connection) => $body,
            postern_common::database::Database::Sqlite(sqlite) => {
                let $connection = &sqlite.readers;
                $body
            }
        }
    };
}

/// Runs one writing statement.
macro_rules! writing {
    ($store:expr, $connection:ident => $body:expr) => {
        match &$store.database {
            postern_common::database::Database::Postgres($connection) => $body,
            postern_common::database::Database::Sqlite(sqlite) => {
                let $connection = &sqlite.writer;
                $body
            }
        }
    };
}

/// Runs several statements in a transaction. A `?` in the body rolls it back.
macro_rules! transaction {
    ($store:expr, $transaction:ident => $body:expr) => {
        match &$store.database {
            postern_common::database::Database::Postgres(pool) => {
                let work = async {
                    let mut $transaction = pool.begin().await?;
                    let value = $body;
                    $transaction.commit().await?;
                    Ok::<_, sqlx::Error>(value)
                };
                pool.within_deadline(work).await?
            }
            postern_common::database::Database::Sqlite(sqlite) => {
                let mut $transaction = sqlite.begin().await?;
                let value = $body;
                $transaction.commit().await?;
                value
            }
        }
    };
}

pub(crate) use {reading, transaction, writing};

/// The store, with the schema of this version.
#[derive(Clone, Debug)]
pub(crate) struct PoolStore {
    database: Database,
    /// Group commit of sign-ins and refreshes. `None` for PostgreSQL, which has its own.
    group_commit: Option<GroupCommitter>,
}

// === impl PoolStore ===

impl PoolStore {
    pub(crate) async fn open(database: Database) -> Result<Self, Exit> {
        database.migrate(&schema::MIGRATIONS).await?;
        let group_commit = match &database {
            Database::Sqlite(sqlite) => Some(GroupCommitter::start(sqlite.clone())),
            Database::Postgres(_) => None,
        };
        Ok(Self {
            database,
            group_commit,
        })
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// Deletes expired rows. Returns their number.
    pub(crate) async fn delete_expired(&self, now: Timestamp) -> Result<u64, sqlx::Error> {
        const EXPIRED: [&str; 5] = [
            "DELETE FROM pool_family WHERE expires_at < $1",
            // After a week, the reuse of a rotated token is no longer detected and the token is
            // unknown.
            "DELETE FROM pool_refresh_token WHERE rotated_at < $1 - 604800000",
            "DELETE FROM pool_challenge WHERE expires_at < $1",
            "DELETE FROM pool_code WHERE expires_at < $1 AND window_start < $1 - 3600000",
            "DELETE FROM pool_attempt WHERE last_at < $1 - 900000 AND locked_until < $1 - 900000",
        ];
        let mut swept = 0;
        for statement in EXPIRED {
            swept += writing!(self, db => {
                sqlx::query(statement).bind(now.0).execute(db).await.map(|done| done.rows_affected())
            })?;
        }
        Ok(swept)
    }

    /// Returns a setting that the server stores about itself.
    pub(crate) async fn setting(&self, name: &str) -> Result<Option<String>, sqlx::Error> {
        const SQL: &str = "SELECT value FROM pool_setting WHERE name = $1";
        reading!(self, db => sqlx::query_scalar(SQL).bind(name).fetch_optional(db).await)
    }

    pub(crate) async fn set_setting(&self, name: &str, value: &str) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_setting (name, value) VALUES ($1, $2)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        writing!(self, db => sqlx::query(SQL).bind(name).bind(value).execute(db).await.map(drop))
    }
}
