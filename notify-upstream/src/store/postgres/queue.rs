//! All SQL of the queue. Every statement is one transaction and one round trip, and is prepared
//! once per connection.
//!
//! A table whose statistics were collected while it was empty appears to have no rows, regardless
//! of its current size: a join by key is then planned as a scan of the whole index for every batch,
//! in spite of [`super::QUEUE_SETTINGS`]. Multiple rows are therefore selected by an array of keys,
//! or in a lateral subquery that cannot be reordered (`OFFSET 0`), and changed by `ctid`, for which
//! there is no other plan. The conditions of the selection are repeated where a row is changed:
//! before 15.15, 16.11 and 17.7 PostgreSQL confuses a row that moved meanwhile with the one at that
//! place.

use postern_common::clock::Timestamp;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Row};

use super::{Postgres, rows};
use crate::address::recipient_key_of;
use crate::notification::{Channel, Lane, NotificationId, ORDER_COUNTER_BITS};
use crate::store::read::{RECORD, WANTED_AT};
use crate::store::row::{
    CancelResult, Claim, ClaimRef, Claimed, Finished, LaneDepth, LanePosition, LaneScan,
    LowWatermark, MovedRows, NewNotification, Next, ResultKind,
};
use crate::store::{ReplicaSignal, StoreResult};

/// Keys are inserted in order, which prevents deadlocks between replicas.
const ACCEPT: &str = "
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int8[], $3::int2[], $4::text[], $5::text[], $6::text[], $7::int4[], $8::text[],
        $9::text[], $10::text[], $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::text[], $16::bytea[], $17::int8[],
        $18::text[], $19::text[])
    AS t(id, ord, lane, creator, addressee, template, template_version, locale, recipient, variables, created_at,
        expires_at, send_at, worker, key, fingerprint, recipient_key, request_id, trace_context)
), keyed AS (
    INSERT INTO notify_key (creator, key, id, fingerprint, created_at)
    SELECT creator, key, id, fingerprint, created_at FROM input WHERE key IS NOT NULL ORDER BY creator, key
    ON CONFLICT DO NOTHING RETURNING id
), fresh AS MATERIALIZED (
    SELECT * FROM input WHERE key IS NULL OR id IN (SELECT id FROM keyed)
), recorded AS (
    INSERT INTO notify_record (id, lane, creator, addressee, template, template_version, locale, recipient, variables,
        created_at, send_at, expires_at, recipient_key, request_id, trace_context)
    SELECT id, lane, creator, addressee, template, template_version, locale, recipient, variables, created_at, send_at,
        expires_at, recipient_key, request_id, trace_context FROM fresh
), queued AS (
    INSERT INTO notify_queue (id, lane, ord, fence, attempt, worker, since)
    SELECT id, lane, ord, (worker IS NOT NULL)::int4, (worker IS NOT NULL)::int4, worker,
        CASE WHEN worker IS NOT NULL THEN created_at END
    FROM fresh WHERE send_at IS NULL
), delayed AS (
    INSERT INTO notify_delayed (id, due, lane, fence, attempt)
    SELECT id, send_at, lane, 0, 0 FROM fresh WHERE send_at IS NOT NULL
)
SELECT id FROM keyed";

/// A row of a dead worker is taken over, and its attempt is recorded as lost in the same
/// transaction. A row that was changed during the selection is claimed as well, if it qualifies:
/// skipping it would let later rows overtake it.
const CLAIM: &str = "
WITH picked AS MATERIALIZED (
    SELECT id, worker, attempt, since FROM notify_queue
    WHERE lane = $1 AND ord > $2 AND (worker IS NULL OR worker = ANY($3))
    ORDER BY ord LIMIT $4 FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE notify_queue SET worker = $5, fence = fence + 1, attempt = attempt + 1, since = $6
    WHERE id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING id, ord, fence, attempt, id IN (SELECT id FROM picked WHERE worker IS NOT NULL) AS lost
), lost AS (
    INSERT INTO notify_result (id, attempt, kind, began_at, at)
    SELECT id, attempt, $7, since, $6 FROM picked WHERE worker IS NOT NULL
)
SELECT c.id, c.ord, c.fence, c.attempt, c.lost, ";

/// A row is processed only if its fence and worker still match; otherwise it is neither deleted nor
/// given a result.
const FINISH: &str = "
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int4[], $3::int8[], $4::int2[], $5::int4[], $6::int2[], $7::int8[], $8::int8[],
        $9::int8[], $10::text[], $11::text[], $12::text[], $13::bool[], $14::bytea[], $15::int4[])
    AS t(id, fence, worker, lane, attempt, kind, began_at, at, next_at, provider, code, detail, dead, address, template_version)
), taken AS (
    DELETE FROM notify_queue q USING input i CROSS JOIN LATERAL (
        SELECT ctid AS place, fence, worker FROM notify_queue h
        WHERE h.id = i.id AND h.fence = i.fence AND h.worker = i.worker OFFSET 0
    ) held
    WHERE q.ctid = held.place AND q.fence = held.fence AND q.worker = held.worker RETURNING i.*
), results AS (
    INSERT INTO notify_result (id, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version)
    SELECT id, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version FROM taken
    WHERE kind IS NOT NULL
), delayed AS (
    INSERT INTO notify_delayed (id, due, lane, fence, attempt)
    SELECT id, next_at, lane, fence, attempt FROM taken WHERE next_at IS NOT NULL
), dead AS (
    INSERT INTO notify_dead (id, lane, fence, attempt, at, code)
    SELECT id, lane, fence, attempt, at, code FROM taken WHERE dead
)
SELECT count(*) FROM taken";

/// Idempotent: a repetition after a lost response matches no row.
const RELEASE: &str = "
UPDATE notify_queue q SET worker = NULL, since = NULL, attempt = q.attempt - 1
FROM unnest($1::uuid[], $2::int4[]) AS i(id, fence) CROSS JOIN LATERAL (
    SELECT ctid AS place, fence FROM notify_queue h WHERE h.id = i.id AND h.fence = i.fence OFFSET 0
) held
WHERE q.ctid = held.place AND q.fence = held.fence AND q.worker IS NOT NULL RETURNING q.lane, q.ord";

const SCAN_LANES: &str = "
SELECT m.lane,
    (SELECT ord FROM notify_queue q WHERE q.lane = m.lane AND q.ord > m.cursor
        AND (q.worker IS NULL OR q.worker = ANY($4)) ORDER BY q.lane, q.ord LIMIT 1),
    (SELECT ord FROM notify_queue q WHERE q.lane = m.lane AND q.ord BETWEEN m.low AND m.cursor
        AND (q.worker IS NULL OR q.worker = ANY($4)) ORDER BY q.lane, q.ord LIMIT 1),
    (SELECT ord FROM notify_queue q WHERE q.lane = m.lane AND q.ord BETWEEN m.low AND m.cursor
        ORDER BY q.lane, q.ord LIMIT 1)
FROM unnest($1::int2[], $2::int8[], $3::int8[]) AS m(lane, low, cursor)";

const SAVE_WATERMARKS: &str = "
INSERT INTO notify_mark (lane, low) SELECT * FROM unnest($1::int2[], $2::int8[])
ON CONFLICT (lane) DO UPDATE SET low = excluded.low";

/// The order of a moved row is its due time, as if it had been accepted then. A counter
/// distinguishes rows of one millisecond and continues behind those moved before. If it overflows,
/// rows share an order and are claimed together.
const MOVE_DUE: &str = "
WITH due AS MATERIALIZED (
    SELECT ctid AS place FROM notify_delayed WHERE due <= $1
    ORDER BY due, id LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM notify_delayed d USING due WHERE d.ctid = due.place RETURNING d.*
), moved AS (
INSERT INTO notify_queue (id, lane, ord, fence, attempt)
SELECT id, lane, least(row_number() OVER (PARTITION BY lane, due ORDER BY id) + coalesce(
        (SELECT max(ord) FROM notify_queue q WHERE q.lane = g.lane AND q.ord >= g.due << $3 AND q.ord < (g.due + 1) << $3),
        due << $3
    ), ((due + 1) << $3) - 1), fence, attempt FROM gone g
RETURNING lane, ord
)
TABLE moved UNION ALL
SELECT NULL, due FROM (SELECT due FROM notify_delayed WHERE due > $1 ORDER BY due, id LIMIT 1) next";

/// A claimed row cannot be cancelled: the fence decides for each row.
const CANCEL: &str = "
WITH queued AS (
    DELETE FROM notify_queue WHERE id = $1 AND worker IS NULL RETURNING id, attempt
), delayed AS (
    DELETE FROM notify_delayed WHERE id = $1 RETURNING id, attempt
)
INSERT INTO notify_result (id, attempt, kind, at)
SELECT id, attempt, $3, $2 FROM (TABLE queued UNION ALL TABLE delayed) AS gone";

/// The notification channel over which processes wake each other.
const WAITING: &str = "postern_notify_waiting";

const DEPTHS: &str = "
SELECT lane, (SELECT count(*) FROM (SELECT 1 FROM notify_queue q WHERE q.lane = l.lane LIMIT $2) AS counted)
FROM unnest($1::int2[]) AS l(lane)";

fn claim_sql() -> String {
    format!(
        "{CLAIM}{WANTED_AT}, {RECORD} FROM claimed c CROSS JOIN LATERAL (SELECT * FROM notify_record WHERE id = c.id OFFSET 0) r"
    )
}

impl Postgres {
    pub(in crate::store) async fn accept(
        &self,
        batch: &[NewNotification],
    ) -> StoreResult<Vec<NotificationId>> {
        macro_rules! column {
            ($row:ident => $value:expr) => {
                batch.iter().map(|$row| $value).collect::<Vec<_>>()
            };
        }
        let kept: Vec<NotificationId> = sqlx::query_scalar(ACCEPT)
            .bind(column!(row => row.id))
            .bind(column!(row => row.order))
            .bind(column!(row => row.record.lane.code()))
            .bind(column!(row => row.record.creator.as_str()))
            .bind(column!(row => row.record.addressee.as_deref()))
            .bind(column!(row => row.record.template.as_str()))
            .bind(column!(row => row.record.template_version))
            .bind(column!(row => row.record.locale.as_str()))
            .bind(column!(row => row.record.recipient.as_str()))
            .bind(column!(row => row.record.variables.as_str()))
            .bind(column!(row => row.record.created_at.0))
            .bind(column!(row => row.record.expires_at.map(|at| at.0)))
            .bind(column!(row => row.send_at.map(|at| at.0)))
            .bind(column!(row => row.worker))
            .bind(column!(row => row.key.as_ref().map(|(key, _)| key.as_str())))
            .bind(column!(row => row.key.as_ref().map(|(_, print)| print.as_slice())))
            .bind(column!(row => recipient_key_of(&row.record.recipient)))
            .bind(column!(row => row.record.request_id.as_deref()))
            .bind(column!(row => row.record.trace_context.as_deref()))
            .fetch_all(&self.urgent)
            .await?;
        let refused = |row: &&NewNotification| row.key.is_some() && !kept.contains(&row.id);
        Ok(batch.iter().filter(refused).map(|row| row.id).collect())
    }

    pub(in crate::store) async fn claim(&self, claim: &Claim<'_>) -> StoreResult<Vec<Claimed>> {
        let rows = sqlx::query(AssertSqlSafe(claim_sql()))
            .bind(claim.lane.code())
            .bind(claim.after)
            .bind(claim.dead)
            .bind(claim.limit)
            .bind(claim.worker)
            .bind(claim.now.0)
            .bind(ResultKind::Lost.code())
            .fetch_all(&self.queue)
            .await?;
        let claimed = rows.iter().map(|row| {
            Ok(Claimed {
                id: row.try_get(0)?,
                order: row.try_get(1)?,
                fence: row.try_get(2)?,
                attempt: row.try_get(3)?,
                lost: row.try_get(4)?,
                wanted_at: Timestamp(row.try_get(5)?),
                record: rows::record(row, 6)?,
            })
        });
        let mut claimed = claimed.collect::<StoreResult<Vec<_>>>()?;
        // RETURNING does not preserve the order of the selection.
        claimed.sort_unstable_by_key(|row| row.order);
        Ok(claimed)
    }

    pub(in crate::store) async fn finish(&self, batch: &[Finished]) -> StoreResult<usize> {
        macro_rules! column {
            ($row:ident => $value:expr) => {
                batch.iter().map(|$row| $value).collect::<Vec<_>>()
            };
        }
        let taken: i64 = sqlx::query_scalar(FINISH)
            .bind(column!(row => row.id))
            .bind(column!(row => row.fence))
            .bind(column!(row => row.worker))
            .bind(column!(row => row.lane.code()))
            .bind(column!(row => row.result.attempt))
            .bind(column!(row => row.next.is_recorded().then(|| row.result.kind.code())))
            .bind(column!(row => row.result.began_at.map(|at| at.0)))
            .bind(column!(row => row.result.at.0))
            .bind(column!(row => row.next.due().map(|at| at.0)))
            .bind(column!(row => row.result.provider.as_deref()))
            .bind(column!(row => row.result.code.as_deref()))
            .bind(column!(row => row.result.detail.as_deref()))
            .bind(column!(row => row.next == Next::Dead))
            .bind(column!(row => row.result.address.as_ref().map(<[u8; 32]>::as_slice)))
            .bind(column!(row => row.result.template_version))
            .fetch_one(&self.queue)
            .await?;
        Ok(usize::try_from(taken).unwrap_or(0))
    }

    pub(in crate::store) async fn release(
        &self,
        rows: &[ClaimRef],
    ) -> StoreResult<Vec<LanePosition>> {
        let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        let fences: Vec<_> = rows.iter().map(|row| row.fence).collect();
        let rows = sqlx::query(RELEASE)
            .bind(ids)
            .bind(fences)
            .fetch_all(&self.queue)
            .await?;
        rows.iter().map(rows::place).collect()
    }

    pub(in crate::store) async fn scan_lanes(
        &self,
        marks: &[LowWatermark],
        dead: &[i64],
    ) -> StoreResult<Vec<LaneScan>> {
        let rows = sqlx::query(SCAN_LANES)
            .bind(
                marks
                    .iter()
                    .map(|mark| mark.lane.code())
                    .collect::<Vec<_>>(),
            )
            .bind(marks.iter().map(|mark| mark.low).collect::<Vec<_>>())
            .bind(marks.iter().map(|mark| mark.cursor).collect::<Vec<_>>())
            .bind(dead)
            .fetch_all(&self.queue)
            .await?;
        rows.iter().map(rows::lane_scan).collect()
    }

    pub(in crate::store) async fn low_watermarks(
        &self,
        channel: Channel,
    ) -> StoreResult<Vec<LanePosition>> {
        let lanes = Lane::of(channel).map(Lane::code);
        let sql = "SELECT lane, low FROM notify_mark WHERE lane = ANY($1)";
        let rows = sqlx::query(sql)
            .bind(&lanes[..])
            .fetch_all(&self.queue)
            .await?;
        rows.iter().map(rows::place).collect()
    }

    pub(in crate::store) async fn save_low_watermarks(
        &self,
        marks: &[LowWatermark],
    ) -> StoreResult<()> {
        sqlx::query(SAVE_WATERMARKS)
            .bind(
                marks
                    .iter()
                    .map(|mark| mark.lane.code())
                    .collect::<Vec<_>>(),
            )
            .bind(marks.iter().map(|mark| mark.low).collect::<Vec<_>>())
            .execute(&self.queue)
            .await?;
        Ok(())
    }

    pub(in crate::store) async fn move_due(
        &self,
        now: Timestamp,
        limit: i64,
    ) -> StoreResult<MovedRows> {
        let bits = i32::try_from(ORDER_COUNTER_BITS).unwrap_or(0);
        let rows = sqlx::query(MOVE_DUE)
            .bind(now.0)
            .bind(limit)
            .bind(bits)
            .fetch_all(&self.queue)
            .await?;
        let mut moved = MovedRows::default();
        for row in &rows {
            match row.try_get::<Option<i16>, _>(0)? {
                Some(_) => moved.positions.push(rows::place(row)?),
                None => moved.next_due = Some(Timestamp(row.try_get(1)?)),
            }
        }
        Ok(moved)
    }

    #[cfg(test)]
    pub(in crate::store) async fn next_due(&self) -> StoreResult<Option<Timestamp>> {
        let due: Option<i64> =
            sqlx::query_scalar("SELECT due FROM notify_delayed ORDER BY due LIMIT 1")
                .fetch_optional(&self.queue)
                .await?;
        Ok(due.map(Timestamp))
    }

    pub(in crate::store) async fn cancel(
        &self,
        id: NotificationId,
        now: Timestamp,
    ) -> StoreResult<CancelResult> {
        let done = sqlx::query(CANCEL)
            .bind(id)
            .bind(now.0)
            .bind(ResultKind::Cancelled.code())
            .execute(&self.urgent)
            .await?;
        Ok(if done.rows_affected() == 0 {
            CancelResult::TooLate
        } else {
            CancelResult::Now
        })
    }

    pub(in crate::store) async fn publish(&self, text: &str) -> StoreResult<()> {
        sqlx::query("SELECT pg_notify($1, $2)")
            .bind(WAITING)
            .bind(text)
            .execute(&self.history)
            .await?;
        Ok(())
    }

    /// Announces a change of `rows` rows to all processes. Without the announcement they find it with
    /// their next periodic query.
    pub(super) async fn announce(&self, signal: ReplicaSignal, rows: u64) {
        if rows > 0
            && let Err(error) = self.publish(&signal.payload()).await
        {
            tracing::debug!(%error, "wake-up of other replicas failed");
        }
    }

    /// Uses a connection that the listener keeps.
    pub(in crate::store) async fn listen(&self) -> StoreResult<PgListener> {
        Ok(self.history.listen(WAITING).await?)
    }

    pub(in crate::store) async fn queue_depths(&self, cap: i64) -> StoreResult<Vec<LaneDepth>> {
        let lanes: Vec<i16> = Channel::ALL
            .into_iter()
            .flat_map(Lane::of)
            .map(Lane::code)
            .collect();
        let rows = sqlx::query(DEPTHS)
            .bind(lanes)
            .bind(cap)
            .fetch_all(&self.queue)
            .await?;
        rows.iter().map(rows::depth).collect()
    }
}

#[cfg(test)]
mod tests {
    use postern_common::database::{Database, testing};
    use sqlx::Executor;

    use super::*;
    use crate::store::Store;

    /// Returns the plan of a statement on a connection of the queue.
    async fn plan(postgres: &Postgres, name: &str, sql: &str, parameters: usize) -> String {
        let mut queue = postgres.queue.acquire().await.expect("a connection");
        queue
            .execute(AssertSqlSafe(format!("PREPARE {name} AS {sql}")))
            .await
            .expect("prepared");
        let nothing = vec!["NULL"; parameters].join(", ");
        let explain = format!("EXPLAIN EXECUTE {name} ({nothing})");
        let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
            .fetch_all(&mut *queue)
            .await
            .expect("the plan is returned");
        lines.join("\n")
    }

    #[tokio::test]
    async fn stale_statistics_do_not_cause_table_scans() {
        let test = testing::postgres().await;
        Store::open(&test.database, 4)
            .await
            .expect("the store opens");
        let Database::Postgres(pool) = &test.database else {
            panic!("PostgreSQL")
        };
        let postgres = Postgres::new(pool.clone(), 2);
        for sql in [
            "INSERT INTO notify_queue SELECT gen_random_uuid(), 1, n, 0, 0 FROM generate_series(1, 1000) n",
            "INSERT INTO notify_delayed SELECT gen_random_uuid(), n, 1, 0, 0 FROM generate_series(1, 1000) n",
            "DELETE FROM notify_queue",
            "DELETE FROM notify_delayed",
            "ANALYZE notify_queue, notify_delayed",
        ] {
            postgres
                .history
                .execute(sql)
                .await
                .expect("the statement succeeds");
        }
        let sizes = "SELECT relpages > 0 AND reltuples = 0 FROM pg_class WHERE relname = ANY($1)";
        let sizes =
            sqlx::query_scalar::<_, bool>(sizes).bind(vec!["notify_queue", "notify_delayed"]);
        assert_eq!(
            sizes
                .fetch_all(&postgres.history)
                .await
                .expect("a report was requested"),
            [true, true]
        );
        let claim = claim_sql();
        for (name, sql, parameters) in [
            ("claim", &*claim, 7),
            ("finish", FINISH, 15),
            ("release", RELEASE, 2),
            ("move_due", MOVE_DUE, 3),
        ] {
            let plan = plan(&postgres, name, sql, parameters).await;
            let count = |what: &str| plan.matches(what).count();
            assert_eq!(
                count("Join Filter") + count("Seq Scan"),
                0,
                "{name}: {plan}"
            );
            assert_eq!(
                count("Scan using") + count("Scan Backward using"),
                count("Index Cond"),
                "{name}: {plan}"
            );
            assert_eq!(count("Sort Key: notify_"), 0, "{name}: {plan}");
        }
    }
}
