//! Deletion of expired rows, and the partitions of PostgreSQL.

use std::time::Duration;

use postern_common::clock::Timestamp;
use postern_common::database::{Dialect, PostgresPool, PostgresTransaction, Sqlite};
use postern_common::with_dialect;
use sqlx::AssertSqlSafe;

use super::{Store, StoreError, StoreResult};
use crate::notification::NotificationId;

/// A partition holds one week: with ninety days of retention, the planner considers thirteen
/// partitions.
const PARTITION: Duration = Duration::from_secs(7 * 86_400);
/// `lock_not_available` (PostgreSQL documentation, appendix A).
const LOCKED: &str = "55P03";
/// Maximum rows of one statement, which bounds its duration, its locks and its WAL.
const DELETE_BATCH_SIZE: u64 = 5_000;

/// Reads the catalog itself: `to_regclass` of the partition may be answered from a cache that does
/// not have the partition that another replica has just created.
const HAS_PARTITION: &str =
    "SELECT EXISTS (SELECT 1 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass($1) AND c.relname = $2)";

impl Store {
    /// Deletes idempotency keys used before `before`, and returns their number.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn delete_idempotency_keys(&self, before: Timestamp) -> StoreResult<u64> {
        self.delete_expired("notify_key", "creator, key", "created_at", before)
            .await
    }

    /// Deletes webhook tokens received before `before`, and returns their number.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn delete_webhook_tokens(&self, before: Timestamp) -> StoreResult<u64> {
        self.delete_expired("notify_webhook_token", "provider, token", "at", before)
            .await
    }

    /// Creates the partitions of the near future, and deletes data older than `keep_from`.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn maintain(&self, now: Timestamp, keep_from: Timestamp) -> StoreResult<()> {
        const DEAD: &str = "DELETE FROM notify_dead WHERE id < $1";
        match &self.connections.slow {
            Dialect::Postgres(pool) => maintain_partitions(pool, now, keep_from).await?,
            Dialect::Sqlite(sqlite) => delete_old_records(sqlite, keep_from).await?,
        }
        with_dialect!(self.connections.slow.writer(), pool => {
            let delete = sqlx::query(DEAD).bind(NotificationId::floor(keep_from));
            delete.execute(pool).await?;
        });
        for (table, key, column) in [
            ("notify_receipt", "provider, event_id", "received_at"),
            (
                "notify_suppression_lifted",
                "channel, address, category",
                "at",
            ),
        ] {
            self.delete_expired(table, key, column, keep_from).await?;
        }
        Ok(())
    }

    /// Deletes the rows of a table with this primary key whose column is below `before`, in batches,
    /// and returns their number. Rows that another replica is deleting are left out.
    async fn delete_expired(
        &self,
        table: &str,
        key: &str,
        column: &str,
        before: Timestamp,
    ) -> StoreResult<u64> {
        let skip_locked = self.syntax.skip_locked();
        let sql = format!(
            "WITH expired AS MATERIALIZED (
                SELECT {key} FROM {table} WHERE {column} < $1 ORDER BY {column} LIMIT {DELETE_BATCH_SIZE} {skip_locked}
            )
            DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM expired)"
        );
        let mut total = 0;
        loop {
            let delete = AssertSqlSafe(sql.clone());
            let deleted = with_dialect!(self.connections.slow.writer(), pool => {
                sqlx::query(delete).bind(before.0).execute(pool).await?.rows_affected()
            });
            total += deleted;
            if deleted < DELETE_BATCH_SIZE {
                return Ok(total);
            }
        }
    }
}

/// Deletes old records and results, except those of notifications that wait.
async fn delete_old_records(sqlite: &Sqlite, keep_from: Timestamp) -> StoreResult<()> {
    for table in ["notify_result", "notify_record"] {
        let sql = format!(
            "DELETE FROM {table} AS old WHERE id < $1 AND NOT EXISTS (SELECT 1 FROM notify_queue q WHERE q.id = old.id)
                AND NOT EXISTS (SELECT 1 FROM notify_delayed d WHERE d.id = old.id)"
        );
        let delete = sqlx::query(AssertSqlSafe(sql)).bind(NotificationId::floor(keep_from));
        delete.execute(&sqlite.writer).await?;
    }
    Ok(())
}

/// Creates the partitions of this week and the next, and drops those that end before `keep_from`. A
/// partition is created separately and attached, which does not block inserts. The function does not
/// wait for locks held for long, such as by a dump or a forgotten session, because all later
/// statements would queue behind it; the next call catches up.
async fn maintain_partitions(
    pool: &PostgresPool,
    now: Timestamp,
    keep_from: Timestamp,
) -> StoreResult<()> {
    let maintained = pool.within_deadline(keep_partitions(pool, now, keep_from));
    match maintained.await {
        Err(StoreError::Unavailable(sqlx::Error::Database(error)))
            if error.code().as_deref() == Some(LOCKED) =>
        {
            tracing::warn!("partition maintenance skipped, table is locked");
            Ok(())
        }
        outcome => outcome,
    }
}

async fn keep_partitions(
    pool: &PostgresPool,
    now: Timestamp,
    keep_from: Timestamp,
) -> StoreResult<()> {
    let week = i64::try_from(PARTITION.as_millis()).unwrap_or(i64::MAX);
    for table in ["notify_record", "notify_result"] {
        for number in [now.0.div_euclid(week), now.0.div_euclid(week) + 1] {
            add_partition(pool, table, number, week).await?;
        }
        for old in partitions(pool, table).await? {
            if (old + 1).saturating_mul(week) <= keep_from.0 {
                let mut transaction = begin_briefly(pool).await?;
                let sql = format!("DROP TABLE IF EXISTS {table}_w{old}");
                sqlx::query(AssertSqlSafe(sql))
                    .execute(&mut *transaction)
                    .await?;
                transaction.commit().await?;
            }
        }
    }
    Ok(())
}

/// Begins a transaction that waits at most a second for a lock.
async fn begin_briefly(pool: &PostgresPool) -> StoreResult<PostgresTransaction> {
    let mut transaction = pool.begin().await?;
    sqlx::query("SET LOCAL lock_timeout = '1s'")
        .execute(&mut *transaction)
        .await?;
    Ok(transaction)
}

async fn add_partition(
    pool: &PostgresPool,
    table: &str,
    number: i64,
    week: i64,
) -> StoreResult<()> {
    let [from, to] =
        [number, number + 1].map(|n| NotificationId::floor(Timestamp(n.saturating_mul(week))));
    let name = format!("{table}_w{number}");
    // Checked without a lock first: a session that holds the lock and hangs must not prevent
    // other processes from starting.
    let is_there = sqlx::query_scalar(HAS_PARTITION).bind(table).bind(&name);
    if is_there.fetch_one(pool).await? {
        return Ok(());
    }
    let mut transaction = begin_briefly(pool).await?;
    // One replica creates the partition; the others find it.
    sqlx::query("SELECT pg_advisory_xact_lock(7305001)")
        .execute(&mut *transaction)
        .await?;
    let is_there = sqlx::query_scalar(HAS_PARTITION).bind(table).bind(&name);
    let is_there: bool = is_there.fetch_one(&mut *transaction).await?;
    if !is_there {
        for sql in [
            format!("CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"),
            format!(
                "ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{from}') TO ('{to}')"
            ),
        ] {
            sqlx::query(AssertSqlSafe(sql))
                .execute(&mut *transaction)
                .await?;
        }
    }
    Ok(transaction.commit().await?)
}

/// Returns the numbers of the weeks that a table has partitions for.
async fn partitions(pool: &PostgresPool, table: &str) -> StoreResult<Vec<i64>> {
    let sql = "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass($1)";
    let names: Vec<String> = sqlx::query_scalar(sql).bind(table).fetch_all(pool).await?;
    Ok(names
        .iter()
        .filter_map(|name| name.rsplit_once("_w")?.1.parse().ok())
        .collect())
}
