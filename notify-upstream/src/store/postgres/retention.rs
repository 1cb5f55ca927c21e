//! Deletion of expired rows in bounded batches.

use sqlx::postgres::Postgres as Driver;
use sqlx::{AssertSqlSafe, Encode, Type};

use super::Postgres;
use crate::notification::NotificationId;
use crate::store::StoreResult;
use postern_common::clock::Timestamp;

/// Maximum rows of one statement, which bounds its duration, its locks and its WAL.
const DELETE_BATCH_SIZE: u64 = 5_000;

/// A bound below which rows have expired, as the column stores it.
pub(super) trait Expiry: Copy {
    /// The type of the column.
    type Column: for<'q> Encode<'q, Driver> + Type<Driver> + Send + 'static;

    /// Returns the bound as the column stores it.
    fn column(self) -> Self::Column;
}

impl Expiry for Timestamp {
    type Column = i64;

    fn column(self) -> i64 {
        self.0
    }
}

impl Expiry for NotificationId {
    type Column = Self;

    fn column(self) -> Self {
        self
    }
}

impl Postgres {
    /// Deletes the rows of `table` whose `column` is below `before`, and returns their number. Rows
    /// that another replica is deleting are skipped.
    pub(super) async fn delete_expired<E: Expiry>(
        &self,
        table: &str,
        column: &str,
        before: E,
    ) -> StoreResult<u64> {
        let sql = format!(
            "DELETE FROM {table} WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM {table} WHERE {column} < $1 ORDER BY {column} LIMIT $2 FOR UPDATE SKIP LOCKED
            )) AND {column} < $1"
        );
        let limit = i64::try_from(DELETE_BATCH_SIZE).unwrap_or(i64::MAX);
        let mut total = 0;
        loop {
            let deleted = sqlx::query(AssertSqlSafe(sql.clone()))
                .bind(before.column())
                .bind(limit)
                .execute(&self.slow)
                .await?
                .rows_affected();
            total += deleted;
            if deleted < DELETE_BATCH_SIZE {
                return Ok(total);
            }
        }
    }
}
