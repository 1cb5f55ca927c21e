//! The durable store, PostgreSQL or SQLite, chosen by URL.
//!
//! | URL | store |
//! |---|---|
//! | `postgres://user:password@host:5432/name?sslmode=verify-full` | PostgreSQL 15 or later; every libpq TLS mode |
//! | `sqlite://./var/auth.db`, `sqlite:///srv/postern/auth.db` | one file, made with its folder if it is missing |
//!
//! SQL stands in each service's own store module, once per dialect; this module opens, migrates and
//! tells what went wrong. Instants are stored as Unix milliseconds ([`crate::clock::Timestamp`]).

mod label;
mod migrations;
mod postgres;
mod sqlite;
pub mod testing;

use std::time::Duration;

pub use self::migrations::Migrations;
pub use self::postgres::{PooledConnection, PostgresPool, PostgresTransaction};
pub use self::sqlite::Sqlite;
use crate::exit::Exit;

/// How long a readiness check may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// An open store. A service matches on it where its SQL begins.
#[derive(Clone, Debug)]
pub enum Database {
    /// A pool of connections to PostgreSQL.
    Postgres(PostgresPool),
    /// One SQLite file: a writer and some readers.
    Sqlite(Sqlite),
}

/// Whether a store can be spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It answers.
    Made,
    /// It is away, full or starting, for this reason: the same attempt can succeed later.
    Away(String),
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// What PostgreSQL shows in `pg_stat_activity`; a service gives its own name.
    pub application_name: String,
    /// Connections to PostgreSQL at most, per process. Default 10: two cores are kept busy by
    /// fewer.
    pub max_connections: u32,
    /// Reading connections to SQLite at most. Default 4.
    pub readers: u32,
    /// How long one waits for a connection before the request is refused as unavailable. Default 2
    /// s.
    pub acquire_timeout: Duration,
    /// How long a statement of PostgreSQL may take once it has a connection, before its connection
    /// is closed and the request refused as unavailable. Default 2 s.
    pub deadline: Duration,
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
            deadline: Duration::from_secs(2),
            statement_cache: 256,
        }
    }
}

// === impl Database ===

impl Database {
    /// Opens the store and speaks to it once.
    ///
    /// # Errors
    /// Status 64 if the URL names no store that we know; 69 if the store is away or refuses. Either
    /// is one line that names the URL without its password.
    pub async fn open(url: &str, options: Options) -> Result<Self, Exit> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => {
                let database = Self::Postgres(postgres::open(url, &options).await?);
                if let Some(warning) = database.transport_warning() {
                    tracing::warn!(database = database.label(), "{warning}");
                }
                Ok(database)
            }
            Some("sqlite") => sqlite::open(url, &options).await.map(Self::Sqlite),
            Some(_) | None => Err(Exit::usage(format!(
                "database `{}`: must begin with postgres:// or sqlite://",
                label::without_password(url)
            ))),
        }
    }

    /// Speaks to the store once, without opening it. A file is always there.
    ///
    /// # Errors
    /// Status 64 if the URL names no store that we know; 69 if the store turns us down.
    pub async fn contact(url: &str, options: &Options) -> Result<Contact, Exit> {
        if url.starts_with("postgres") {
            postgres::contact(url, options).await
        } else {
            Ok(Contact::Made)
        }
    }

    /// Brings the service's tables to the version that this binary knows; newer ones are left as
    /// they are. Safe to call from any number of processes at once.
    ///
    /// # Errors
    /// Status 69: the store is away, a migration fails, or the tables are of a version that needs a
    /// newer binary.
    pub async fn migrate(&self, migrations: &Migrations) -> Result<(), Exit> {
        migrations::run(self, migrations).await
    }

    /// For readiness checks: the store takes a write, and the tables, which a newer binary may have
    /// brought forward meanwhile, are still ones that this binary works on.
    ///
    /// # Errors
    /// Status 75: no write within two seconds; 69: the tables need a newer binary.
    pub async fn still_fits(&self, migrations: &Migrations) -> Result<(), Exit> {
        let cause = match tokio::time::timeout(
            PROBE_TIMEOUT,
            migrations::still_fit(self, migrations),
        )
        .await
        {
            Ok(Ok(judged)) => return judged,
            Ok(Err(error)) => postgres::one_line(&error),
            Err(_) => format!("no answer within {} s", PROBE_TIMEOUT.as_secs()),
        };
        Err(Exit::unavailable(format!("the database takes no writes: {cause}")).for_now())
    }

    /// What is unsafe about the way to the store: a PostgreSQL on another host and a URL without
    /// `sslmode`, which is `prefer` then, and goes on unencrypted where the server, or somebody on
    /// the way, offers no TLS.
    #[must_use]
    pub fn transport_warning(&self) -> Option<&'static str> {
        match self {
            Self::Postgres(pool) if pool.may_be_plaintext_over_a_network() => Some(
                "the URL has no sslmode and the server is on another host: data and password may travel unencrypted; \
                 add sslmode=verify-full",
            ),
            Self::Postgres(_) | Self::Sqlite(_) => None,
        }
    }

    /// One round trip: whether the store answers.
    ///
    /// # Errors
    /// The driver's, or a pool timeout if the store does not answer within two seconds.
    pub async fn ping(&self) -> Result<(), sqlx::Error> {
        let answer = async {
            match self {
                Self::Postgres(pool) => sqlx::query("SELECT 1").execute(pool).await.map(drop),
                Self::Sqlite(sqlite) => sqlx::query("SELECT 1")
                    .execute(&sqlite.readers)
                    .await
                    .map(drop),
            }
        };
        tokio::time::timeout(PROBE_TIMEOUT, answer)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
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
            Self::Postgres(pool) => pool.label(),
            Self::Sqlite(sqlite) => label::sqlite(&sqlite.writer.connect_options()),
        }
    }
}

/// Whether an error means that the store is away, full or restarting (503, worth a repeat), rather
/// than that the statement is wrong (500).
///
/// PostgreSQL classes: 08 connection, 53 resources, 57P operator intervention, 25006 read-only
/// after a failover, 40001 and 40P01 serialisation and deadlock, 55P03 lock not available, 57014 a
/// statement that took longer than the server lets it, which under load is no fault of the
/// statement. SQLite: busy, locked, I/O, full, cannot open.
#[must_use]
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(database) = error {
        let code = database.code().unwrap_or_default();
        return if database
            .try_downcast_ref::<sqlx::sqlite::SqliteError>()
            .is_some()
        {
            // The extended code keeps the primary one in its lower byte (sqlite.org/rescode.html).
            matches!(
                code.parse::<u32>().unwrap_or(0) & 0xff,
                5 | 6 | 8 | 10 | 13 | 14
            )
        } else {
            ["08", "53", "57P"]
                .iter()
                .any(|class| code.starts_with(class))
                || matches!(&*code, "25006" | "40001" | "40P01" | "55P03" | "57014")
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
    error
        .as_database_error()
        .is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

#[cfg(test)]
mod tests;
