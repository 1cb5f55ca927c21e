//! PostgreSQL: connections and rows. All SQL of the queue stands in [`queue`], all other SQL in [`history`].

mod history;
mod queue;

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::{PgPool, Row};

use postern_common::clock::Timestamp;

use super::row::{Record, ResultKind, ResultRow};
use super::{Outcome, StoreError};
use crate::notification::Lane;

/// PostgreSQL.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// Connections of the queue, with planner settings of their own.
    queue: PgPool,
    /// Connections for everything else.
    history: PgPool,
}

/// Statistics of a table that is empty one moment and holds a million rows the next mislead the planner either way:
/// these leave it only the index path. A statement that has not ended by then has lost its caller.
const QUEUE_SETTINGS: [(&str, &str); 8] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("statement_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

// === impl Postgres ===

impl Postgres {
    /// Over an open pool, whose address and credentials the queue's own connections take over.
    #[must_use]
    pub fn new(pool: PgPool, queue_connections: u32) -> Self {
        let options: PgConnectOptions = (*pool.connect_options()).clone();
        let queue = PgPoolOptions::new()
            .max_connections(queue_connections)
            .acquire_timeout(Duration::from_secs(2))
            .test_before_acquire(false)
            .connect_lazy_with(options.options(QUEUE_SETTINGS));
        Self { queue, history: pool }
    }
}

/// Columns in the order of [`record`].
const RECORD: &str = "r.lane, r.creator, r.addressee, r.template, r.template_version, r.locale, r.recipient, r.variables, r.created_at, \
     r.expires_at";

fn record(row: &PgRow, first: usize) -> Outcome<Record> {
    Ok(Record {
        lane: lane(row, first)?,
        creator: row.try_get(first + 1)?,
        addressee: row.try_get(first + 2)?,
        template: row.try_get(first + 3)?,
        template_version: row.try_get(first + 4)?,
        locale: row.try_get(first + 5)?,
        recipient: row.try_get(first + 6)?,
        variables: row.try_get(first + 7)?,
        created_at: Timestamp(row.try_get(first + 8)?),
        expires_at: row.try_get::<Option<i64>, _>(first + 9)?.map(Timestamp),
    })
}

fn lane(row: &PgRow, column: usize) -> Outcome<Lane> {
    Lane::from_code(row.try_get(column)?).ok_or_else(|| unknown("lane"))
}

fn result_row(row: &PgRow, kind: i16) -> Outcome<ResultRow> {
    Ok(ResultRow {
        attempt: row.try_get(2)?,
        kind: ResultKind::from_code(kind).ok_or_else(|| unknown("kind of result"))?,
        began_at: row.try_get::<Option<i64>, _>(4)?.map(Timestamp),
        at: Timestamp(row.try_get(5)?),
        next_at: row.try_get::<Option<i64>, _>(6)?.map(Timestamp),
        provider: row.try_get(7)?,
        code: row.try_get(8)?,
        detail: row.try_get(9)?,
    })
}

/// A number that only a newer version writes.
fn unknown(what: &str) -> StoreError {
    StoreError::Refused(sqlx::Error::Decode(format!("a {what} that this version does not know").into()))
}
