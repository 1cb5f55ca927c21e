//! The statements of claims: which rows are the next.
//!
//! Services are first in, first out. Each user has a turn with its first row, however many rows it has:
//! the callers of a lane are found by steps in the index. See [`queue`](super::queue) for the form of
//! the statements.

use std::collections::HashMap;

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, execute_rows, transaction};
use super::queue::{RESULT, lanes_json, result_row};
use super::read::by_lane;
use super::row::{Claim, Claimed, ResultKind, ResultRow};
use super::{NotificationSnapshot, Store, StoreResult};
use crate::notification::{Lane, NotificationId, Order};

/// Selects the first rows of services in a lane that wait, or whose worker is dead. A row that
/// another replica claims at this moment is left out instead of waited for.
pub(super) fn pick(syntax: Syntax) -> String {
    format!(
        "SELECT id, ord, fence + 1, attempt + 1, since FROM notify_queue
        WHERE lane = $1 AND caller = '' AND (worker IS NULL OR worker {})
        ORDER BY lane, caller, ord, id LIMIT $3 {}",
        syntax.in_list(2),
        syntax.skip_locked()
    )
}

/// Selects the first such row of each user, from the next user on.
pub(super) fn pick_turns(syntax: Syntax) -> String {
    format!(
        "SELECT id, ord, fence + 1, attempt + 1, since FROM notify_queue
        WHERE id {} AND (worker IS NULL OR worker {}) {}",
        syntax.in_select(&user_heads(syntax, ["$1", "$4", "id", "$3"], 5)),
        syntax.in_list(2),
        syntax.skip_locked()
    )
}

/// Returns a column of the first row of each user of `lane` after `last`, without the users of a
/// list. A step for each user, however many rows it has.
fn user_heads(syntax: Syntax, [lane, last, column, limit]: [&str; 4], full: u8) -> String {
    let next = |last: &str| {
        format!(
            "SELECT (SELECT q.caller FROM notify_queue q WHERE q.lane = {lane} AND q.caller > {last}
            ORDER BY q.lane, q.caller LIMIT 1)"
        )
    };
    format!(
        "WITH RECURSIVE turns (caller) AS ({} UNION ALL {} FROM turns WHERE turns.caller IS NOT NULL)
        SELECT head FROM (SELECT (SELECT q.{column} FROM notify_queue q WHERE q.lane = {lane} AND q.caller = turns.caller
            AND (q.worker IS NULL OR q.worker {}) ORDER BY q.lane, q.caller, q.ord, q.id LIMIT 1) AS head
            FROM turns WHERE NOT (caller {})) AS heads WHERE head IS NOT NULL LIMIT {limit}",
        next(last),
        next("turns.caller"),
        syntax.in_list(2),
        syntax.in_list(full)
    )
}

pub(super) fn lease(syntax: Syntax) -> String {
    format!(
        "UPDATE notify_queue SET worker = $2, fence = fence + 1, attempt = attempt + 1, since = $3 WHERE id {}",
        syntax.in_list(1)
    )
}

pub(super) fn lane_heads(syntax: Syntax) -> String {
    format!(
        "SELECT lane, coalesce((SELECT ord FROM notify_queue q WHERE q.lane = input.lane AND q.caller = ''
            AND (worker IS NULL OR worker {}) ORDER BY q.lane, q.caller, ord, q.id LIMIT 1), ({})) FROM {}",
        syntax.in_list(2),
        user_heads(syntax, ["input.lane", "''", "ord", "1"], 3),
        syntax.rows(1, "lane int2")
    )
}

/// A selected row: identifier, order, fence and attempt of the claim, and the start of the attempt
/// of the worker that has died.
type PickedRow = (NotificationId, i64, i32, i32, Option<i64>);

impl Store {
    /// Claims the first rows of services in a lane that wait, or whose worker is dead, in order, and
    /// the first row of each user in turn. A row of a dead worker is taken over, and its attempt is
    /// recorded as lost.
    pub(crate) async fn claim(&self, claim: &Claim<'_>) -> StoreResult<Vec<Claimed>> {
        let picked = self.lease_rows(claim).await?;
        if picked.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = picked.iter().map(|row| row.0).collect();
        let found = self.records(&self.connections.queue, &ids).await?;
        let mut records: HashMap<_, _> = found.into_iter().map(|row| (row.id, row)).collect();
        let claimed = |(id, order, fence, attempt, _): PickedRow| {
            let NotificationSnapshot {
                record, send_at, ..
            } = records.remove(&id)?;
            let wanted_at = send_at.unwrap_or(record.created_at);
            Some(Claimed {
                id,
                order,
                fence,
                attempt,
                wanted_at,
                record,
            })
        };
        Ok(picked.into_iter().filter_map(claimed).collect())
    }

    async fn lease_rows(&self, claim: &Claim<'_>) -> StoreResult<Vec<PickedRow>> {
        let syntax = self.syntax;
        transaction!(self.connections.queue, "UPDATE notify_queue", transaction => {
            let select = sqlx::query_as(AssertSqlSafe(pick(syntax)))
                .bind(claim.lane.code())
                .bind(List(claim.dead))
                .bind(count(claim.limit));
            let mut picked: Vec<PickedRow> = select.fetch_all(&mut *transaction).await?;
            let for_users = claim.for_users.max(claim.limit - picked.len());
            if for_users > 0 {
                let select = sqlx::query_as(AssertSqlSafe(pick_turns(syntax)))
                    .bind(claim.lane.code())
                    .bind(List(claim.dead))
                    .bind(count(for_users))
                    .bind(claim.last_user)
                    .bind(List(claim.full));
                let users: Vec<PickedRow> = select.fetch_all(&mut *transaction).await?;
                picked.truncate(claim.limit - users.len());
                picked.extend(users);
            }
            let lost: Vec<_> = picked.iter().filter_map(|row| lost_result(row, claim.now)).collect();
            execute_rows!(transaction, syntax.insert("notify_result", RESULT), lost);
            let ids: Vec<_> = picked.iter().map(|row| row.0).collect();
            if !ids.is_empty() {
                let update = sqlx::query(AssertSqlSafe(lease(syntax)))
                    .bind(List(&ids))
                    .bind(claim.worker)
                    .bind(claim.now.0);
                update.execute(&mut *transaction).await?;
            }
            picked
        })
    }

    /// Returns the position of the first row of each lane that waits, or whose worker is dead: of a
    /// service, or of the first user who is not among `full`. Lanes without such a row are left out.
    pub(crate) async fn lane_heads(
        &self,
        lanes: &[Lane],
        dead: &[i64],
        full: &[String],
    ) -> StoreResult<Vec<(Lane, Order)>> {
        let sql = AssertSqlSafe(lane_heads(self.syntax));
        let found: Vec<(i16, Option<i64>)> = with_dialect!(self.connections.queue.readers(), pool => {
            let select = sqlx::query_as(sql).bind(lanes_json(lanes)).bind(List(dead)).bind(List(full));
            select.fetch_all(pool).await?
        });
        let waiting = found.into_iter();
        by_lane(waiting.filter_map(|(lane, order)| Some((lane, order?))))
    }
}

fn lost_result(row: &PickedRow, now: Timestamp) -> Option<Value> {
    // The claim has begun the next attempt.
    let lost = ResultRow {
        began_at: Some(Timestamp(row.4?)),
        ..ResultRow::event(row.3 - 1, ResultKind::Lost, now)
    };
    Some(result_row(row.0, &lost))
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
