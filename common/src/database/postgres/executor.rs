//! Implementation of the driver's executor for the pool: each statement has the pool's deadline.

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Either, Error, Execute, Executor, Postgres, SqlStr};
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
            let mut connection = pool.acquire().await?;
            let rows = timeout(
                pool.deadline(),
                connection.fetch_many(query).try_collect::<Vec<_>>(),
            )
            .await;
            let rows = connection.finish(rows, pool.deadline())?;
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
            let mut connection = pool.acquire().await?;
            let row = timeout(pool.deadline(), connection.fetch_optional(query)).await;
            connection.finish(row, pool.deadline())
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
            let mut connection = pool.acquire().await?;
            let statement =
                timeout(pool.deadline(), connection.prepare_with(sql, parameters)).await;
            connection.finish(statement, pool.deadline())
        };
        answer.boxed()
    }
}
