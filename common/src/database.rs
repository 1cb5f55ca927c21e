//! The durable store, PostgreSQL or SQLite, chosen by URL.
//!
//! | URL | store |
//! |---|---|
//! | `postgres://user:password@host:5432/name?sslmode=verify-full` | PostgreSQL 15 or later; every libpq TLS mode |
//! | `sqlite://./var/auth.db`, `sqlite:///srv/postern/auth.db` | one file, made with its folder if it is missing |
//!
//! SQL stands in each service's own store module, once per dialect; this module opens, migrates and tells what
//! went wrong. Instants are stored as Unix milliseconds ([`crate::clock::Timestamp`]).

mod label;
mod migrations;
mod postgres;
mod sqlite;
pub mod testing;

use std::time::Duration;

use sqlx::PgPool;

pub use self::migrations::Migrations;
pub use self::postgres::is_usable;
pub use self::sqlite::Sqlite;
use crate::exit::Exit;

/// An open store. A service matches on it where its SQL begins.
#[derive(Clone, Debug)]
pub enum Database {
    /// A pool of connections to PostgreSQL.
    Postgres(PgPool),
    /// One SQLite file: a writer and some readers.
    Sqlite(Sqlite),
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// What PostgreSQL shows in `pg_stat_activity`; a service gives its own name.
    pub application_name: String,
    /// Connections to PostgreSQL at most, per process. Default 10: two cores are kept busy by fewer.
    pub max_connections: u32,
    /// Reading connections to SQLite at most. Default 4.
    pub readers: u32,
    /// How long one waits for a connection before the request is refused as unavailable. Default 2 s.
    pub acquire_timeout: Duration,
    /// Prepared statements kept per connection. Default 256: more than any service has.
    pub statement_cache: usize,
}

// === impl Options ===

impl Options {
    /// The defaults, under a name.
    #[must_use]
    pub fn new(application_name: &str) -> Self {
        Self {
            application_name: application_name.to_owned(),
            max_connections: 10,
            readers: 4,
            acquire_timeout: Duration::from_secs(2),
            statement_cache: 256,
        }
    }
}

// === impl Database ===

impl Database {
    /// Opens the store and speaks to it once.
    ///
    /// # Errors
    /// Status 64 if the URL names no store that we know; 69 if the store is away or refuses. Either is one line
    /// that names the URL without its password.
    pub async fn open(url: &str, options: Options) -> Result<Self, Exit> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => postgres::open(url, &options).await.map(Self::Postgres),
            Some("sqlite") => sqlite::open(url, &options).await.map(Self::Sqlite),
            Some(_) | None => Err(Exit::usage(format!(
                "database `{}`: must begin with postgres:// or sqlite://",
                label::without_password(url)
            ))),
        }
    }

    /// Brings the service's tables to the version that this binary knows; newer ones are left as they are. Safe to call
    /// from any number of processes at once.
    ///
    /// # Errors
    /// Status 69: the store is away, a migration fails, or the tables are of a version that needs a newer binary.
    pub async fn migrate(&self, migrations: &Migrations) -> Result<(), Exit> {
        migrations::run(self, migrations).await
    }

    /// For readiness checks, in one round trip: the store answers, and the tables, which a newer binary may have brought
    /// forward meanwhile, are still ones that this binary works on.
    ///
    /// # Errors
    /// Status 69: no answer within two seconds, or the tables need a newer binary.
    pub async fn still_fits(&self, migrations: &Migrations) -> Result<(), Exit> {
        match tokio::time::timeout(Duration::from_secs(2), migrations::still_fit(self, migrations)).await {
            Ok(Ok(judged)) => judged,
            Ok(Err(_)) | Err(_) => Err(Exit::unavailable("the database does not answer").for_now()),
        }
    }

    /// One round trip, for readiness checks.
    ///
    /// # Errors
    /// The driver's, or a pool timeout if the store does not answer within two seconds.
    pub async fn ping(&self) -> Result<(), sqlx::Error> {
        let answer = async {
            match self {
                Self::Postgres(pool) => sqlx::query("SELECT 1").execute(pool).await.map(drop),
                Self::Sqlite(sqlite) => sqlx::query("SELECT 1").execute(&sqlite.readers).await.map(drop),
            }
        };
        tokio::time::timeout(Duration::from_secs(2), answer).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Closes every connection; SQLite writes its log back into the file.
    pub async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(sqlite) => {
                sqlite.readers.close().await;
                sqlite.writer.close().await;
            }
        }
    }

    /// The store's address for logs and messages: no password, no parameters.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Postgres(pool) => label::postgres(&pool.connect_options()),
            Self::Sqlite(sqlite) => label::sqlite(&sqlite.writer.connect_options()),
        }
    }
}

/// Whether an error means that the store is away, full or restarting (503, worth a repeat), rather than that
/// the statement is wrong (500).
///
/// PostgreSQL classes: 08 connection, 53 resources, 57P operator intervention, 25006 read-only after a
/// failover, 40001 and 40P01 serialisation and deadlock, 55P03 lock not available. SQLite: busy, locked, I/O,
/// full, cannot open.
#[must_use]
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(database) = error {
        let code = database.code().unwrap_or_default();
        return if database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
            // The extended code keeps the primary one in its lower byte (sqlite.org/rescode.html).
            matches!(code.parse::<u32>().unwrap_or(0) & 0xff, 5 | 6 | 8 | 10 | 13 | 14)
        } else {
            ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
                || matches!(&*code, "25006" | "40001" | "40P01" | "55P03")
        };
    }
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
    )
}

/// Whether an error means that a row with this key is already there.
#[must_use]
pub fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

#[cfg(test)]
mod tests;
