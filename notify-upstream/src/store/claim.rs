//! The statements of claims: which rows are the next.
//!
//! Services are first in, first out. Each user has a turn with its first row, however many rows it has:
//! the callers of a lane are found by steps in the index. See [`queue`](super::queue) for the form of
//! the statements.

use std::collections::HashMap;

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use sqlx::{AssertSqlSafe, Row};

use super::dialect::{List, Syntax, execute_rows, transaction};
use super::queue::{StoredResult, insert_results, lanes_json};
use super::read::{self as rows, RECORD, WANTED_AT};
use super::row::{Claim, Claimed, LanePosition, ResultKind};
use super::{Store, StoreResult};
use crate::notification::{Lane, NotificationId};

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

fn select_records(syntax: Syntax) -> String {
    format!(
        "SELECT r.id, {WANTED_AT}, {RECORD} FROM notify_record r WHERE r.id {}",
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
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn claim(&self, claim: &Claim<'_>) -> StoreResult<Vec<Claimed>> {
        let picked = self.lease_rows(claim).await?;
        let mut records = HashMap::with_capacity(picked.len());
        if !picked.is_empty() {
            let ids: Vec<_> = picked.iter().map(|row| row.0).collect();
            let sql = AssertSqlSafe(select_records(self.syntax));
            with_dialect!(self.connections.queue.readers(), pool => {
                for row in sqlx::query(sql).bind(List(&ids)).fetch_all(pool).await? {
                    let record = (Timestamp(row.try_get(1)?), rows::record(&row, 2)?);
                    records.insert(row.try_get::<NotificationId, _>(0)?, record);
                }
            });
        }
        let claimed = picked.into_iter().filter_map(|row| {
            let (id, order, fence, attempt, ..) = row;
            let (wanted_at, record) = records.remove(&id)?;
            Some(Claimed {
                id,
                order,
                fence,
                attempt,
                wanted_at,
                record,
            })
        });
        Ok(claimed.collect())
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
            execute_rows!(transaction, insert_results(syntax), lost);
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
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn lane_heads(
        &self,
        lanes: &[Lane],
        dead: &[i64],
        full: &[String],
    ) -> StoreResult<Vec<LanePosition>> {
        let sql = AssertSqlSafe(lane_heads(self.syntax));
        let found: Vec<(i16, Option<i64>)> = with_dialect!(self.connections.queue.readers(), pool => {
            let select = sqlx::query_as(sql).bind(lanes_json(lanes)).bind(List(dead)).bind(List(full));
            select.fetch_all(pool).await?
        });
        let found = found.into_iter();
        found
            .filter_map(|(lane, order)| Some((lane, order?)))
            .map(|(lane, order)| {
                let lane = rows::lane_of(lane)?;
                Ok(LanePosition { lane, order })
            })
            .collect()
    }
}

fn lost_result(row: &PickedRow, now: Timestamp) -> Option<StoredResult<'static>> {
    // The claim has begun the next attempt.
    let mut lost = StoredResult::event(row.0, row.3 - 1, ResultKind::Lost, now);
    lost.began_at = Some(row.4?);
    Some(lost)
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
