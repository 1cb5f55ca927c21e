//! All SQL of the queue.

use postern_common::clock::Timestamp;
use sqlx::{AssertSqlSafe, Row};

use super::{Sqlite, id_list, json, rows};
use crate::address::recipient_key_of;
use crate::notification::{Channel, Lane, NotificationId, ORDER_COUNTER_BITS};
use crate::store::StoreResult;
use crate::store::read::{RECORD, WANTED_AT};
use crate::store::row::{
    CancelResult, Claim, ClaimRef, Claimed, Finished, LaneDepth, LanePosition, MovedRows,
    NewNotification, Next, ResultKind,
};

const KEYS: &str = "
INSERT INTO notify_key (creator, key, id, fingerprint, created_at)
SELECT value ->> 0, value ->> 1, value ->> 2, unhex(value ->> 3), value ->> 4 FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING RETURNING id";

const RECORDS: &str = "
INSERT INTO notify_record (id, lane, creator, addressee, template, template_version, locale, recipient, variables,
    created_at, send_at, expires_at, recipient_key, request_id, trace_context)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
    value ->> 9, value ->> 10, value ->> 11, value ->> 12,
    value ->> 13, value ->> 14 FROM json_each(?1)";

const QUEUED: &str = "
INSERT INTO notify_queue (id, lane, ord, fence, attempt)
SELECT value ->> 0, value ->> 1, value ->> 2, 0, 0 FROM json_each(?1)";

const DELAYED: &str = "
INSERT INTO notify_delayed (id, due, lane, fence, attempt)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?1)";

const PICK: &str = "
SELECT id, ord, fence + 1, attempt + 1, worker IS NOT NULL FROM notify_queue
WHERE lane = ?1 AND (worker IS NULL OR worker IN (SELECT value FROM json_each(?2)))
ORDER BY lane, ord LIMIT ?3";

/// A row of a dead worker is taken over, and its attempt is recorded as lost in the same
/// transaction.
const RECORD_LOST: &str = "
INSERT INTO notify_result (id, attempt, kind, began_at, at)
SELECT id, attempt, ?2, since, ?3 FROM notify_queue
WHERE worker IS NOT NULL AND id IN (SELECT value FROM json_each(?1))";

const LEASE: &str = "
UPDATE notify_queue SET worker = ?2, fence = fence + 1, attempt = attempt + 1, since = ?3
WHERE id IN (SELECT value FROM json_each(?1))";

/// Deletes the rows whose fence and worker still match, and returns them.
const TAKE: &str = "
DELETE FROM notify_queue WHERE (id, fence, worker) IN
    (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1)) RETURNING id";

const RESULTS: &str = "
INSERT INTO notify_result (id, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
    unhex(value ->> 9), value ->> 10 FROM json_each(?1)";

const DEAD: &str = "
INSERT INTO notify_dead (id, lane, fence, attempt, at, code)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?1)";

const RELEASE: &str = "
UPDATE notify_queue SET worker = NULL, since = NULL, attempt = attempt - 1
WHERE (id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND worker IS NOT NULL";

const LANE_HEADS: &str = "
SELECT l.value, (SELECT ord FROM notify_queue q WHERE q.lane = l.value
    AND (q.worker IS NULL OR q.worker IN (SELECT value FROM json_each(?2))) ORDER BY q.lane, q.ord LIMIT 1) AS head
FROM json_each(?1) l WHERE head IS NOT NULL";

/// The order of a moved row is its due time, as if it had been accepted then. A counter
/// distinguishes rows of one millisecond and continues behind those moved before. If it overflows,
/// rows share an order and are claimed together.
const MOVE: &str = "
INSERT INTO notify_queue (id, lane, ord, fence, attempt)
SELECT id, lane, min(row_number() OVER (PARTITION BY lane, due ORDER BY id) + coalesce(
        (SELECT max(ord) FROM notify_queue q WHERE q.lane = d.lane AND q.ord >= d.due << ?3 AND q.ord < (d.due + 1) << ?3),
        due << ?3
    ), ((due + 1) << ?3) - 1), fence, attempt FROM
    (SELECT * FROM notify_delayed WHERE due <= ?1 ORDER BY due, id LIMIT ?2) d
RETURNING lane";

const MOVED: &str = "
DELETE FROM notify_delayed WHERE id IN (SELECT id FROM notify_delayed WHERE due <= ?1 ORDER BY due, id LIMIT ?2)";

impl Sqlite {
    pub(in crate::store) async fn accept(
        &self,
        batch: &[NewNotification],
    ) -> StoreResult<Vec<NotificationId>> {
        let mut transaction = self.pools.begin().await?;
        let keyed: Vec<_> = batch.iter().filter_map(key_row).collect();
        let mut refused = Vec::new();
        if !keyed.is_empty() {
            let kept: Vec<NotificationId> = sqlx::query_scalar(KEYS)
                .bind(json(&keyed))
                .fetch_all(&mut *transaction)
                .await?;
            let taken = |row: &&NewNotification| row.key.is_some() && !kept.contains(&row.id);
            refused = batch.iter().filter(taken).map(|row| row.id).collect();
        }
        let fresh: Vec<_> = batch
            .iter()
            .filter(|row| !refused.contains(&row.id))
            .collect();
        let records: Vec<_> = fresh.iter().map(|row| record_row(row)).collect();
        sqlx::query(RECORDS)
            .bind(json(&records))
            .execute(&mut *transaction)
            .await?;
        let queued: Vec<_> = fresh.iter().filter_map(|row| queue_row(row)).collect();
        if !queued.is_empty() {
            sqlx::query(QUEUED)
                .bind(json(&queued))
                .execute(&mut *transaction)
                .await?;
        }
        let delayed = fresh.iter().filter_map(|row| {
            Some((
                row.id.to_string(),
                row.send_at?.0,
                row.record.lane.code(),
                0,
                0,
            ))
        });
        let delayed: Vec<_> = delayed.collect();
        if !delayed.is_empty() {
            sqlx::query(DELAYED)
                .bind(json(&delayed))
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(refused)
    }

    pub(in crate::store) async fn claim(&self, claim: &Claim<'_>) -> StoreResult<Vec<Claimed>> {
        let mut transaction = self.pools.begin().await?;
        let picked: Vec<(NotificationId, i64, i32, i32, bool)> = sqlx::query_as(PICK)
            .bind(claim.lane.code())
            .bind(json(&claim.dead))
            .bind(claim.limit)
            .fetch_all(&mut *transaction)
            .await?;
        if picked.is_empty() {
            return Ok(Vec::new());
        }
        let ids = id_list(picked.iter().map(|row| &row.0));
        if picked.iter().any(|row| row.4) {
            let lose = sqlx::query(RECORD_LOST)
                .bind(&ids)
                .bind(ResultKind::Lost.code())
                .bind(claim.now.0);
            lose.execute(&mut *transaction).await?;
        }
        sqlx::query(LEASE)
            .bind(&ids)
            .bind(claim.worker)
            .bind(claim.now.0)
            .execute(&mut *transaction)
            .await?;
        let sql = format!(
            "SELECT r.id, {WANTED_AT}, {RECORD} FROM notify_record r WHERE r.id IN (SELECT value FROM json_each(?1))"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(&ids)
            .fetch_all(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let mut records = std::collections::HashMap::with_capacity(rows.len());
        for row in &rows {
            let known = (Timestamp(row.try_get(1)?), rows::record(row, 2)?);
            records.insert(row.try_get::<NotificationId, _>(0)?, known);
        }
        let claimed = picked
            .into_iter()
            .filter_map(|(id, order, fence, attempt, lost)| {
                let (wanted_at, record) = records.remove(&id)?;
                Some(Claimed {
                    id,
                    order,
                    fence,
                    attempt,
                    lost,
                    wanted_at,
                    record,
                })
            });
        Ok(claimed.collect())
    }

    pub(in crate::store) async fn finish(&self, batch: &[Finished]) -> StoreResult<usize> {
        let mut transaction = self.pools.begin().await?;
        let keys: Vec<_> = batch
            .iter()
            .map(|row| (row.id.to_string(), row.fence, row.worker))
            .collect();
        let taken: Vec<NotificationId> = sqlx::query_scalar(TAKE)
            .bind(json(&keys))
            .fetch_all(&mut *transaction)
            .await?;
        if taken.is_empty() {
            return Ok(0);
        }
        let taken: std::collections::HashSet<_> = taken.into_iter().collect();
        let ours: Vec<_> = batch.iter().filter(|row| taken.contains(&row.id)).collect();
        let told = ours.iter().filter(|row| row.next.is_recorded());
        let results: Vec<_> = told.map(|row| result_columns(row)).collect();
        if !results.is_empty() {
            sqlx::query(RESULTS)
                .bind(json(&results))
                .execute(&mut *transaction)
                .await?;
        }
        let delayed = ours.iter().filter_map(|row| {
            Some((
                row.id.to_string(),
                row.next.due()?.0,
                row.lane.code(),
                row.fence,
                row.result.attempt,
            ))
        });
        let delayed: Vec<_> = delayed.collect();
        if !delayed.is_empty() {
            sqlx::query(DELAYED)
                .bind(json(&delayed))
                .execute(&mut *transaction)
                .await?;
        }
        let dead = ours.iter().filter(|row| row.next == Next::Dead).map(|row| {
            let code = row.result.code.as_deref();
            (
                row.id.to_string(),
                row.lane.code(),
                row.fence,
                row.result.attempt,
                row.result.at.0,
                code,
            )
        });
        let dead: Vec<_> = dead.collect();
        if !dead.is_empty() {
            sqlx::query(DEAD)
                .bind(json(&dead))
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(ours.len())
    }

    pub(in crate::store) async fn release(&self, rows: &[ClaimRef]) -> StoreResult<()> {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.id.to_string(), row.fence))
            .collect();
        let update = sqlx::query(RELEASE).bind(json(&rows));
        update.execute(&self.pools.writer).await?;
        Ok(())
    }

    pub(in crate::store) async fn lane_heads(
        &self,
        lanes: &[Lane],
        dead: &[i64],
    ) -> StoreResult<Vec<LanePosition>> {
        let lanes: Vec<_> = lanes.iter().map(|lane| lane.code()).collect();
        let rows = sqlx::query(LANE_HEADS)
            .bind(json(&lanes))
            .bind(json(&dead))
            .fetch_all(&self.pools.readers)
            .await?;
        rows.iter().map(rows::place).collect()
    }

    pub(in crate::store) async fn move_due(
        &self,
        now: Timestamp,
        limit: i64,
    ) -> StoreResult<MovedRows> {
        let next_due = self.next_due().await?;
        if next_due.is_none_or(|due| due > now) {
            return Ok(MovedRows {
                next_due,
                ..MovedRows::default()
            });
        }
        let mut transaction = self.pools.begin().await?;
        let move_rows = sqlx::query(MOVE)
            .bind(now.0)
            .bind(limit)
            .bind(ORDER_COUNTER_BITS);
        let rows = move_rows.fetch_all(&mut *transaction).await?;
        sqlx::query(MOVED)
            .bind(now.0)
            .bind(limit)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(MovedRows {
            lanes: rows
                .iter()
                .map(|row| rows::lane(row, 0))
                .collect::<StoreResult<_>>()?,
            next_due: self.next_due().await?,
        })
    }

    pub(in crate::store) async fn next_due(&self) -> StoreResult<Option<Timestamp>> {
        let due: Option<i64> =
            sqlx::query_scalar("SELECT due FROM notify_delayed ORDER BY due LIMIT 1")
                .fetch_optional(&self.pools.readers)
                .await?;
        Ok(due.map(Timestamp))
    }

    pub(in crate::store) async fn cancel(
        &self,
        id: NotificationId,
        now: Timestamp,
    ) -> StoreResult<CancelResult> {
        let mut transaction = self.pools.begin().await?;
        let id = id.to_string();
        let mut attempt: Option<i32> = None;
        for sql in [
            "DELETE FROM notify_queue WHERE id = ?1 AND worker IS NULL RETURNING attempt",
            "DELETE FROM notify_delayed WHERE id = ?1 RETURNING attempt",
        ] {
            let found = sqlx::query_scalar(sql)
                .bind(&id)
                .fetch_optional(&mut *transaction)
                .await?;
            attempt = attempt.or(found);
        }
        let Some(attempt) = attempt else {
            return Ok(CancelResult::TooLate);
        };
        sqlx::query("INSERT INTO notify_result (id, attempt, kind, at) VALUES (?1, ?2, ?3, ?4)")
            .bind(&id)
            .bind(attempt)
            .bind(ResultKind::Cancelled.code())
            .bind(now.0)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(CancelResult::Now)
    }

    pub(in crate::store) async fn queue_depths(&self, cap: i64) -> StoreResult<Vec<LaneDepth>> {
        let sql = "SELECT l.value, (SELECT count(*) FROM
            (SELECT 1 FROM notify_queue q WHERE q.lane = l.value LIMIT ?2)) FROM json_each(?1) l";
        let lanes: Vec<i16> = Channel::ALL
            .into_iter()
            .flat_map(Lane::of)
            .map(Lane::code)
            .collect();
        let rows = sqlx::query(sql)
            .bind(json(&lanes))
            .bind(cap)
            .fetch_all(&self.pools.readers)
            .await?;
        rows.iter().map(rows::depth).collect()
    }
}

fn key_row(row: &NewNotification) -> Option<impl serde::Serialize + '_> {
    let (key, fingerprint) = row.key.as_ref()?;
    // JSON has no binary type; `unhex` restores the bytes.
    let fingerprint = hex::encode(fingerprint);
    Some((
        row.record.creator.as_str(),
        key.as_str(),
        row.id.to_string(),
        fingerprint,
        row.record.created_at.0,
    ))
}

fn record_row(row: &NewNotification) -> impl serde::Serialize + '_ {
    let record = &row.record;
    (
        row.id.to_string(),
        record.lane.code(),
        &record.creator,
        &record.addressee,
        &record.template,
        record.template_version,
        &record.locale,
        &record.recipient,
        &record.variables,
        record.created_at.0,
        row.send_at.map(|at| at.0),
        record.expires_at.map(|at| at.0),
        recipient_key_of(&record.recipient),
        &record.request_id,
        &record.trace_context,
    )
}

fn queue_row(row: &NewNotification) -> Option<impl serde::Serialize + use<>> {
    row.send_at
        .is_none()
        .then(|| (row.id.to_string(), row.record.lane.code(), row.order))
}

fn result_columns(row: &Finished) -> impl serde::Serialize + '_ {
    let result = &row.result;
    (
        row.id.to_string(),
        result.attempt,
        result.kind.code(),
        result.began_at.map(|at| at.0),
        result.at.0,
        row.next.due().map(|at| at.0),
        &result.provider,
        &result.code,
        &result.detail,
        result.address.as_ref().map(hex::encode),
        result.template_version,
    )
}
