//! Everything that the pool keeps, in PostgreSQL or SQLite.
//!
//! Both stores accept the same statements (`$1` parameters, `ON CONFLICT`, `RETURNING`), so that
//! there is one text for each. The macros below choose the connection: a reader, the writer, or a
//! transaction.

mod attempts;
mod codes;
mod directory;
mod grouped;
mod groups;
mod keys;
mod schema;
mod sessions;
mod users;

pub(crate) use self::codes::{Checked, CodeKey};
pub(crate) use self::groups::GroupRow;
pub(crate) use self::keys::KeyRow;
pub(crate) use self::sessions::{
    Begin, ChallengeRow, Family, FamilyOfUser, Rotate, SessionWrite, Written,
};
pub(crate) use self::users::{Column, Page, UserFilter};

use self::grouped::Grouped;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use postern_common::exit::Exit;

/// Reads: SQLite's readers, any PostgreSQL connection.
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

/// One statement that writes.
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

/// Several statements that count together; a `?` in the body rolls back.
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

/// A value that is kept as JSON in a text column, which both stores have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored<T>(pub(crate) T);

impl<T: serde::de::DeserializeOwned> TryFrom<String> for Stored<T> {
    type Error = serde_json::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        serde_json::from_str(&text).map(Self)
    }
}

impl<T> std::ops::Deref for Stored<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// What is kept as JSON is made of plain fields and string keys.
pub(crate) fn to_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain fields and string keys are JSON")
}

/// The store, open and at this binary's version.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    database: Database,
    /// Merges the commits of sign-ins and refreshes; PostgreSQL needs no help with that.
    grouped: Option<Grouped>,
}

// === impl Store ===

impl Store {
    pub(crate) async fn open(database: Database) -> Result<Self, Exit> {
        database.migrate(&schema::MIGRATIONS).await?;
        let grouped = match &database {
            Database::Sqlite(sqlite) => Some(Grouped::start(sqlite.clone())),
            Database::Postgres(_) => None,
        };
        Ok(Self { database, grouped })
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    /// Takes out what has expired, so that the tables stay as small as what is alive.
    pub(crate) async fn sweep(&self, now: Timestamp) -> Result<u64, sqlx::Error> {
        const EXPIRED: [&str; 5] = [
            "DELETE FROM pool_family WHERE expires_at < $1",
            // A week after its rotation a token is merely unknown: its reuse no longer ends the
            // sign-in.
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

    /// A value that the pool keeps about itself.
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
