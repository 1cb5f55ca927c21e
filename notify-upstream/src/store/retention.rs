//! Deletion of expired rows.

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use sqlx::{AssertSqlSafe, Encode, Postgres, Sqlite, Type};

use super::{Store, StoreResult};
use crate::notification::NotificationId;

/// Maximum rows of one statement, which bounds its duration, its locks and its WAL.
const DELETE_BATCH_SIZE: u64 = 5_000;
/// Maximum statements for one table at a time, so that a wrong time does not delete everything at
/// once: a round of maintenance deletes as much as 15,000 notifications a minute leave.
const MAX_DELETE_BATCHES: u64 = 100;

impl Store {
    /// Deletes idempotency keys used before `before`, and returns their number.
    pub(crate) async fn delete_idempotency_keys(&self, before: Timestamp) -> StoreResult<u64> {
        self.delete_expired("notify_key", "creator, key", "created_at", before)
            .await
    }

    /// Deletes webhook tokens received before `before`, and returns their number.
    pub(crate) async fn delete_webhook_tokens(&self, before: Timestamp) -> StoreResult<u64> {
        self.delete_expired("notify_webhook_token", "provider, token", "at", before)
            .await
    }

    /// Deletes data older than `keep_from`, except that of notifications that wait.
    pub(crate) async fn delete_before(&self, keep_from: Timestamp) -> StoreResult<()> {
        let oldest = NotificationId::floor(keep_from);
        let old = "id < $1 ORDER BY id";
        self.delete_where("notify_dead", "id", old, oldest).await?;
        for table in ["notify_result", "notify_record"] {
            // A replay moves a row from the dead letters to the queue: each snapshot has one of both.
            let is_waiting = ["notify_queue", "notify_delayed", "notify_dead"]
                .map(|waiting| format!("{waiting} w WHERE w.id = {table}.id"))
                .join(") AND NOT EXISTS (SELECT 1 FROM ");
            let old = format!("id < $1 AND NOT EXISTS (SELECT 1 FROM {is_waiting}) ORDER BY id");
            self.delete_where(table, "id", &old, oldest).await?;
        }
        let (key, column) = ("provider, event_id", "received_at");
        let deleted = self.delete_expired("notify_receipt", key, column, keep_from);
        deleted.await.map(drop)
    }

    /// Deletes the rows of a table whose column is below `before`.
    async fn delete_expired(
        &self,
        table: &str,
        key: &str,
        column: &str,
        before: Timestamp,
    ) -> StoreResult<u64> {
        let expired = format!("{column} < $1 ORDER BY {column}");
        self.delete_where(table, key, &expired, before.0).await
    }

    /// Deletes rows of a table with this key, in batches, and returns their number. Rows that another
    /// replica is deleting are left out.
    async fn delete_where<T>(
        &self,
        table: &str,
        key: &str,
        expired: &str,
        before: T,
    ) -> StoreResult<u64>
    where
        T: for<'q> Encode<'q, Postgres> + Type<Postgres>,
        T: for<'q> Encode<'q, Sqlite> + Type<Sqlite> + Copy + Send + 'static,
    {
        let skip_locked = self.syntax.skip_locked();
        let sql = format!(
            "WITH expired AS MATERIALIZED (
                SELECT {key} FROM {table} WHERE {expired} LIMIT {DELETE_BATCH_SIZE} {skip_locked}
            )
            DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM expired)"
        );
        let mut total = 0;
        for _ in 0..MAX_DELETE_BATCHES {
            let delete = AssertSqlSafe(sql.clone());
            let deleted = with_dialect!(self.connections.slow.writer(), pool => {
                sqlx::query(delete).bind(before).execute(pool).await?.rows_affected()
            });
            total += deleted;
            if deleted < DELETE_BATCH_SIZE {
                break;
            }
        }
        Ok(total)
    }
}
