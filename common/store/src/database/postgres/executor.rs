//! Implementation of the driver's executor for the pool: each statement has the pool's deadline,
//! and its failures are counted.

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Either, Error, Execute, Executor, Postgres, SqlStr};
use tokio::time::timeout;

use super::pool::PostgresPool;
use crate::database::statement::ReadableQuery;

type Rows = Vec<Either<PgQueryResult, PgRow>>;

impl PostgresPool {
    async fn fetch_rows(&self, query: ReadableQuery) -> Result<Rows, Error> {
        let mut connection = self.acquire().await?;
        let rows = timeout(
            self.deadline(),
            connection.fetch_many(query).try_collect::<Vec<_>>(),
        )
        .await;
        connection.finish(rows, self.deadline())
    }

    async fn fetch_row(&self, query: ReadableQuery) -> Result<Option<PgRow>, Error> {
        let mut connection = self.acquire().await?;
        let row = timeout(self.deadline(), connection.fetch_optional(query)).await;
        connection.finish(row, self.deadline())
    }
}

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
        let query = ReadableQuery::new(query);
        let answer = async move {
            let text = query.text();
            let progress = pool.failures().begin(text.as_str());
            let rows = pool.fetch_rows(query).await;
            progress.end(&rows);
            Ok(stream::iter(rows?.into_iter().map(Ok)))
        };
        answer.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let query = ReadableQuery::new(query);
        let answer = async move {
            let text = query.text();
            let progress = pool.failures().begin(text.as_str());
            let row = pool.fetch_row(query).await;
            progress.end(&row);
            row
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
