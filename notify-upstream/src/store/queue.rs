//! The statements of the queue, each prepared once per connection.
//!
//! In PostgreSQL a table whose statistics were collected while it was empty appears to have no rows,
//! regardless of its current size: a join by key is then planned as a scan of the whole index for
//! every batch, in spite of the settings of the connections. Rows are therefore selected by a list
//! of keys, and further conditions for each row are a subquery that is not joined (`IS TRUE`).

use std::collections::HashSet;

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use serde::Serialize;
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, bytes_json, execute_rows, rows_json, transaction};
use super::read as rows;
use super::row::{CancelResult, ClaimRef, Finished, LaneDepth, Next, ResultKind};
use super::{Store, StoreResult};
use crate::notification::{Channel, Lane, NotificationId, ORDER_COUNTER_BITS};

pub(super) fn insert_delayed(syntax: Syntax) -> String {
    let input = syntax.rows(1, "id uuid, due int8, lane int2, fence int4, attempt int4");
    format!(
        "INSERT INTO notify_delayed (id, due, lane, fence, attempt, caller)
        SELECT id, due, lane, fence, attempt, {CALLER} FROM (SELECT * FROM {input}) AS queued"
    )
}

fn insert_dead(syntax: Syntax) -> String {
    let input = syntax.rows(
        1,
        "id uuid, lane int2, fence int4, attempt int4, at int8, code text",
    );
    format!(
        "INSERT INTO notify_dead (id, lane, fence, attempt, at, code)
        SELECT id, lane, fence, attempt, at, code FROM {input}"
    )
}

pub(super) fn insert_results(syntax: Syntax) -> String {
    let input = syntax.rows(
        1,
        "id uuid, attempt int4, kind int2, began_at int8, at int8, next_at int8, provider text, code text, detail text, \
         address bytea, template_version int4",
    );
    format!(
        "INSERT INTO notify_result (id, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version)
        SELECT id, attempt, kind, began_at, at, next_at, provider, code, detail, address, template_version FROM {input}"
    )
}

/// The caller whose turn a row waits for: a user, or empty for all services.
pub(super) const CALLER: &str =
    "coalesce((SELECT r.creator FROM notify_record r WHERE r.id = queued.id
    AND r.creator NOT LIKE 'service:%'), '')";

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

#[derive(Serialize)]
pub(super) struct DelayedRow {
    pub(super) id: NotificationId,
    pub(super) due: i64,
    pub(super) lane: i16,
    pub(super) fence: i32,
    pub(super) attempt: i32,
}

#[derive(Serialize)]
struct DeadRow<'a> {
    id: NotificationId,
    lane: i16,
    fence: i32,
    attempt: i32,
    at: i64,
    code: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct StoredResult<'a> {
    id: NotificationId,
    attempt: i32,
    kind: i16,
    pub(super) began_at: Option<i64>,
    at: i64,
    next_at: Option<i64>,
    provider: Option<&'a str>,
    code: Option<&'a str>,
    detail: Option<&'a str>,
    address: Option<String>,
    template_version: Option<i32>,
}

/// A claim, for conditions on its fence and worker.
#[derive(Serialize)]
struct ClaimKey {
    id: NotificationId,
    fence: i32,
    worker: Option<i64>,
}

#[derive(Serialize)]
struct LaneKey {
    lane: i16,
}

impl Store {
    /// Removes rows from the queue and records the results of their attempts. Rows with a higher
    /// fence are not changed. Returns the number of removed rows.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn finish(&self, batch: &[Finished]) -> StoreResult<usize> {
        let syntax = self.syntax;
        let ids: Vec<_> = batch.iter().map(|row| row.id).collect();
        let keys = batch.iter().map(|row| ClaimKey {
            id: row.id,
            fence: row.fence,
            worker: Some(row.worker),
        });
        let keys = rows_json(&keys.collect::<Vec<_>>());
        transaction!(self.connections.queue, "DELETE FROM notify_queue", transaction => {
            let delete = sqlx::query_scalar(AssertSqlSafe(take(syntax))).bind(List(&ids)).bind(&keys);
            let taken: Vec<NotificationId> = delete.fetch_all(&mut *transaction).await?;
            let taken: HashSet<_> = taken.into_iter().collect();
            let ours = || batch.iter().filter(|row| taken.contains(&row.id));
            let results: Vec<_> = ours().filter(|row| row.next.is_recorded()).map(stored_result).collect();
            let delayed: Vec<_> = ours().filter_map(retry_row).collect();
            let dead = ours().filter(|row| row.next == Next::Dead);
            let dead: Vec<_> = dead.map(dead_row).collect();
            execute_rows!(transaction, insert_results(syntax), results);
            execute_rows!(transaction, insert_delayed(syntax), delayed);
            execute_rows!(transaction, insert_dead(syntax), dead);
            taken.len()
        })
    }

    /// Releases rows whose attempt was not started. Rows with a higher fence are not changed.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn release(&self, claims: &[ClaimRef]) -> StoreResult<()> {
        let sql = AssertSqlSafe(release(self.syntax));
        let ids: Vec<_> = claims.iter().map(|row| row.id).collect();
        let keys = claims.iter().map(|row| ClaimKey {
            id: row.id,
            fence: row.fence,
            worker: None,
        });
        let keys = rows_json(&keys.collect::<Vec<_>>());
        with_dialect!(self.connections.queue.writer(), pool => {
            sqlx::query(sql).bind(List(&ids)).bind(keys).execute(pool).await?;
        });
        Ok(())
    }

    /// Returns the number of rows in each lane, counted up to `cap`.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn queue_depths(&self, cap: i64) -> StoreResult<Vec<LaneDepth>> {
        let sql = AssertSqlSafe(lane_depths(self.syntax));
        let lanes: Vec<_> = Channel::ALL.into_iter().flat_map(Lane::of).collect();
        let found: Vec<(i16, i64)> = with_dialect!(self.connections.queue.readers(), pool => {
            let select = sqlx::query_as(sql).bind(lanes_json(&lanes)).bind(cap);
            select.fetch_all(pool).await?
        });
        let found = found.into_iter();
        found
            .map(|(lane, rows)| {
                let lane = rows::lane_of(lane)?;
                Ok(LaneDepth { lane, rows })
            })
            .collect()
    }

    /// Returns how many rows of a user wait for their turn or their time, each counted up to `cap`.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
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
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
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
        let lanes = moved.into_iter().map(|(_, lane)| rows::lane_of(lane));
        lanes.collect()
    }

    /// Returns when the next delayed row is due.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(super) async fn next_due(&self) -> StoreResult<Option<Timestamp>> {
        let due: Option<i64> = with_dialect!(self.connections.queue.readers(), pool => {
            let select = sqlx::query_scalar("SELECT due FROM notify_delayed ORDER BY due LIMIT 1");
            select.fetch_optional(pool).await?
        });
        Ok(due.map(Timestamp))
    }

    /// Cancels a notification whose delivery has not started. A claimed row cannot be cancelled.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn cancel(
        &self,
        id: NotificationId,
        now: Timestamp,
    ) -> StoreResult<CancelResult> {
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
                results.extend(attempt.map(|attempt| StoredResult::event(id, attempt, ResultKind::Cancelled, now)));
            }
            execute_rows!(transaction, insert_results(syntax), results);
            if results.is_empty() { CancelResult::TooLate } else { CancelResult::Now }
        })
    }
}

// === impl StoredResult ===

impl StoredResult<'_> {
    /// Creates the result of something other than a call to a provider.
    pub(super) fn event(id: NotificationId, attempt: i32, kind: ResultKind, at: Timestamp) -> Self {
        Self {
            id,
            attempt,
            kind: kind.code(),
            began_at: None,
            at: at.0,
            next_at: None,
            provider: None,
            code: None,
            detail: None,
            address: None,
            template_version: None,
        }
    }
}

fn stored_result(row: &Finished) -> StoredResult<'_> {
    let result = &row.result;
    StoredResult {
        id: row.id,
        attempt: result.attempt,
        kind: result.kind.code(),
        began_at: result.began_at.map(|at| at.0),
        at: result.at.0,
        next_at: row.next.due().map(|at| at.0),
        provider: result.provider.as_deref(),
        code: result.code.as_deref(),
        detail: result.detail.as_deref(),
        address: result.address.map(bytes_json),
        template_version: result.template_version,
    }
}

fn retry_row(row: &Finished) -> Option<DelayedRow> {
    Some(DelayedRow {
        id: row.id,
        due: row.next.due()?.0,
        lane: row.lane.code(),
        fence: row.fence,
        attempt: row.result.attempt,
    })
}

fn dead_row(row: &Finished) -> DeadRow<'_> {
    DeadRow {
        id: row.id,
        lane: row.lane.code(),
        fence: row.fence,
        attempt: row.result.attempt,
        at: row.result.at.0,
        code: row.result.code.as_deref(),
    }
}

pub(super) fn lanes_json(lanes: &[Lane]) -> String {
    let keys = lanes.iter().map(|lane| LaneKey { lane: lane.code() });
    rows_json(&keys.collect::<Vec<_>>())
}
