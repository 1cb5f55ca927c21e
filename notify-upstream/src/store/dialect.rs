//! The differences between the two databases. All other modules have one text for each statement.
//!
//! | what | PostgreSQL | SQLite | reason |
//! |---|---|---|---|
//! | list parameter | array | `json_each` | SQLite has no arrays; in PostgreSQL `= ANY` of an array is one index condition, whatever the statistics say |
//! | subselect | `ARRAY` | `IN` | PostgreSQL would plan a join, see `queue` |
//! | rows parameter | `jsonb_to_recordset` | `json_each` | no JSON function is in both |
//! | locks of selected rows | `FOR UPDATE`, `SKIP LOCKED` | none | a transaction of SQLite is the only writer |
//! | clock | that of the server, see `Store::synchronize` | the caller's | replicas on several hosts share a PostgreSQL, one process uses a SQLite file |

use std::time::Duration;

use postern_core::Clock;
use postern_store::database::{Database, Dialect, PoolUsage};
use serde::Serialize;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo};
use sqlx::{Encode, Postgres, Sqlite, Type};

use super::{Store, StoreResult};

/// The parts of a statement that are written in two ways.
#[derive(Clone, Copy, Debug)]
pub(super) enum Syntax {
    /// PostgreSQL.
    Postgres,
    Sqlite,
}

/// A list as a parameter, for [`Syntax::in_list`].
#[derive(Clone, Copy, Debug)]
pub(super) struct List<'a, T>(pub(super) &'a [T]);

/// The connections of the store. All are the same for SQLite.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    /// For the queue, with planner settings of their own.
    pub(super) queue: Database,
    /// The same, for statements that a caller waits for.
    pub(super) urgent: Database,
    /// For all other statements.
    pub(super) history: Database,
    /// The same, for statements over many rows.
    pub(super) slow: Database,
}

/// Deadline of a statement of the dispatcher, which changes a few hundred rows.
const QUEUE_DEADLINE: Duration = Duration::from_secs(5);
/// Deadline of a maintenance or command-line statement.
const SLOW_DEADLINE: Duration = Duration::from_secs(30);

/// The statistics of a table that is empty at one time and has a million rows soon afterwards
/// mislead the planner in both directions: these settings leave only the index path. A statement
/// that exceeds the timeout has lost its caller.
const QUEUE_SETTINGS: [(&str, &str); 10] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_memoize", "off"),
    ("enable_incremental_sort", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("statement_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

/// Executes statements in one transaction, each with `&mut *$transaction`. The last expression is
/// the result; the transaction is committed whatever it is. Its failures are counted under `$sql`,
/// the statement that it is for.
macro_rules! transaction {
    ($database:expr, $sql:literal, $transaction:ident => $statements:block) => {
        match &$database {
            ::postern_store::database::Dialect::Postgres(pool) => {
                let work = transaction!(@work pool, $transaction, $statements);
                pool.in_transaction($sql, work).await
            }
            ::postern_store::database::Dialect::Sqlite(sqlite) => {
                transaction!(@work sqlite, $transaction, $statements).await
            }
        }
        .map_err($crate::store::StoreError::from)
    };
    (@work $pool:ident, $transaction:ident, $statements:block) => {
        // On the heap, because the statements of a transaction are large futures.
        Box::pin(async {
            let mut $transaction = $pool.begin().await?;
            let result = $statements;
            $transaction.commit().await?;
            Ok::<_, sqlx::Error>(result)
        })
    };
}
pub(super) use transaction;

/// Executes a statement with rows in a [`transaction!`], if there are any.
macro_rules! execute_rows {
    ($transaction:ident, $sql:expr, $rows:ident) => {
        if !$rows.is_empty() {
            let change = sqlx::query(sqlx::AssertSqlSafe($sql));
            let change = change.bind($crate::store::dialect::rows_json(&$rows));
            change.execute(&mut *$transaction).await?;
        }
    };
}
pub(super) use execute_rows;

/// Serializes the rows of a parameter, for [`Syntax::rows`].
pub(super) fn rows_json(rows: &[impl Serialize]) -> String {
    serde_json::to_string(rows).unwrap_or_else(|_| "[]".to_owned())
}

/// Returns bytes as a column of type `bytea` of [`Syntax::rows`]: JSON has no binary type.
pub(super) fn bytes_json(bytes: impl AsRef<[u8]>) -> String {
    format!("\\x{}", hex::encode(bytes))
}

// === impl Syntax ===

impl Syntax {
    pub(super) fn of(database: &Database) -> Self {
        match database {
            Dialect::Postgres(_) => Self::Postgres,
            Dialect::Sqlite(_) => Self::Sqlite,
        }
    }

    /// Returns the condition that a column is in the [`List`] of a parameter.
    pub(super) fn in_list(self, parameter: u8) -> String {
        match self {
            Self::Postgres => format!("= ANY(${parameter})"),
            Self::Sqlite => format!("IN (SELECT value FROM json_each(${parameter}))"),
        }
    }

    /// Returns the condition that a column is among the results of a statement, which is executed
    /// once.
    pub(super) fn in_select(self, select: &str) -> String {
        match self {
            Self::Postgres => format!("= ANY(ARRAY({select}))"),
            Self::Sqlite => format!("IN ({select})"),
        }
    }

    /// Returns the table `input` of the rows of a parameter, see [`rows_json`]. The columns are
    /// given as name and PostgreSQL type, such as `id uuid, lane int2`.
    pub(super) fn rows(self, parameter: u8, columns: &str) -> String {
        if let Self::Postgres = self {
            return format!("jsonb_to_recordset(${parameter}::jsonb) AS input({columns})");
        }
        let column = |column: &str| match column.split_once(' ') {
            Some((name, "bytea")) => format!("unhex(substr(value ->> '{name}', 3)) AS {name}"),
            Some((name, _)) => format!("value ->> '{name}' AS {name}"),
            None => column.to_owned(),
        };
        let columns = columns
            .split(", ")
            .map(column)
            .collect::<Vec<_>>()
            .join(", ");
        format!("(SELECT {columns} FROM json_each(${parameter})) AS input")
    }

    /// Returns the statement that inserts the rows of its first parameter, see [`Self::rows`].
    pub(super) fn insert(self, table: &str, columns: &str) -> String {
        let name = |column: &str| column.split(' ').next().unwrap_or_default().to_owned();
        let names: Vec<String> = columns.split(", ").map(name).collect();
        let (names, rows) = (names.join(", "), self.rows(1, columns));
        format!("INSERT INTO {table} ({names}) SELECT {names} FROM {rows}")
    }

    /// Returns the clause that locks selected rows.
    pub(super) const fn for_update(self) -> &'static str {
        match self {
            Self::Postgres => "FOR UPDATE",
            Self::Sqlite => "",
        }
    }

    /// Returns the clause that locks selected rows and leaves out those that are locked.
    pub(super) const fn skip_locked(self) -> &'static str {
        match self {
            Self::Postgres => "FOR UPDATE SKIP LOCKED",
            Self::Sqlite => "",
        }
    }

    /// Returns the current time of the database in milliseconds.
    pub(super) const fn clock(self) -> &'static str {
        match self {
            Self::Postgres => "(extract(epoch FROM clock_timestamp()) * 1000)::int8",
            Self::Sqlite => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        }
    }
}

// === impl List ===

impl<T: PgHasArrayType> Type<Postgres> for List<'_, T> {
    fn type_info() -> PgTypeInfo {
        <[T] as Type<Postgres>>::type_info()
    }
}

impl<'q, T: Encode<'q, Postgres> + Type<Postgres>> Encode<'q, Postgres> for List<'_, T> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.0.encode_by_ref(buffer)
    }
}

impl<T> Type<Sqlite> for List<'_, T> {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl<T: Serialize> Encode<'_, Sqlite> for List<'_, T> {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        <String as Encode<Sqlite>>::encode(rows_json(self.0), buffer)
    }
}

// === impl Connections ===

impl Connections {
    /// Creates the connections of a store in an open database. Those of the queue use the same
    /// servers and credentials.
    pub(super) fn new(database: &Database, queue_connections: u32) -> Self {
        let Dialect::Postgres(pool) = database else {
            let [queue, urgent, history, slow] = std::array::from_fn(|_| database.clone());
            return Self {
                queue,
                urgent,
                history,
                slow,
            };
        };
        let queue = pool.separate(queue_connections, &QUEUE_SETTINGS, QUEUE_DEADLINE);
        Self {
            urgent: Database::Postgres(queue.with_deadline(pool.deadline())),
            queue: Database::Postgres(queue),
            history: database.clone(),
            slow: Database::Postgres(pool.with_deadline(SLOW_DEADLINE)),
        }
    }
}

// === impl Store ===

impl Store {
    /// Closes the connections of the queue, without waiting for those in use. The database is closed
    /// by its owner.
    pub(crate) async fn close(&self) {
        if let Dialect::Postgres(queue) = &self.connections.queue {
            queue.close().await;
        }
    }

    /// Returns the use of the connections of the queue, or `None` for SQLite.
    pub(crate) fn queue_usage(&self) -> Option<PoolUsage> {
        self.connections.queue.usage()
    }

    /// Returns whether several processes may share the store.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.syntax, Syntax::Postgres)
    }

    /// Corrects a clock to that of the database, if several processes share it: whatever is stored,
    /// identifiers included, has the time of the database, and whatever expires does so by it.
    pub(crate) async fn synchronize(&self, clock: &Clock) -> StoreResult<()> {
        Ok(self.connections.history.synchronize(clock).await?)
    }
}
