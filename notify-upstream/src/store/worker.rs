//! The statements of the workers.

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use sqlx::AssertSqlSafe;

use super::dialect::{List, transaction};
use super::row::LeaseRenewal;
use super::{Store, StoreResult};

impl Store {
    /// Registers a worker. `now` is the time of the lease; `None` is the clock of the database.
    pub(crate) async fn register_worker(
        &self,
        worker: i64,
        now: Option<Timestamp>,
    ) -> StoreResult<()> {
        let clock = self.syntax.clock();
        let sql =
            format!("INSERT INTO notify_worker (id, seen_at) VALUES ($1, coalesce($2, {clock}))");
        with_dialect!(self.connections.history.writer(), pool => {
            let insert = sqlx::query(AssertSqlSafe(sql)).bind(worker).bind(now.map(|now| now.0));
            insert.execute(pool).await?;
        });
        Ok(())
    }

    /// Renews the leases of workers, and returns the state of all. A worker that was last renewed
    /// more than `timeout_ms` milliseconds before `now` stays dead. `now` is as for
    /// `register_worker`.
    pub(crate) async fn renew_workers(
        &self,
        workers: &[i64],
        now: Option<Timestamp>,
        timeout_ms: i64,
    ) -> StoreResult<LeaseRenewal> {
        let (clock, now) = (self.syntax.clock(), now.map(|now| now.0));
        let renew = format!(
            "UPDATE notify_worker SET seen_at = coalesce($1, {clock})
            WHERE seen_at >= coalesce($1, {clock}) - $2 AND id {} RETURNING id",
            self.syntax.in_list(3)
        );
        let select = format!(
            "SELECT id, seen_at >= coalesce($1, {clock}) - $2, {clock} FROM notify_worker ORDER BY id"
        );
        // One transaction, because idle replicas renew as well.
        let (renewed, all): (Vec<i64>, Vec<(i64, bool, i64)>) = transaction!(self.connections.history, "UPDATE notify_worker", transaction => {
            let renew = sqlx::query_scalar(AssertSqlSafe(renew)).bind(now).bind(timeout_ms).bind(List(workers));
            let renewed = renew.fetch_all(&mut *transaction).await?;
            let select = sqlx::query_as(AssertSqlSafe(select)).bind(now).bind(timeout_ms);
            (renewed, select.fetch_all(&mut *transaction).await?)
        })?;
        let dead = all.iter().filter(|(_, is_live, _)| !is_live);
        let dead: Vec<_> = dead.map(|(id, ..)| *id).collect();
        let now = all.first().map(|(.., now)| Timestamp(*now));
        Ok(LeaseRenewal { renewed, dead, now })
    }

    /// Declares a worker dead. With `gone` it is deleted, unless it still holds a row.
    pub(crate) async fn retire_worker(&self, worker: i64, gone: bool) -> StoreResult<()> {
        const RETIRE: &str = "UPDATE notify_worker SET seen_at = 0 WHERE id = $1";
        const DELETE: &str = "DELETE FROM notify_worker WHERE id = $1
            AND NOT EXISTS (SELECT 1 FROM notify_queue WHERE worker = $1)";
        // Dead first: even if the second statement fails, the rows of the worker are recovered.
        with_dialect!(self.connections.history.writer(), pool => {
            sqlx::query(RETIRE).bind(worker).execute(pool).await?;
            if gone {
                sqlx::query(DELETE).bind(worker).execute(pool).await?;
            }
        });
        Ok(())
    }

    /// Registers workers that hold rows and are not registered, because they were deleted while they
    /// claimed. Unless they renew their leases, they are dead after the usual time. `now` is as for
    /// `register_worker`.
    pub(crate) async fn register_holders(&self, now: Option<Timestamp>) -> StoreResult<u64> {
        let sql = format!(
            "INSERT INTO notify_worker (id, seen_at) SELECT worker, coalesce($1, {}) FROM notify_queue
            WHERE worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM notify_worker w WHERE w.id = worker)
            GROUP BY worker ON CONFLICT DO NOTHING",
            self.syntax.clock()
        );
        with_dialect!(self.connections.slow.writer(), pool => {
            let insert = sqlx::query(AssertSqlSafe(sql)).bind(now.map(|now| now.0));
            Ok(insert.execute(pool).await?.rows_affected())
        })
    }

    /// Deletes workers last renewed before `dead_before` that hold no rows, and returns their
    /// number.
    pub(crate) async fn delete_dead_workers(&self, dead_before: Timestamp) -> StoreResult<u64> {
        const DELETE: &str = "DELETE FROM notify_worker WHERE seen_at < $1
            AND NOT EXISTS (SELECT 1 FROM notify_queue WHERE worker = notify_worker.id)";
        with_dialect!(self.connections.slow.writer(), pool => {
            let deleted = sqlx::query(DELETE).bind(dead_before.0).execute(pool).await?;
            Ok(deleted.rows_affected())
        })
    }
}
