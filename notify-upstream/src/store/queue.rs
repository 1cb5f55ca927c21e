//! The statements of the queue, each prepared once per connection.
//!
//! In PostgreSQL a table whose statistics were collected while it was empty appears to have no rows,
//! regardless of its current size: a join by key is then planned as a scan of the whole index for
//! every batch, in spite of the settings of the connections. Rows are therefore selected by a list
//! of keys, and further conditions for each row are a subquery that is not joined (`IS TRUE`).

use std::collections::HashSet;

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, bytes_json, execute_rows, rows_json, transaction};
use super::read::{by_lane, lane_of};
use super::row::{Finished, Next, ResultKind, ResultRow};
use super::{Store, StoreResult};
use crate::notification::{Channel, Lane, NotificationId, ORDER_COUNTER_BITS};
use crate::principal::Principal;

/// The columns of a row of `notify_delayed`, see [`delayed_row`].
pub(super) const DELAYED: &str =
    "id uuid, due int8, lane int2, fence int4, attempt int4, caller text";

const DEAD: &str = "id uuid, lane int2, fence int4, attempt int4, at int8, code text";

/// The columns of a row of `notify_result`, see [`result_row`].
pub(super) const RESULT: &str = "id uuid, attempt int4, kind int2, began_at int8, at int8, \
    next_at int8, provider text, code text, detail text, address bytea, template_version int4";

/// Deletes the rows whose fence and worker still match, and returns them. All others were taken over
/// by another worker.
fn take(syntax: Syntax) -> String {
    format!(
        "DELETE FROM notify_queue WHERE id {}
        AND ((id, fence, worker) IN (SELECT id, fence, worker FROM {})) IS TRUE RETURNING id",
        syntax.in_list(1),
        syntax.rows(2, "id uuid, fence int4, worker int8")
    )
}

/// Idempotent: a repetition after a lost response matches no row.
fn release(syntax: Syntax) -> String {
    format!(
        "UPDATE notify_queue SET worker = NULL, since = NULL, attempt = attempt - 1 WHERE id {}
        AND ((id, fence) IN (SELECT id, fence FROM {})) IS TRUE AND worker IS NOT NULL",
        syntax.in_list(1),
        syntax.rows(2, "id uuid, fence int4")
    )
}

fn lane_depths(syntax: Syntax) -> String {
    format!(
        "SELECT lane, (SELECT count(*) FROM (SELECT 1 FROM notify_queue q WHERE q.lane = input.lane LIMIT $2) AS counted)
        FROM {}",
        syntax.rows(1, "lane int2")
    )
}

fn waiting_of(syntax: Syntax) -> String {
    let counted = |rows: &str| {
        format!("(SELECT count(*) FROM (SELECT 1 FROM {rows} AND caller = $1 LIMIT $3) AS counted)")
    };
    let queued = counted(&format!("notify_queue WHERE lane {}", syntax.in_list(2)));
    // The condition of the index.
    let delayed = counted("notify_delayed WHERE caller <> ''");
    format!("SELECT {queued} + {delayed}")
}

fn lock_due(syntax: Syntax) -> String {
    format!(
        "SELECT id, lane FROM notify_delayed WHERE due <= $1 ORDER BY due, id LIMIT $2 {}",
        syntax.skip_locked()
    )
}

/// The order of a moved row is its due time, as if it had been accepted then. Rows that are due at
/// one time are claimed in the order of their ids, which is that of their acceptance.
fn queue_due(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_queue (id, lane, caller, ord, fence, attempt)
        SELECT id, lane, caller, due << {ORDER_COUNTER_BITS}, fence, attempt FROM notify_delayed WHERE id {}",
        syntax.in_list(1)
    )
}

fn delete_delayed(syntax: Syntax) -> String {
    format!("DELETE FROM notify_delayed WHERE id {}", syntax.in_list(1))
}

/// Returns the statements that change or select some rows of a table of any size.
#[cfg(test)]
pub(super) fn hot_statements(syntax: Syntax) -> [(&'static str, String); 10] {
    [
        ("pick", super::claim::pick(syntax)),
        ("pick_turns", super::claim::pick_turns(syntax)),
        ("lease", super::claim::lease(syntax)),
        ("take", take(syntax)),
        ("release", release(syntax)),
        ("lane_heads", super::claim::lane_heads(syntax)),
        ("waiting_of", waiting_of(syntax)),
        ("lock_due", lock_due(syntax)),
        ("queue_due", queue_due(syntax)),
        ("delete_delayed", delete_delayed(syntax)),
    ]
}

impl Store {
    /// Removes rows from the queue and records the results of their attempts. Rows with a higher
    /// fence are not changed. Returns the number of removed rows.
    pub(crate) async fn finish(&self, batch: &[Finished]) -> StoreResult<usize> {
        let syntax = self.syntax;
        let ids: Vec<_> = batch.iter().map(|row| row.id).collect();
        let key = |row: &Finished| json!({"id": row.id, "fence": row.fence, "worker": row.worker});
        let keys = rows_json(&batch.iter().map(key).collect::<Vec<_>>());
        transaction!(self.connections.queue, "DELETE FROM notify_queue", transaction => {
            let delete = sqlx::query_scalar(AssertSqlSafe(take(syntax))).bind(List(&ids)).bind(&keys);
            let taken: Vec<NotificationId> = delete.fetch_all(&mut *transaction).await?;
            let taken: HashSet<_> = taken.into_iter().collect();
            let ours = || batch.iter().filter(|row| taken.contains(&row.id));
            let recorded = ours().filter(|row| row.next.is_recorded());
            let results: Vec<_> = recorded.map(|row| result_row(row.id, &row.result)).collect();
            let delayed: Vec<_> = ours().filter_map(retry_row).collect();
            let dead = ours().filter(|row| row.next == Next::Dead);
            let dead: Vec<_> = dead.map(dead_row).collect();
            execute_rows!(transaction, syntax.insert("notify_result", RESULT), results);
            execute_rows!(transaction, syntax.insert("notify_delayed", DELAYED), delayed);
            execute_rows!(transaction, syntax.insert("notify_dead", DEAD), dead);
            taken.len()
        })
    }

    /// Releases rows, each with the fence of its claim, whose attempt was not started. Rows with a
    /// higher fence are not changed.
    pub(crate) async fn release(&self, claims: &[(NotificationId, i32)]) -> StoreResult<()> {
        let sql = AssertSqlSafe(release(self.syntax));
        let ids: Vec<_> = claims.iter().map(|(id, _)| *id).collect();
        let key = |(id, fence): &(NotificationId, i32)| json!({"id": id, "fence": fence});
        let keys = rows_json(&claims.iter().map(key).collect::<Vec<_>>());
        with_dialect!(self.connections.queue.writer(), pool => {
            sqlx::query(sql).bind(List(&ids)).bind(keys).execute(pool).await?;
        });
        Ok(())
    }

    /// Returns the number of rows in each lane, counted up to `cap`.
    pub(crate) async fn queue_depths(&self, cap: i64) -> StoreResult<Vec<(Lane, i64)>> {
        let sql = AssertSqlSafe(lane_depths(self.syntax));
        let lanes: Vec<_> = Channel::ALL.into_iter().flat_map(Lane::of).collect();
        let found: Vec<(i16, i64)> = with_dialect!(self.connections.queue.readers(), pool => {
            let select = sqlx::query_as(sql).bind(lanes_json(&lanes)).bind(cap);
            select.fetch_all(pool).await?
        });
        by_lane(found.into_iter())
    }

    /// Returns how many rows of a user wait for their turn or their time, each counted up to `cap`.
    pub(crate) async fn waiting_of(&self, user: &str, cap: i64) -> StoreResult<i64> {
        let sql = AssertSqlSafe(waiting_of(self.syntax));
        let lanes = Channel::ALL.into_iter().flat_map(Lane::of);
        let lanes: Vec<_> = lanes.map(Lane::code).collect();
        Ok(with_dialect!(self.connections.urgent.readers(), pool => {
            let count = sqlx::query_scalar(sql).bind(user).bind(List(&lanes)).bind(cap);
            count.fetch_one(pool).await?
        }))
    }

    /// Moves due rows from the delayed rows to the queue, in order of due time. Returns their lanes.
    pub(crate) async fn move_due(&self, now: Timestamp, limit: i64) -> StoreResult<Vec<Lane>> {
        if self.next_due().await?.is_none_or(|due| due > now) {
            return Ok(Vec::new());
        }
        let syntax = self.syntax;
        let moved: Vec<(NotificationId, i16)> = transaction!(self.connections.queue, "INSERT INTO notify_queue", transaction => {
            let select = sqlx::query_as(AssertSqlSafe(lock_due(syntax))).bind(now.0).bind(limit);
            let due: Vec<(NotificationId, i16)> = select.fetch_all(&mut *transaction).await?;
            let ids: Vec<_> = due.iter().map(|row| row.0).collect();
            for sql in [queue_due(syntax), delete_delayed(syntax)] {
                let change = sqlx::query(AssertSqlSafe(sql)).bind(List(&ids));
                change.execute(&mut *transaction).await?;
            }
            due
        })?;
        moved.into_iter().map(|(_, lane)| lane_of(lane)).collect()
    }

    /// Returns when the next delayed row is due.
    pub(super) async fn next_due(&self) -> StoreResult<Option<Timestamp>> {
        let due: Option<i64> = with_dialect!(self.connections.queue.readers(), pool => {
            let select = sqlx::query_scalar("SELECT due FROM notify_delayed ORDER BY due LIMIT 1");
            select.fetch_optional(pool).await?
        });
        Ok(due.map(Timestamp))
    }

    /// Cancels a notification, and returns whether its delivery had not started. A claimed row
    /// cannot be cancelled.
    pub(crate) async fn cancel(&self, id: NotificationId, now: Timestamp) -> StoreResult<bool> {
        const DELETE: [&str; 2] = [
            "DELETE FROM notify_queue WHERE id = $1 AND worker IS NULL RETURNING attempt",
            "DELETE FROM notify_delayed WHERE id = $1 RETURNING attempt",
        ];
        let syntax = self.syntax;
        transaction!(self.connections.urgent, "DELETE FROM notify_queue", transaction => {
            let mut results = Vec::new();
            for sql in DELETE {
                let delete = sqlx::query_scalar(sql).bind(id);
                let attempt: Option<i32> = delete.fetch_optional(&mut *transaction).await?;
                let event = attempt.map(|attempt| ResultRow::event(attempt, ResultKind::Cancelled, now));
                results.extend(event.map(|event| result_row(id, &event)));
            }
            execute_rows!(transaction, syntax.insert("notify_result", RESULT), results);
            !results.is_empty()
        })
    }
}

pub(super) fn result_row(id: NotificationId, result: &ResultRow) -> Value {
    json!({
        "id": id,
        "attempt": result.attempt,
        "kind": result.kind.code(),
        "began_at": result.began_at.map(|at| at.0),
        "at": result.at.0,
        "next_at": result.next_at.map(|at| at.0),
        "provider": result.provider,
        "code": result.code,
        "detail": result.detail,
        "address": result.address.map(bytes_json),
        "template_version": result.template_version,
    })
}

fn retry_row(row: &Finished) -> Option<Value> {
    let (due, counts) = (row.next.due()?, (row.fence, row.result.attempt));
    Some(delayed_row(row.id, due, row.lane, &row.creator, counts))
}

pub(super) fn delayed_row(
    id: NotificationId,
    due: Timestamp,
    lane: Lane,
    creator: &str,
    (fence, attempt): (i32, i32),
) -> Value {
    json!({
        "id": id,
        "due": due.0,
        "lane": lane.code(),
        "fence": fence,
        "attempt": attempt,
        "caller": Principal::queue_caller(creator),
    })
}

fn dead_row(row: &Finished) -> Value {
    json!({
        "id": row.id,
        "lane": row.lane.code(),
        "fence": row.fence,
        "attempt": row.result.attempt,
        "at": row.result.at.0,
        "code": row.result.code,
    })
}

pub(super) fn lanes_json(lanes: &[Lane]) -> String {
    let keys = lanes.iter().map(|lane| json!({"lane": lane.code()}));
    rows_json(&keys.collect::<Vec<_>>())
}
