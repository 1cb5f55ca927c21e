//! The statements of what operators change: dead letters and pauses of providers.

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, execute_rows, transaction};
use super::queue::{RESULT, result_row};
use super::read::lane_of;
use super::row::{DeadFilter, DeadLetter, ProviderPause, ResultKind, ResultRow};
use super::{Store, StoreResult};
use crate::notification::{NotificationId, Order};

/// The condition, order and limit of a selection of dead letters.
fn selection(syntax: Syntax) -> String {
    format!(
        "($1 IS NULL OR id = $1) AND ($2 IS NULL OR code = $2) AND ($3 IS NULL OR at >= $3) AND ($4 IS NULL OR at < $4)
        AND ($6 IS NULL OR lane {})
        AND ($7 IS NULL OR $7 = (SELECT r.template FROM notify_record r WHERE r.id = notify_dead.id))
        AND ($8 IS NULL OR $8 = (SELECT r.provider FROM notify_result r WHERE r.id = notify_dead.id
            AND r.provider IS NOT NULL ORDER BY r.at DESC, r.attempt DESC LIMIT 1))
        ORDER BY at, id LIMIT $5",
        syntax.in_list(6)
    )
}

/// The locks of the selected rows prevent that two operators replay one.
fn queue_dead(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_queue (id, lane, caller, ord, fence, attempt)
        SELECT id, lane, coalesce((SELECT r.creator FROM notify_record r WHERE r.id = queued.id
            AND r.creator NOT LIKE 'service:%'), ''), $9 + row_number() OVER (ORDER BY at, id) - 1, fence, attempt
        FROM (SELECT * FROM notify_dead WHERE {} {}) AS queued RETURNING id, attempt",
        selection(syntax),
        syntax.for_update()
    )
}

macro_rules! bind_selection {
    ($query:expr, $filter:expr, $lanes:expr) => {
        $query
            .bind($filter.id)
            .bind($filter.code.as_deref())
            .bind($filter.since.map(|at| at.0))
            .bind($filter.before.map(|at| at.0))
            .bind($filter.limit)
            .bind($lanes.as_deref().map(List))
            .bind($filter.template.as_deref())
            .bind($filter.provider.as_deref())
    };
}

impl Store {
    /// Returns failed notifications, oldest first.
    pub(crate) async fn dead_letters(&self, filter: &DeadFilter) -> StoreResult<Vec<DeadLetter>> {
        let sql = format!(
            "SELECT id, lane, attempt, at, code, (SELECT r.template FROM notify_record r WHERE r.id = notify_dead.id),
                (SELECT r.recipient FROM notify_record r WHERE r.id = notify_dead.id) FROM notify_dead WHERE {}",
            selection(self.syntax)
        );
        let lanes = filter.lanes();
        let rows: Vec<(_, i16, _, i64, _, _, _)> = with_dialect!(self.connections.slow.readers(), pool => {
            let select = bind_selection!(sqlx::query_as(AssertSqlSafe(sql)), filter, lanes);
            select.fetch_all(pool).await?
        });
        let letter = |(id, lane, attempt, at, code, template, recipient)| {
            let (lane, at) = (lane_of(lane)?, Timestamp(at));
            Ok(DeadLetter {
                id,
                lane,
                attempt,
                at,
                code,
                template,
                recipient,
            })
        };
        rows.into_iter().map(letter).collect()
    }

    /// Queues failed notifications again, and returns their number.
    pub(crate) async fn replay(
        &self,
        filter: &DeadFilter,
        first_order: Order,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let (syntax, lanes) = (self.syntax, filter.lanes());
        let delete = format!("DELETE FROM notify_dead WHERE id {}", syntax.in_list(1));
        transaction!(self.connections.slow, "INSERT INTO notify_queue", transaction => {
            let insert = sqlx::query_as(AssertSqlSafe(queue_dead(syntax)));
            let insert = bind_selection!(insert, filter, lanes).bind(first_order);
            let queued: Vec<(NotificationId, i32)> = insert.fetch_all(&mut *transaction).await?;
            let ids: Vec<_> = queued.iter().map(|row| row.0).collect();
            let replayed = |attempt| ResultRow::event(attempt, ResultKind::Replayed, now);
            let results = queued.iter().map(|(id, attempt)| result_row(*id, &replayed(*attempt)));
            let results: Vec<_> = results.collect();
            execute_rows!(transaction, syntax.insert("notify_result", RESULT), results);
            let delete = sqlx::query(AssertSqlSafe(delete)).bind(List(&ids));
            delete.execute(&mut *transaction).await?.rows_affected()
        })
    }

    /// Returns the paused providers.
    pub(crate) async fn paused_providers(&self) -> StoreResult<Vec<ProviderPause>> {
        const SELECT: &str = "SELECT provider, operator, at, reason FROM notify_provider_pause";
        let rows: Vec<(_, _, i64, _)> = with_dialect!(self.connections.history.readers(), pool => {
            sqlx::query_as(SELECT).fetch_all(pool).await?
        });
        let pause = |(provider, operator, at, reason)| {
            let at = Timestamp(at);
            ProviderPause {
                provider,
                operator,
                at,
                reason,
            }
        };
        Ok(rows.into_iter().map(pause).collect())
    }

    /// Pauses a provider, and returns whether it was not paused before.
    pub(crate) async fn pause_provider(&self, pause: &ProviderPause) -> StoreResult<bool> {
        const INSERT: &str = "INSERT INTO notify_provider_pause (provider, operator, at, reason)
            VALUES ($1, $2, $3, $4) ON CONFLICT (provider) DO NOTHING";
        let paused = with_dialect!(self.connections.history.writer(), pool => {
            let insert = sqlx::query(INSERT).bind(&pause.provider).bind(&pause.operator);
            let insert = insert.bind(pause.at.0).bind(&pause.reason);
            insert.execute(pool).await?.rows_affected()
        });
        Ok(paused == 1)
    }

    /// Ends the pause of a provider, and returns whether it was paused.
    pub(crate) async fn resume_provider(&self, provider: &str) -> StoreResult<bool> {
        const DELETE: &str = "DELETE FROM notify_provider_pause WHERE provider = $1";
        let resumed = with_dialect!(self.connections.history.writer(), pool => {
            sqlx::query(DELETE).bind(provider).execute(pool).await?.rows_affected()
        });
        Ok(resumed == 1)
    }
}
