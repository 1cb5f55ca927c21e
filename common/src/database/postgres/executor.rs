//! The pool as what the driver runs statements on, each within the pool's deadline.

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Describe, Either, Error, Execute, Executor, Postgres, SqlStr};
use tokio::time::timeout;

use super::pool::PostgresPool;

impl<'p> Executor<'p> for &'_ PostgresPool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let answer = async move {
            let mut lease = pool.acquire().await?;
            let rows = timeout(
                pool.deadline(),
                lease.fetch_many(query).try_collect::<Vec<_>>(),
            )
            .await;
            let rows = lease.settle(rows, pool.deadline())?;
            Ok(stream::iter(rows.into_iter().map(Ok)))
        };
        answer.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let answer = async move {
            let mut lease = pool.acquire().await?;
            let row = timeout(pool.deadline(), lease.fetch_optional(query)).await;
            lease.settle(row, pool.deadline())
        };
        answer.boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        let answer = async move {
            let mut lease = pool.acquire().await?;
            let statement = timeout(pool.deadline(), lease.prepare_with(sql, parameters)).await;
            lease.settle(statement, pool.deadline())
        };
        answer.boxed()
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        let answer = async move {
            let mut lease = pool.acquire().await?;
            let described = timeout(pool.deadline(), lease.describe(sql)).await;
            lease.settle(described, pool.deadline())
        };
        answer.boxed()
    }
}
