//! SQLite: rows. All SQL of the queue stands in [`queue`], all other SQL in [`history`].
//!
//! A batch is one statement over `json_each`: a bound insert a row costs six times as much.

mod history;
mod queue;

use postern_common::clock::Timestamp;
use postern_common::database;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::row::{Record, ResultKind, ResultRow};
use super::{Outcome, StoreError};
use crate::notification::{Lane, NotificationId};

/// SQLite.
#[derive(Clone, Debug)]
pub struct Sqlite {
    pools: database::Sqlite,
}

impl Sqlite {
    /// Over an open file.
    #[must_use]
    pub fn new(pools: database::Sqlite) -> Self {
        Self { pools }
    }
}

/// Columns in the order of [`record`].
const RECORD: &str = "r.lane, r.creator, r.addressee, r.template, r.template_version, r.locale, r.recipient, r.variables, r.created_at, \
     r.expires_at";

fn record(row: &SqliteRow, first: usize) -> Outcome<Record> {
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

fn lane(row: &SqliteRow, column: usize) -> Outcome<Lane> {
    Lane::from_code(row.try_get(column)?).ok_or_else(|| unknown("lane"))
}

fn result_row(row: &SqliteRow, kind: i16) -> Outcome<ResultRow> {
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

/// A list for `json_each`.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "[]".to_owned())
}

fn id_list<'a>(ids: impl IntoIterator<Item = &'a NotificationId>) -> String {
    json(&ids.into_iter().map(ToString::to_string).collect::<Vec<_>>())
}
