//! All SQL of the workers.

use postern_common::clock::Timestamp;
use sqlx::Row;

use super::Postgres;
use crate::store::StoreResult;
use crate::store::row::LeaseRenewal;

/// The time of the lease clock: the argument, or else the clock of the server.
macro_rules! lease_now {
    ($argument:literal) => {
        concat!(
            "coalesce($",
            $argument,
            "::int8, (extract(epoch FROM clock_timestamp()) * 1000)::int8)"
        )
    };
}

const REGISTER: &str = concat!(
    "INSERT INTO notify_worker (id, seen_at) VALUES ($1, ",
    lease_now!("2"),
    ")"
);

/// One round trip renews the leases and reads the state of all others.
const RENEW: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT ",
    lease_now!("2"),
    " AS now), renewed AS (
    UPDATE notify_worker w SET seen_at = clock.now FROM clock
    WHERE w.id = ANY($1) AND w.seen_at >= clock.now - $3 RETURNING w.id
)
SELECT coalesce((SELECT array_agg(id) FROM renewed), '{}'),
    ARRAY(SELECT w.id FROM notify_worker w WHERE w.seen_at < clock.now - $3 LIMIT 1000),
    (SELECT count(*) FROM notify_worker w WHERE w.seen_at >= clock.now - $3)
FROM clock"
);

impl Postgres {
    pub(in crate::store) async fn now(&self) -> StoreResult<Timestamp> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";
        Ok(Timestamp(
            sqlx::query_scalar(sql).fetch_one(&self.history).await?,
        ))
    }

    pub(in crate::store) async fn register_worker(
        &self,
        worker: i64,
        now: Option<Timestamp>,
    ) -> StoreResult<()> {
        sqlx::query(REGISTER)
            .bind(worker)
            .bind(now.map(|now| now.0))
            .execute(&self.history)
            .await?;
        Ok(())
    }

    pub(in crate::store) async fn renew_workers(
        &self,
        workers: &[i64],
        now: Option<Timestamp>,
        timeout_ms: i64,
    ) -> StoreResult<LeaseRenewal> {
        let row = sqlx::query(RENEW)
            .bind(workers)
            .bind(now.map(|now| now.0))
            .bind(timeout_ms)
            .fetch_one(&self.history)
            .await?;
        let live: i64 = row.try_get(2)?;
        Ok(LeaseRenewal {
            renewed: row.try_get(0)?,
            dead: row.try_get(1)?,
            live: u32::try_from(live).unwrap_or(u32::MAX),
        })
    }

    pub(in crate::store) async fn retire_worker(&self, worker: i64, gone: bool) -> StoreResult<()> {
        // Dead first: even if the second statement fails, the rows of the worker are recovered.
        let sql = "UPDATE notify_worker SET seen_at = 0 WHERE id = $1";
        sqlx::query(sql).bind(worker).execute(&self.history).await?;
        if gone {
            let sql = "DELETE FROM notify_worker WHERE id = $1
                AND NOT EXISTS (SELECT 1 FROM notify_queue WHERE worker = $1)";
            sqlx::query(sql).bind(worker).execute(&self.history).await?;
        }
        Ok(())
    }

    pub(in crate::store) async fn delete_dead_workers(
        &self,
        dead_before: Timestamp,
    ) -> StoreResult<u64> {
        let sql = "DELETE FROM notify_worker w WHERE seen_at < $1
            AND NOT EXISTS (SELECT 1 FROM notify_queue q WHERE q.worker = w.id)";
        Ok(sqlx::query(sql)
            .bind(dead_before.0)
            .execute(&self.slow)
            .await?
            .rows_affected())
    }
}
