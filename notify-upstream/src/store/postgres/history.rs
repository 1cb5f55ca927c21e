//! All SQL except the queue and the suppression lists: records, results, receipts,
//! idempotency keys, dead letters and partitions.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::clock::Timestamp;
use postern_common::database::PostgresTransaction;
use sqlx::{AssertSqlSafe, Row};

use super::{Postgres, rows};
use crate::notification::{NotificationId, ORDER_COUNTER_BITS, Order};
use crate::store::read::RECORD;
use crate::store::row::{
    DeadFilter, DeadLetter, IdempotencyRecord, MAX_RECEIPTS_PER_NOTIFICATION, Receipt, ResultKind,
    WebhookToken,
};
use crate::store::{NotificationSnapshot, ReplicaSignal, StoreError, StoreResult};

/// A partition holds one week: with ninety days of retention, the planner considers thirteen
/// partitions.
const PARTITION: Duration = Duration::from_secs(7 * 86_400);

/// `lock_not_available` (PostgreSQL documentation, appendix A).
const LOCKED: &str = "55P03";

/// Reads the catalog itself: `to_regclass` of the partition may be answered from a cache that does
/// not have the partition that another replica has just created.
const HAS_PARTITION: &str =
    "SELECT EXISTS (SELECT 1 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass($1) AND c.relname = $2)";

/// Results, receipts and the live row are read in one snapshot, so that a row that moves between
/// tables is seen once.
const READ_HISTORY: &str = "
SELECT id, 0::int2 AS part, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version
FROM notify_result WHERE id = ANY($1)
UNION ALL
SELECT id, 1::int2, 0, kind, NULL, at, NULL, provider, code, detail, NULL, NULL FROM notify_receipt WHERE id = ANY($1)
UNION ALL
SELECT id, 2::int2, attempt, 0::int2, since, 0, NULL, NULL, NULL, NULL, NULL, NULL FROM notify_queue WHERE id = ANY($1)
UNION ALL
SELECT id, 2::int2, attempt, 0::int2, NULL, 0, due, NULL, NULL, NULL, NULL, NULL FROM notify_delayed WHERE id = ANY($1)
ORDER BY 6, 3";

/// Beyond the limit only the first report of each kind is inserted, so that no final state is lost.
const SAVE_RECEIPTS: &str = "
WITH input AS MATERIALIZED (
    SELECT t.*, row_number() OVER (PARTITION BY id ORDER BY event_id) AS place,
        row_number() OVER (PARTITION BY id, kind ORDER BY event_id) AS place_of_kind
    FROM unnest($1::text[], $2::text[], $3::uuid[], $4::int2[], $5::int8[], $6::int8[], $7::text[], $8::text[])
        AS t(provider, event_id, id, kind, at, received_at, code, detail)
    WHERE NOT EXISTS (SELECT 1 FROM notify_receipt k WHERE k.provider = t.provider AND k.event_id = t.event_id)
)
INSERT INTO notify_receipt (provider, event_id, id, kind, at, received_at, code, detail)
SELECT i.provider, i.event_id, i.id, i.kind, i.at, i.received_at, i.code, i.detail
FROM input i CROSS JOIN LATERAL (
    SELECT count(*) AS stored, count(*) FILTER (WHERE r.kind = i.kind) AS stored_of_kind
    FROM notify_receipt r WHERE r.id = i.id
) known
WHERE i.place + known.stored <= $9 OR i.place_of_kind + known.stored_of_kind = 1
ORDER BY i.provider, i.event_id
ON CONFLICT DO NOTHING";

const DEAD: &str = "
    ($1::uuid IS NULL OR id = $1) AND ($2::text IS NULL OR code = $2)
    AND ($3::int8 IS NULL OR at >= $3) AND ($4::int8 IS NULL OR at < $4)
    AND ($6::int2[] IS NULL OR lane = ANY($6))
    AND ($7::text IS NULL OR $7 = (SELECT r.template FROM notify_record r WHERE r.id = notify_dead.id))
    AND ($8::text IS NULL OR $8 = (SELECT r.provider FROM notify_result r WHERE r.id = notify_dead.id
        AND r.provider IS NOT NULL ORDER BY r.at DESC, r.attempt DESC LIMIT 1))
    ORDER BY at, id LIMIT $5";

macro_rules! bind_dead {
    ($query:expr, $filter:expr) => {
        $query
            .bind($filter.id)
            .bind($filter.code.as_deref())
            .bind($filter.since.map(|at| at.0))
            .bind($filter.until.map(|at| at.0))
            .bind($filter.limit)
            .bind($filter.lanes())
            .bind($filter.template.as_deref())
            .bind($filter.provider.as_deref())
    };
}

impl Postgres {
    pub(in crate::store) async fn idempotency_record(
        &self,
        creator: &str,
        key: &str,
    ) -> StoreResult<Option<IdempotencyRecord>> {
        let sql =
            "SELECT id, fingerprint, created_at FROM notify_key WHERE creator = $1 AND key = $2";
        let row = sqlx::query(sql)
            .bind(creator)
            .bind(key)
            .fetch_optional(&self.urgent)
            .await?;
        row.as_ref().map(rows::idempotency_record).transpose()
    }

    pub(in crate::store) async fn delete_idempotency_keys(
        &self,
        before: Timestamp,
    ) -> StoreResult<u64> {
        self.delete_expired("notify_key", "created_at", before)
            .await
    }

    pub(in crate::store) async fn read(
        &self,
        ids: &[NotificationId],
    ) -> StoreResult<Vec<NotificationSnapshot>> {
        // Records first: they never change, so every row of the second statement belongs to a
        // record that was found.
        let sql =
            format!("SELECT r.id, r.send_at, {RECORD} FROM notify_record r WHERE r.id = ANY($1)");
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(ids)
            .fetch_all(&self.urgent)
            .await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let snapshot = rows::snapshot(row)?;
            found.insert(snapshot.id, snapshot);
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        for row in sqlx::query(READ_HISTORY)
            .bind(ids)
            .fetch_all(&self.urgent)
            .await?
        {
            if let Some(snapshot) = found.get_mut(&row.try_get::<NotificationId, _>(0)?) {
                snapshot.history.push(rows::history_entry(&row)?);
            }
        }
        Ok(found.into_values().collect())
    }

    pub(in crate::store) async fn save_receipts(&self, receipts: &[Receipt]) -> StoreResult<u64> {
        let done = sqlx::query(SAVE_RECEIPTS)
            .bind(
                receipts
                    .iter()
                    .map(|row| row.provider.as_str())
                    .collect::<Vec<_>>(),
            )
            .bind(
                receipts
                    .iter()
                    .map(|row| row.event_id.as_str())
                    .collect::<Vec<_>>(),
            )
            .bind(receipts.iter().map(|row| row.id).collect::<Vec<_>>())
            .bind(
                receipts
                    .iter()
                    .map(|row| row.kind.code())
                    .collect::<Vec<_>>(),
            )
            .bind(receipts.iter().map(|row| row.at.0).collect::<Vec<_>>())
            .bind(
                receipts
                    .iter()
                    .map(|row| row.received_at.0)
                    .collect::<Vec<_>>(),
            )
            .bind(
                receipts
                    .iter()
                    .map(|row| row.code.as_deref())
                    .collect::<Vec<_>>(),
            )
            .bind(
                receipts
                    .iter()
                    .map(|row| row.detail.as_deref())
                    .collect::<Vec<_>>(),
            )
            .bind(MAX_RECEIPTS_PER_NOTIFICATION)
            .execute(&self.history)
            .await?;
        Ok(done.rows_affected())
    }

    /// Creates the partitions of this week and the next, and drops those that end before
    /// `keep_from`. A partition is created separately and attached, which does not block inserts.
    /// The function does not wait for locks held for long, such as by a dump or a forgotten
    /// session, because all later statements would queue behind it; the next call catches up.
    pub(in crate::store) async fn maintain(
        &self,
        now: Timestamp,
        keep_from: Timestamp,
    ) -> StoreResult<()> {
        match self
            .slow
            .within_deadline(self.keep_partitions(now, keep_from))
            .await
        {
            Err(StoreError::Unavailable(sqlx::Error::Database(error)))
                if error.code().as_deref() == Some(LOCKED) =>
            {
                tracing::warn!("partition maintenance skipped, table is locked");
            }
            outcome => outcome?,
        }
        self.delete_expired("notify_dead", "id", NotificationId::floor(keep_from))
            .await?;
        self.delete_expired("notify_receipt", "received_at", keep_from)
            .await?;
        self.delete_expired("notify_suppression_lifted", "at", keep_from)
            .await?;
        Ok(())
    }

    async fn keep_partitions(&self, now: Timestamp, keep_from: Timestamp) -> StoreResult<()> {
        let week = i64::try_from(PARTITION.as_millis()).unwrap_or(i64::MAX);
        for table in ["notify_record", "notify_result"] {
            for number in [now.0.div_euclid(week), now.0.div_euclid(week) + 1] {
                self.add_partition(table, number, week).await?;
            }
            for old in self.partitions(table).await? {
                if (old + 1).saturating_mul(week) <= keep_from.0 {
                    let mut transaction = self.begin_briefly().await?;
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
    async fn begin_briefly(&self) -> StoreResult<PostgresTransaction> {
        let mut transaction = self.slow.begin().await?;
        sqlx::query("SET LOCAL lock_timeout = '1s'")
            .execute(&mut *transaction)
            .await?;
        Ok(transaction)
    }

    async fn add_partition(&self, table: &str, number: i64, week: i64) -> StoreResult<()> {
        let [from, to] =
            [number, number + 1].map(|n| NotificationId::floor(Timestamp(n.saturating_mul(week))));
        let name = format!("{table}_w{number}");
        // Checked without a lock first: a session that holds the lock and hangs must not prevent
        // other processes from starting.
        let is_there = sqlx::query_scalar(HAS_PARTITION).bind(table).bind(&name);
        if is_there.fetch_one(&self.slow).await? {
            return Ok(());
        }
        let mut transaction = self.begin_briefly().await?;
        // One replica creates the partition; the others find it.
        sqlx::query("SELECT pg_advisory_xact_lock(7305001)")
            .execute(&mut *transaction)
            .await?;
        let is_there = sqlx::query_scalar(HAS_PARTITION).bind(table).bind(&name);
        let there: bool = is_there.fetch_one(&mut *transaction).await?;
        if !there {
            let sql = format!(
                "CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
            );
            sqlx::query(AssertSqlSafe(sql))
                .execute(&mut *transaction)
                .await?;
            let sql = format!(
                "ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{from}') TO ('{to}')"
            );
            sqlx::query(AssertSqlSafe(sql))
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Returns the numbers of the weeks that a table has partitions for.
    async fn partitions(&self, table: &str) -> StoreResult<Vec<i64>> {
        let sql = "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = to_regclass($1)";
        let names: Vec<String> = sqlx::query_scalar(sql)
            .bind(table)
            .fetch_all(&self.slow)
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| name.rsplit_once("_w")?.1.parse().ok())
            .collect())
    }

    pub(in crate::store) async fn dead_letters(
        &self,
        filter: &DeadFilter,
    ) -> StoreResult<Vec<DeadLetter>> {
        let sql = format!("SELECT id, lane, attempt, at, code FROM notify_dead WHERE {DEAD}");
        let rows = bind_dead!(sqlx::query(AssertSqlSafe(sql)), filter)
            .fetch_all(&self.slow)
            .await?;
        rows.iter().map(rows::dead_letter).collect()
    }

    pub(in crate::store) async fn replay(
        &self,
        filter: &DeadFilter,
        first: Order,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let sql = format!(
            "WITH gone AS (DELETE FROM notify_dead
                WHERE id = ANY(ARRAY(SELECT id FROM notify_dead WHERE {DEAD})) RETURNING *),
            history AS (INSERT INTO notify_result (id, attempt, kind, at) SELECT id, attempt, $9, $10 FROM gone)
            INSERT INTO notify_queue (id, lane, ord, fence, attempt)
            SELECT id, lane, $11 + row_number() OVER (ORDER BY at, id) - 1, fence, attempt FROM gone"
        );
        let query = bind_dead!(sqlx::query(AssertSqlSafe(sql)), filter);
        let query = query
            .bind(ResultKind::Replayed.code())
            .bind(now.0)
            .bind(first);
        let replayed = query.execute(&self.slow).await?.rows_affected();
        self.announce(ReplicaSignal::RowsQueued, replayed).await;
        Ok(replayed)
    }

    pub(in crate::store) async fn discard_dead_letters(
        &self,
        filter: &DeadFilter,
    ) -> StoreResult<u64> {
        let sql = format!(
            "DELETE FROM notify_dead WHERE id = ANY(ARRAY(SELECT id FROM notify_dead WHERE {DEAD}))"
        );
        Ok(bind_dead!(sqlx::query(AssertSqlSafe(sql)), filter)
            .execute(&self.slow)
            .await?
            .rows_affected())
    }

    pub(in crate::store) async fn bind_webhook_token(
        &self,
        token: &WebhookToken,
        now: Timestamp,
    ) -> StoreResult<bool> {
        let sql =
            "INSERT INTO notify_webhook_token (provider, token, body, at) VALUES ($1, $2, $3, $4)
            ON CONFLICT DO NOTHING";
        let insert = sqlx::query(sql)
            .bind(token.provider)
            .bind(&token.token)
            .bind(token.body.as_slice());
        insert.bind(now.0).execute(&self.history).await?;
        let sql = "SELECT body FROM notify_webhook_token WHERE provider = $1 AND token = $2";
        let first = sqlx::query_scalar(sql)
            .bind(token.provider)
            .bind(&token.token);
        let first: Vec<u8> = first.fetch_one(&self.history).await?;
        Ok(first == token.body)
    }

    pub(in crate::store) async fn delete_webhook_tokens(
        &self,
        before: Timestamp,
    ) -> StoreResult<u64> {
        self.delete_expired("notify_webhook_token", "at", before)
            .await
    }
}

/// Orders must leave room for the counter below the milliseconds.
const _: () = assert!(ORDER_COUNTER_BITS < 16);
