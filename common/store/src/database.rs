//! The durable store, PostgreSQL or SQLite, selected by URL.
//!
//! | URL | store |
//! |---|---|
//! | `postgres://user:password@host:5432/name?sslmode=verify-full` | PostgreSQL 15 or later, with every libpq TLS mode |
//! | `sqlite://./var/auth.db`, `sqlite:///srv/postern/auth.db` | one file, created with its directory if it does not exist |
//!
//! SQL belongs to each service's own store module; this module opens and migrates
//! the store and classifies errors. Instants are stored as Unix milliseconds
//! ([`postern_core::clock::Timestamp`]).
//!
//! Input: a URL and SQL of the stores. Output: connections whose statements have deadlines, and
//! rows.

mod failures;
mod label;
mod migrations;
mod postgres;
mod sqlite;
mod statement;
pub mod testing;
mod usage;

use std::time::{Duration, Instant};

use sqlx::SqlitePool;

pub use self::failures::StatementHealth;
pub use self::migrations::Migrations;
pub use self::postgres::{PooledConnection, PostgresPool, PostgresTransaction};
pub use self::sqlite::{Sqlite, SqliteTransaction};
pub use self::usage::{PoolMetrics, PoolUsage};
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::dependency::Availability;
use postern_core::exit::Exit;

/// Default maximum of PostgreSQL connections of a pool, more than two cores need.
pub const DEFAULT_CONNECTIONS: u32 = 10;
/// Prepared statements cached per connection, more than any service has.
const STATEMENT_CACHE: usize = 256;
/// Maximum time of a readiness check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Something for each of the two databases. [`with_dialect!`](crate::with_dialect) evaluates one
/// expression for both.
#[derive(Clone, Copy, Debug)]
pub enum Dialect<P, S> {
    /// For PostgreSQL 15 or later.
    Postgres(P),
    /// For one SQLite file.
    Sqlite(S),
}

/// An open store: a pool of connections to PostgreSQL, or one SQLite file with one writer and
/// several readers.
pub type Database = Dialect<PostgresPool, Sqlite>;

/// Evaluates an expression for the database in use: `with_dialect!(store, inner => inner.read())`.
#[macro_export]
macro_rules! with_dialect {
    ($dialect:expr, $inner:ident => $run:expr) => {
        match $dialect {
            $crate::database::Dialect::Postgres($inner) => $run,
            $crate::database::Dialect::Sqlite($inner) => $run,
        }
    };
}

/// Implements [`sqlx::FromRow`] for a struct of columns with the names of its fields. A field with
/// `as TYPE` is a column of that type, converted by [`TryFrom`].
///
/// sqlx's own derive macro would build its drivers a second time, as dependencies of a macro.
#[macro_export]
macro_rules! from_row {
    ($name:ty { $($field:ident: $type:ty $(as $column:ty)?),+ $(,)? }) => {
        impl<'r, R: sqlx::Row> sqlx::FromRow<'r, R> for $name
        where
            &'static str: sqlx::ColumnIndex<R>,
            $($crate::from_row!(@column $type $(, $column)?): sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,)+
        {
            fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
                Ok(Self { $($field: $crate::from_row!(@get row, $field $(, $column)?),)+ })
            }
        }
    };
    (@column $type:ty) => { $type };
    (@column $type:ty, $column:ty) => { $column };
    (@get $row:ident, $field:ident) => { $row.try_get(stringify!($field))? };
    (@get $row:ident, $field:ident, $column:ty) => {
        $row.try_get::<$column, _>(stringify!($field))?
            .try_into()
            .map_err(|error| $crate::database::column_error(stringify!($field), error))?
    };
}

/// Returns the error for a column whose value cannot be converted.
pub fn column_error(
    column: &str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: source.into(),
    }
}

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct DatabaseOptions {
    /// Name of the service, shown by PostgreSQL in `pg_stat_activity`.
    pub application_name: String,
    /// Maximum PostgreSQL connections of the pool. Default [`DEFAULT_CONNECTIONS`].
    pub max_connections: u32,
    /// Maximum wait for a connection before the request fails as unavailable. Default 2 s.
    pub acquire_timeout: Duration,
    /// Maximum time of a PostgreSQL statement once it has a connection. Then the connection is
    /// closed and the request fails as unavailable. Default 2 s.
    pub statement_timeout: Duration,
    /// Whether a SQLite file that does not exist is created. Default true.
    pub create: bool,
}

// === impl DatabaseOptions ===

impl DatabaseOptions {
    /// Returns the options of a command, which reads what a service has written and creates no file.
    #[must_use]
    pub fn for_command(application_name: &str) -> Self {
        Self {
            create: false,
            ..Self::new(application_name)
        }
    }

    /// Returns the default options with an application name.
    #[must_use]
    pub fn new(application_name: &str) -> Self {
        Self {
            application_name: application_name.to_owned(),
            max_connections: DEFAULT_CONNECTIONS,
            acquire_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(2),
            create: true,
        }
    }
}

// === impl Database ===

impl Database {
    /// Opens the store and verifies that it answers.
    ///
    /// # Errors
    /// Exit status 64 if the URL names no supported store; 69 if the store is unavailable or
    /// rejects the connection. The message is one line with the URL without its password.
    pub async fn open(url: &str, options: DatabaseOptions) -> Result<Self, Exit> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => {
                let database = Self::Postgres(postgres::open(url, &options).await?);
                if let Some(warning) = database.transport_warning() {
                    tracing::warn!(
                        database = database.label(),
                        warning,
                        "database transport unsafe"
                    );
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

    /// Connects to the store once, without opening it. A SQLite file is always available.
    ///
    /// # Errors
    /// Exit status 64 if the URL names no supported store; 69 if the store rejects the connection.
    pub async fn probe(url: &str, options: &DatabaseOptions) -> Result<Availability, Exit> {
        if url.starts_with("postgres") {
            postgres::probe(url, options).await
        } else {
            Ok(Availability::Available)
        }
    }

    /// Applies the service's migrations that this binary knows; newer ones stay applied. Any number
    /// of processes may call this concurrently.
    pub async fn migrate(&self, migrations: &Migrations) -> Result<(), Exit> {
        migrations::run(self, migrations).await
    }

    /// Verifies that the schema has all migrations of this binary, and changes nothing. For commands,
    /// which must not migrate a database while a service of an older release uses it.
    pub async fn verify_schema(&self, migrations: &Migrations) -> Result<(), Exit> {
        migrations::verify(self, migrations).await
    }

    /// Verifies that the store accepts writes and that this binary still supports the schema, which
    /// a newer binary may have migrated meanwhile. For readiness checks.
    ///
    /// # Errors
    /// Exit status 75 if a write does not succeed within two seconds; 69 if the schema requires a
    /// newer binary.
    pub async fn verify_writable(&self, migrations: &Migrations) -> Result<(), Exit> {
        let cause = match tokio::time::timeout(
            PROBE_TIMEOUT,
            migrations::verify_writable(self, migrations),
        )
        .await
        {
            Ok(Ok(result)) => return result,
            Ok(Err(error)) => postgres::one_line(&error),
            Err(_) => format!("no answer within {} s", PROBE_TIMEOUT.as_secs()),
        };
        if let Self::Postgres(pool) = self {
            pool.failures().clear();
        }
        Err(Exit::unavailable(format!("the database accepts no writes: {cause}")).temporary())
    }

    /// Returns a warning if the connection may be unencrypted: PostgreSQL is on another host and
    /// the URL has no `sslmode`. The default is `prefer`, which continues without TLS if the
    /// server, or an attacker on the path, does not offer it.
    #[must_use]
    pub fn transport_warning(&self) -> Option<&'static str> {
        match self {
            Self::Postgres(pool) if pool.may_be_unencrypted() => Some(
                "the URL has no sslmode and the server is on another host: data and password may travel unencrypted; \
                 add sslmode=verify-full",
            ),
            Self::Postgres(_) | Self::Sqlite(_) => None,
        }
    }

    /// Returns the connections for statements that change something.
    #[must_use]
    pub fn writer(&self) -> Dialect<&PostgresPool, &SqlitePool> {
        match self {
            Self::Postgres(pool) => Dialect::Postgres(pool),
            Self::Sqlite(sqlite) => Dialect::Sqlite(&sqlite.writer),
        }
    }

    /// Returns the connections for statements that only read.
    #[must_use]
    pub fn readers(&self) -> Dialect<&PostgresPool, &SqlitePool> {
        match self {
            Self::Postgres(pool) => Dialect::Postgres(pool),
            Self::Sqlite(sqlite) => Dialect::Sqlite(&sqlite.readers),
        }
    }

    /// Performs one round trip, to verify that the store answers.
    ///
    /// # Errors
    /// The driver's error, or a pool timeout if the store does not answer within two seconds.
    pub async fn ping(&self) -> Result<(), sqlx::Error> {
        let answer = async {
            with_dialect!(self.readers(), pool => {
                sqlx::query("SELECT 1").execute(pool).await.map(drop)
            })
        };
        tokio::time::timeout(PROBE_TIMEOUT, answer)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Corrects a shared clock to that of PostgreSQL; SQLite has none of its own.
    pub async fn synchronize(&self, clock: &Clock) -> Result<(), sqlx::Error> {
        const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";
        if let Self::Postgres(pool) = self {
            let began = Instant::now();
            let now = sqlx::query_scalar(NOW).fetch_one(pool).await?;
            clock.correct(Timestamp(now), began);
        }
        Ok(())
    }

    /// Returns the clock of what is stored: that of PostgreSQL, which several processes share, or that
    /// of this machine.
    pub async fn clock(&self, machine: &Clock) -> Result<Clock, Exit> {
        let clock = match self {
            Self::Postgres(_) => machine.shared(),
            Self::Sqlite(_) => machine.clone(),
        };
        let synchronized = self.synchronize(&clock).await;
        synchronized
            .map_err(|error| Exit::unavailable(format!("database {}: {error}", self.label())))?;
        Ok(clock)
    }

    /// Closes all connections. SQLite checkpoints its write-ahead log.
    pub async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(sqlite) => {
                sqlite.readers.close().await;
                sqlite.writer.close().await;
            }
        }
    }

    /// Returns the use of the connections, or `None` for SQLite.
    #[must_use]
    pub fn usage(&self) -> Option<PoolUsage> {
        match self {
            Self::Postgres(pool) => Some(pool.usage()),
            Self::Sqlite(_) => None,
        }
    }

    /// Returns the store's URL without password and parameters, for logs and error messages.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Postgres(pool) => pool.label(),
            Self::Sqlite(sqlite) => label::sqlite(&sqlite.writer.connect_options()),
        }
    }
}

/// PostgreSQL's classes and codes of unavailability: 08 connection, 53 resources, 57P operator
/// intervention, 25006 read-only after a failover, 40001 and 40P01 serialization failure and deadlock,
/// 55P03 lock not available, 57014 `statement_timeout`, which occurs under load.
const UNAVAILABLE_CODES: [&str; 8] = [
    "08", "53", "57P", "25006", "40001", "40P01", "55P03", "57014",
];

/// Returns whether an error means that the store is unavailable, overloaded or restarting (503,
/// worth a retry), rather than that the statement is wrong (500): `UNAVAILABLE_CODES`, and SQLite's
/// busy, locked, I/O, full, cannot open.
#[must_use]
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(database) = error {
        let code = database.code().unwrap_or_default();
        let is_sqlite = database.try_downcast_ref::<sqlx::sqlite::SqliteError>();
        if is_sqlite.is_none() {
            let mut classes = UNAVAILABLE_CODES.iter();
            return classes.any(|class| code.starts_with(class));
        }
        // The extended code contains the primary code in its lower byte (sqlite.org/rescode.html).
        let primary = code.parse::<u32>().unwrap_or(0) & 0xff;
        return matches!(primary, 5 | 6 | 8 | 10 | 13 | 14);
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

/// Returns whether an error means that a row with this key already exists.
#[must_use]
pub fn is_unique_violation(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

#[cfg(test)]
mod tests;
