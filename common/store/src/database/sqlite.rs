//! SQLite: one file with one writing connection and several readers.

use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _, SqlitePool};

use super::{DatabaseOptions, label, postgres};
use postern_core::exit::Exit;

/// Maximum wait for another process's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of reading connections.
const READERS: u32 = 4;

/// A write transaction. If it is dropped without a commit, it is rolled back.
pub type SqliteTransaction = sqlx::Transaction<'static, sqlx::Sqlite>;

/// One SQLite file in WAL mode with `synchronous=FULL`: a commit survives SIGKILL and power loss.
#[derive(Clone, Debug)]
pub struct Sqlite {
    /// The only writing connection. SQLite allows one writer at a time; waiting for it in this
    /// pool's queue is cheaper and fairer than SQLite's busy loop.
    pub writer: SqlitePool,
    /// Reading connections, which reject writes.
    pub readers: SqlitePool,
}

impl Sqlite {
    /// Begins a write transaction with `BEGIN IMMEDIATE`, which takes the lock at once. A deferred
    /// transaction that reads first would fail if another process wrote in between.
    pub async fn begin(&self) -> Result<SqliteTransaction, sqlx::Error> {
        self.writer.begin_with("BEGIN IMMEDIATE").await
    }
}

pub(super) async fn open(url: &str, options: &DatabaseOptions) -> Result<Sqlite, Exit> {
    let connect = SqliteConnectOptions::from_str(url)
        .map_err(|error| Exit::usage(format!("database `{url}`: not a SQLite URL: {error}")))?
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        // Otherwise statement journals and sorts use a temporary file per statement.
        .pragma("temp_store", "memory")
        // Overwrites what is deleted: recipients, contents and addresses stay in no free page.
        .pragma("secure_delete", "on")
        .statement_cache_capacity(super::STATEMENT_CACHE)
        .disable_statement_logging();
    if url.contains(":memory:") || url.contains("mode=memory") {
        return Err(Exit::usage(format!("database `{url}`: must name a file")));
    }
    if !options.create && !connect.get_filename().exists() {
        return Err(Exit::unavailable(format!(
            "database {url}: the file does not exist; the service creates it when it starts"
        )));
    }
    create_file(connect.get_filename()).map_err(|error| {
        Exit::unavailable(format!("database {url}: cannot create the file: {error}"))
    })?;
    let label = label::sqlite(&connect);
    let unavailable = |error: &sqlx::Error| {
        let error = postgres::one_line(error);
        Exit::unavailable(format!("database {label} is not available: {error}"))
    };
    let writer = pool(1, options.acquire_timeout.max(BUSY_TIMEOUT))
        .connect_with(
            connect
                .clone()
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full),
        )
        .await
        .map_err(|error| unavailable(&error))?;
    let readers = pool(READERS, options.acquire_timeout).connect_lazy_with(
        connect
            .pragma("query_only", "on")
            .optimize_on_close(false, None),
    );
    Ok(Sqlite { writer, readers })
}

fn pool(connections: u32, acquire_timeout: Duration) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(acquire_timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        // SQLite ends transactions automatically if the disk is full or fails
        // (sqlite.org/lang_transaction.html, section 3.1); the driver's rollback then fails, it still
        // counts the transaction, and would reject every later one on this connection.
        .before_acquire(|connection, _| {
            Box::pin(async move { Ok(!connection.is_in_transaction()) })
        })
}

/// Creates the file with mode 0600, and its directory with mode 0700. SQLite creates its
/// write-ahead log with the same mode as the file.
fn create_file(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    if let Some(folder) = folder {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder)?;
    }
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}
