//! Implementations of the driver's executor with a client span for each statement of a sampled
//! trace.

use std::ops::{Deref, DerefMut};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::sqlite::{SqliteQueryResult, SqliteRow, SqliteStatement, SqliteTypeInfo};
use sqlx::{Either, Error, Execute, Executor, SqlStr, Sqlite, SqliteConnection, Transaction};

use crate::database::statement::{ReadableQuery, SpanTarget, in_span};

/// Connections to one file, all for writes or all for reads.
#[derive(Clone, Debug)]
pub struct SqlitePool(sqlx::SqlitePool);

/// A write transaction. If it is dropped without a commit, it is rolled back.
#[derive(Debug)]
pub struct SqliteTransaction(TransactionConnection);

/// The connection of a transaction.
#[derive(Debug)]
pub struct TransactionConnection(Transaction<'static, Sqlite>);

/// The path of the file is no attribute: it is the same for all statements of a process.
const TARGET: SpanTarget<'static> = SpanTarget {
    system: "sqlite",
    namespace: None,
    server: None,
};

// === impl SqlitePool ===

impl SqlitePool {
    pub(super) fn new(pool: sqlx::SqlitePool) -> Self {
        Self(pool)
    }

    pub(super) async fn begin_immediate(&self) -> Result<SqliteTransaction, Error> {
        const BEGIN: &str = "BEGIN IMMEDIATE";
        let transaction = in_span(TARGET, recorded(BEGIN), self.0.begin_with(BEGIN)).await?;
        Ok(SqliteTransaction(TransactionConnection(transaction)))
    }
}

impl Deref for SqlitePool {
    type Target = sqlx::SqlitePool;

    fn deref(&self) -> &sqlx::SqlitePool {
        &self.0
    }
}

// === impl SqliteTransaction ===

impl SqliteTransaction {
    /// Commits the transaction.
    ///
    /// # Errors
    /// The driver's error.
    pub async fn commit(self) -> Result<(), Error> {
        let TransactionConnection(transaction) = self.0;
        in_span(TARGET, recorded("COMMIT"), transaction.commit()).await
    }

    /// Rolls the transaction back.
    ///
    /// # Errors
    /// The driver's error.
    pub async fn rollback(self) -> Result<(), Error> {
        let TransactionConnection(transaction) = self.0;
        in_span(TARGET, recorded("ROLLBACK"), transaction.rollback()).await
    }
}

impl Deref for SqliteTransaction {
    type Target = TransactionConnection;

    fn deref(&self) -> &TransactionConnection {
        &self.0
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut TransactionConnection {
        &mut self.0
    }
}

/// The connection itself, whose statements have no spans.
impl Deref for TransactionConnection {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.0
    }
}

impl DerefMut for TransactionConnection {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.0
    }
}

/// Returns the text of a statement for its span, if there is one.
fn recorded(sql: &'static str) -> Option<SqlStr> {
    ReadableQuery::<Sqlite>::new(sql).recorded_text()
}

/// Implements the executor by the one of the driver that an expression returns.
macro_rules! executor {
    ($lifetime:lifetime $name:ty, $it:ident => $inner:expr) => {
        impl<$lifetime> Executor<$lifetime> for $name {
            type Database = Sqlite;

            fn fetch_many<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> BoxStream<'e, Result<Either<SqliteQueryResult, SqliteRow>, Error>>
            where
                $lifetime: 'e,
                E: 'q + Execute<'q, Sqlite>,
            {
                let ($it, query) = (self, ReadableQuery::new(query));
                let answer = async move {
                    let sql = query.recorded_text();
                    let rows = $inner.fetch_many(query).try_collect::<Vec<_>>();
                    let rows = in_span(TARGET, sql, rows).await?;
                    Ok(stream::iter(rows.into_iter().map(Ok)))
                };
                answer.try_flatten_stream().boxed()
            }

            fn fetch_optional<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> BoxFuture<'e, Result<Option<SqliteRow>, Error>>
            where
                $lifetime: 'e,
                E: 'q + Execute<'q, Sqlite>,
            {
                let ($it, query) = (self, ReadableQuery::new(query));
                let answer = async move {
                    let sql = query.recorded_text();
                    in_span(TARGET, sql, $inner.fetch_optional(query)).await
                };
                answer.boxed()
            }

            fn prepare_with<'e>(
                self,
                sql: SqlStr,
                parameters: &'e [SqliteTypeInfo],
            ) -> BoxFuture<'e, Result<SqliteStatement, Error>>
            where
                $lifetime: 'e,
            {
                let $it = self;
                $inner.prepare_with(sql, parameters)
            }
        }
    };
}

executor!('c &'c SqlitePool, pool => (&pool.0));
executor!('c &'c mut TransactionConnection, connection => (&mut *connection.0));
