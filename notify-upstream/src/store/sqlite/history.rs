//! All SQL except the queue and the suppression lists: records, results, receipts, workers,
//! idempotency keys and dead letters.

use std::collections::HashMap;

use postern_common::clock::Timestamp;
use sqlx::{AssertSqlSafe, Row};

use super::{Sqlite, id_list, json, rows};
use crate::notification::{NotificationId, Order};
use crate::store::read::RECORD;
use crate::store::row::{
    DeadFilter, DeadLetter, IdempotencyRecord, LeaseRenewal, MAX_RECEIPTS_PER_NOTIFICATION,
    Receipt, ResultKind, WebhookToken,
};
use crate::store::{NotificationSnapshot, StoreResult};

/// Results, receipts and the live row are read in one snapshot, so that a row that moves between
/// tables is seen once.
const READ_HISTORY: &str = "
SELECT id, 0 AS part, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version
FROM notify_result WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT id, 1, 0, kind, NULL, at, NULL, provider, code, detail, NULL, NULL FROM notify_receipt WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT id, 2, attempt, 0, since, 0, NULL, NULL, NULL, NULL, NULL, NULL FROM notify_queue WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT id, 2, attempt, 0, NULL, 0, due, NULL, NULL, NULL, NULL, NULL FROM notify_delayed WHERE id IN (SELECT value FROM json_each(?1))
ORDER BY 6, 3";

/// Beyond the limit only the first report of each kind is inserted, so that no final state is lost.
const SAVE_RECEIPTS: &str = "
WITH input AS MATERIALIZED (
    SELECT t.*, row_number() OVER (PARTITION BY id ORDER BY event_id) AS place,
        row_number() OVER (PARTITION BY id, kind ORDER BY event_id) AS place_of_kind
    FROM (SELECT value ->> 0 AS provider, value ->> 1 AS event_id, value ->> 2 AS id, value ->> 3 AS kind,
        value ->> 4 AS at, value ->> 5 AS received_at, value ->> 6 AS code, value ->> 7 AS detail FROM json_each(?1)) t
    WHERE NOT EXISTS (SELECT 1 FROM notify_receipt k WHERE k.provider = t.provider AND k.event_id = t.event_id)
), known AS MATERIALIZED (
    SELECT i.*, (SELECT count(*) FROM notify_receipt r WHERE r.id = i.id) AS stored,
        (SELECT count(*) FROM notify_receipt r WHERE r.id = i.id AND r.kind = i.kind) AS stored_of_kind FROM input i
)
INSERT INTO notify_receipt (provider, event_id, id, kind, at, received_at, code, detail)
SELECT provider, event_id, id, kind, at, received_at, code, detail FROM known
WHERE place + stored <= ?2 OR place_of_kind + stored_of_kind = 1
ON CONFLICT DO NOTHING";

const DEAD: &str = "
    (?1 IS NULL OR id = ?1) AND (?2 IS NULL OR code = ?2)
    AND (?3 IS NULL OR at >= ?3) AND (?4 IS NULL OR at < ?4)
    AND (?6 IS NULL OR lane IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR ?7 = (SELECT r.template FROM notify_record r WHERE r.id = notify_dead.id))
    AND (?8 IS NULL OR ?8 = (SELECT r.provider FROM notify_result r WHERE r.id = notify_dead.id AND r.provider IS NOT NULL
        ORDER BY r.at DESC, r.attempt DESC LIMIT 1))
    ORDER BY at, id LIMIT ?5";

macro_rules! bind_dead {
    ($query:expr, $filter:expr) => {
        $query
            .bind($filter.id.map(|id| id.to_string()))
            .bind($filter.code.as_deref())
            .bind($filter.since.map(|at| at.0))
            .bind($filter.until.map(|at| at.0))
            .bind($filter.limit)
            .bind($filter.lanes().map(|lanes| json(&lanes)))
            .bind($filter.template.as_deref())
            .bind($filter.provider.as_deref())
    };
}

impl Sqlite {
    pub(in crate::store) async fn idempotency_record(
        &self,
        creator: &str,
        key: &str,
    ) -> StoreResult<Option<IdempotencyRecord>> {
        let sql =
            "SELECT id, fingerprint, created_at FROM notify_key WHERE creator = ?1 AND key = ?2";
        let row = sqlx::query(sql)
            .bind(creator)
            .bind(key)
            .fetch_optional(&self.pools.readers)
            .await?;
        row.as_ref().map(rows::idempotency_record).transpose()
    }

    pub(in crate::store) async fn delete_idempotency_keys(
        &self,
        before: Timestamp,
    ) -> StoreResult<u64> {
        let sql = "DELETE FROM notify_key WHERE created_at < ?1";
        Ok(sqlx::query(sql)
            .bind(before.0)
            .execute(&self.pools.writer)
            .await?
            .rows_affected())
    }

    pub(in crate::store) async fn read(
        &self,
        ids: &[NotificationId],
    ) -> StoreResult<Vec<NotificationSnapshot>> {
        let list = id_list(ids);
        // Records first: they never change, so every row of the second statement belongs to a
        // record that was found.
        let sql = format!(
            "SELECT r.id, r.send_at, {RECORD} FROM notify_record r WHERE r.id IN (SELECT value FROM json_each(?1))"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(&list)
            .fetch_all(&self.pools.readers)
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
            .bind(&list)
            .fetch_all(&self.pools.readers)
            .await?
        {
            if let Some(snapshot) = found.get_mut(&row.try_get::<NotificationId, _>(0)?) {
                snapshot.history.push(rows::history_entry(&row)?);
            }
        }
        Ok(found.into_values().collect())
    }

    pub(in crate::store) async fn save_receipts(&self, receipts: &[Receipt]) -> StoreResult<u64> {
        let rows: Vec<_> = receipts
            .iter()
            .map(|row| {
                let (at, received_at) = (row.at.0, row.received_at.0);
                (
                    &row.provider,
                    &row.event_id,
                    row.id.to_string(),
                    row.kind.code(),
                    at,
                    received_at,
                    &row.code,
                    &row.detail,
                )
            })
            .collect();
        let insert = sqlx::query(SAVE_RECEIPTS)
            .bind(json(&rows))
            .bind(MAX_RECEIPTS_PER_NOTIFICATION);
        Ok(insert.execute(&self.pools.writer).await?.rows_affected())
    }

    /// The database is used on one host, so the caller's clock is always given.
    pub(in crate::store) async fn register_worker(
        &self,
        worker: i64,
        now: Option<Timestamp>,
    ) -> StoreResult<()> {
        let sql = "INSERT INTO notify_worker (id, seen_at) VALUES (?1, ?2)";
        sqlx::query(sql)
            .bind(worker)
            .bind(now.map(|now| now.0))
            .execute(&self.pools.writer)
            .await?;
        Ok(())
    }

    pub(in crate::store) async fn renew_workers(
        &self,
        workers: &[i64],
        now: Option<Timestamp>,
        timeout_ms: i64,
    ) -> StoreResult<LeaseRenewal> {
        let now_ms = now.map_or(0, |now| now.0);
        let dead_before = now_ms.saturating_sub(timeout_ms);
        let sql = "UPDATE notify_worker SET seen_at = ?2
            WHERE id IN (SELECT value FROM json_each(?1)) AND seen_at >= ?3 RETURNING id";
        let renewed = sqlx::query_scalar(sql)
            .bind(json(&workers))
            .bind(now_ms)
            .bind(dead_before)
            .fetch_all(&self.pools.writer)
            .await?;
        let sql = "SELECT id FROM notify_worker WHERE seen_at < ?1 LIMIT 1000";
        let dead = sqlx::query_scalar(sql)
            .bind(dead_before)
            .fetch_all(&self.pools.readers)
            .await?;
        let live = u32::try_from(renewed.len()).unwrap_or(u32::MAX);
        Ok(LeaseRenewal {
            renewed,
            dead,
            live,
        })
    }

    pub(in crate::store) async fn retire_worker(&self, worker: i64, gone: bool) -> StoreResult<()> {
        // Dead first: even if the second statement fails, the rows of the worker are recovered.
        let sql = "UPDATE notify_worker SET seen_at = 0 WHERE id = ?1";
        sqlx::query(sql)
            .bind(worker)
            .execute(&self.pools.writer)
            .await?;
        if gone {
            let sql = "DELETE FROM notify_worker WHERE id = ?1
                AND NOT EXISTS (SELECT 1 FROM notify_queue WHERE worker = ?1)";
            sqlx::query(sql)
                .bind(worker)
                .execute(&self.pools.writer)
                .await?;
        }
        Ok(())
    }

    pub(in crate::store) async fn delete_dead_workers(
        &self,
        dead_before: Timestamp,
    ) -> StoreResult<u64> {
        let sql = "DELETE FROM notify_worker AS w WHERE seen_at < ?1
            AND NOT EXISTS (SELECT 1 FROM notify_queue q WHERE q.worker = w.id)";
        Ok(sqlx::query(sql)
            .bind(dead_before.0)
            .execute(&self.pools.writer)
            .await?
            .rows_affected())
    }

    pub(in crate::store) async fn maintain(
        &self,
        _now: Timestamp,
        keep_from: Timestamp,
    ) -> StoreResult<()> {
        let floor = NotificationId::floor(keep_from).to_string();
        for sql in [
            "DELETE FROM notify_result AS o WHERE id < ?1 AND NOT EXISTS (SELECT 1 FROM notify_queue q WHERE q.id = o.id)
                AND NOT EXISTS (SELECT 1 FROM notify_delayed d WHERE d.id = o.id)",
            "DELETE FROM notify_record AS o WHERE id < ?1 AND NOT EXISTS (SELECT 1 FROM notify_queue q WHERE q.id = o.id)
                AND NOT EXISTS (SELECT 1 FROM notify_delayed d WHERE d.id = o.id)",
        ] {
            sqlx::query(sql).bind(&floor).execute(&self.pools.writer).await?;
        }
        sqlx::query("DELETE FROM notify_dead WHERE id < ?1")
            .bind(&floor)
            .execute(&self.pools.writer)
            .await?;
        let sql = "DELETE FROM notify_receipt WHERE received_at < ?1";
        sqlx::query(sql)
            .bind(keep_from.0)
            .execute(&self.pools.writer)
            .await?;
        self.delete_old_removals(keep_from).await
    }

    pub(in crate::store) async fn dead_letters(
        &self,
        filter: &DeadFilter,
    ) -> StoreResult<Vec<DeadLetter>> {
        let sql = format!("SELECT id, lane, attempt, at, code FROM notify_dead WHERE {DEAD}");
        let rows = bind_dead!(sqlx::query(AssertSqlSafe(sql)), filter)
            .fetch_all(&self.pools.readers)
            .await?;
        rows.iter().map(rows::dead_letter).collect()
    }

    pub(in crate::store) async fn replay(
        &self,
        filter: &DeadFilter,
        first: Order,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let mut transaction = self.pools.begin().await?;
        let sql = format!(
            "INSERT INTO notify_queue (id, lane, ord, fence, attempt)
            SELECT id, lane, ?9 + row_number() OVER (ORDER BY at, id) - 1, fence, attempt FROM
            (SELECT * FROM notify_dead WHERE {DEAD}) RETURNING id"
        );
        let query = bind_dead!(sqlx::query_scalar(AssertSqlSafe(sql)), filter).bind(first);
        let ids: Vec<NotificationId> = query.fetch_all(&mut *transaction).await?;
        let list = id_list(&ids);
        sqlx::query(
            "INSERT INTO notify_result (id, attempt, kind, at)
            SELECT id, attempt, ?2, ?3 FROM notify_dead WHERE id IN (SELECT value FROM json_each(?1))",
        )
        .bind(&list)
        .bind(ResultKind::Replayed.code())
        .bind(now.0)
        .execute(&mut *transaction)
        .await?;
        let sql = "DELETE FROM notify_dead WHERE id IN (SELECT value FROM json_each(?1))";
        sqlx::query(sql)
            .bind(&list)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(ids.len() as u64)
    }

    pub(in crate::store) async fn discard_dead_letters(
        &self,
        filter: &DeadFilter,
    ) -> StoreResult<u64> {
        let sql = format!(
            "DELETE FROM notify_dead WHERE id IN (SELECT id FROM notify_dead WHERE {DEAD})"
        );
        Ok(bind_dead!(sqlx::query(AssertSqlSafe(sql)), filter)
            .execute(&self.pools.writer)
            .await?
            .rows_affected())
    }

    pub(in crate::store) async fn bind_webhook_token(
        &self,
        token: &WebhookToken,
        now: Timestamp,
    ) -> StoreResult<bool> {
        let sql =
            "INSERT INTO notify_webhook_token (provider, token, body, at) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO NOTHING";
        let insert = sqlx::query(sql)
            .bind(token.provider)
            .bind(&token.token)
            .bind(token.body.as_slice());
        insert.bind(now.0).execute(&self.pools.writer).await?;
        let sql = "SELECT body FROM notify_webhook_token WHERE provider = ?1 AND token = ?2";
        let first = sqlx::query_scalar(sql)
            .bind(token.provider)
            .bind(&token.token);
        let first: Vec<u8> = first.fetch_one(&self.pools.readers).await?;
        Ok(first == token.body)
    }

    pub(in crate::store) async fn delete_webhook_tokens(
        &self,
        before: Timestamp,
    ) -> StoreResult<u64> {
        let sql = "DELETE FROM notify_webhook_token WHERE at < ?1";
        Ok(sqlx::query(sql)
            .bind(before.0)
            .execute(&self.pools.writer)
            .await?
            .rows_affected())
    }
}
