//! Conversion of rows of both databases. Each function documents the columns that it expects, by
//! position.

use postern_common::clock::Timestamp;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row, Type};

use crate::notification::Lane;
use crate::store::row::{
    DeadLetter, IdempotencyRecord, ListScope, ListedRow, ReceiptKind, Record, ResultKind, ResultRow,
};
use crate::store::{HistoryEntry, NotificationSnapshot, ReceiptEntry, StoreResult, WaitingRow};

/// A row of either database.
pub(super) trait StoredRow {
    /// Decodes the value of a column.
    fn column<T: StoredValue>(&self, column: usize) -> Result<T, sqlx::Error>;
}

/// A type that both databases store.
pub(super) trait StoredValue:
    for<'r> Decode<'r, Postgres> + Type<Postgres> + for<'r> Decode<'r, Sqlite> + Type<Sqlite>
{
}

impl<T> StoredValue for T where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres> + for<'r> Decode<'r, Sqlite> + Type<Sqlite>
{
}

impl StoredRow for PgRow {
    fn column<T: StoredValue>(&self, column: usize) -> Result<T, sqlx::Error> {
        self.try_get(column)
    }
}

impl StoredRow for SqliteRow {
    fn column<T: StoredValue>(&self, column: usize) -> Result<T, sqlx::Error> {
        self.try_get(column)
    }
}

/// Returns the error for a code that only a newer version writes.
fn unknown(what: &str) -> super::StoreError {
    super::StoreError::Refused(sqlx::Error::Decode(
        format!("a {what} that this version does not know").into(),
    ))
}

/// The columns that `record` reads, in this order.
pub(super) const RECORD: &str = "r.lane, r.creator, r.addressee, r.template, r.template_version, r.locale, r.recipient, r.variables, r.created_at, \
     r.expires_at, r.request_id, r.trace_context";

/// The start of the retry window.
pub(super) const WANTED_AT: &str = "coalesce(r.send_at, r.created_at)";

fn instant(row: &impl StoredRow, column: usize) -> StoreResult<Option<Timestamp>> {
    Ok(row.column::<Option<i64>>(column)?.map(Timestamp))
}

fn lane(row: &impl StoredRow, column: usize) -> StoreResult<Lane> {
    lane_of(row.column(column)?)
}

/// Returns the lane with a code.
pub(super) fn lane_of(code: i16) -> StoreResult<Lane> {
    Lane::from_code(code).ok_or_else(|| unknown("lane"))
}

/// Reads the columns of `RECORD`, from position `first`.
pub(super) fn record(row: &impl StoredRow, first: usize) -> StoreResult<Record> {
    Ok(Record {
        lane: lane(row, first)?,
        creator: row.column(first + 1)?,
        addressee: row.column(first + 2)?,
        template: row.column(first + 3)?,
        template_version: row.column(first + 4)?,
        locale: row.column(first + 5)?,
        recipient: row.column(first + 6)?,
        variables: row.column(first + 7)?,
        created_at: Timestamp(row.column(first + 8)?),
        expires_at: instant(row, first + 9)?,
        request_id: row.column(first + 10)?,
        trace_context: row.column(first + 11)?,
    })
}

/// Reads identifier, `send_at` and `RECORD`.
pub(super) fn snapshot(row: &impl StoredRow) -> StoreResult<NotificationSnapshot> {
    let (id, send_at) = (row.column(0)?, instant(row, 1)?);
    Ok(NotificationSnapshot {
        id,
        record: record(row, 2)?,
        send_at,
        history: Vec::new(),
    })
}

/// Reads identifier, part, attempt, kind, `began_at`, `at`, `next_at` or `due`, provider,
/// code, detail, address, template version.
pub(super) fn history_entry(row: &impl StoredRow) -> StoreResult<HistoryEntry> {
    let kind: i16 = row.column(3)?;
    Ok(match row.column::<i16>(1)? {
        0 => HistoryEntry::Result(ResultRow {
            attempt: row.column(2)?,
            kind: ResultKind::from_code(kind).ok_or_else(|| unknown("kind of result"))?,
            began_at: instant(row, 4)?,
            at: Timestamp(row.column(5)?),
            next_at: instant(row, 6)?,
            provider: row.column(7)?,
            code: row.column(8)?,
            detail: row.column(9)?,
            address: row
                .column::<Option<Vec<u8>>>(10)?
                .and_then(|hash| hash.try_into().ok()),
            template_version: row.column(11)?,
        }),
        1 => HistoryEntry::Receipt(ReceiptEntry {
            kind: ReceiptKind::from_code(kind).ok_or_else(|| unknown("kind of receipt"))?,
            at: Timestamp(row.column(5)?),
            provider: row.column(7)?,
            code: row.column(8)?,
            detail: row.column(9)?,
        }),
        _ => HistoryEntry::Waiting(WaitingRow {
            attempt: row.column(2)?,
            since: instant(row, 4)?,
            due: instant(row, 6)?,
        }),
    })
}

/// Reads identifier, fingerprint, `created_at`.
pub(super) fn idempotency_record(row: &impl StoredRow) -> StoreResult<IdempotencyRecord> {
    Ok(IdempotencyRecord {
        id: row.column(0)?,
        fingerprint: row.column(1)?,
        created_at: Timestamp(row.column(2)?),
    })
}

/// Reads identifier, lane, template, creator, addressee.
pub(super) fn listed_row(row: &impl StoredRow) -> StoreResult<ListedRow> {
    Ok(ListedRow {
        id: row.column(0)?,
        lane: lane(row, 1)?,
        template: row.column(2)?,
        creator: row.column(3)?,
        addressee: row.column(4)?,
    })
}

/// Returns the statement of a list, with `$1` as the upper bound of ids, `$2` as the lower one, `$3`
/// as the maximum number and `$4` as the value of the scope. The indexes
/// return the rows in this order.
pub(super) fn list_sql(scope: &ListScope) -> String {
    let condition = match scope {
        ListScope::All => "",
        ListScope::Creator(_) => "AND creator = $4",
        ListScope::Recipient(_) => "AND recipient_key = $4",
        ListScope::Request(_) => "AND request_id = $4",
    };
    format!(
        "SELECT id, lane, template, creator, addressee FROM notify_record \
         WHERE id < $1 AND id >= $2 {condition} ORDER BY id DESC LIMIT $3"
    )
}

/// Reads identifier, lane, attempt, `at`, code.
pub(super) fn dead_letter(row: &impl StoredRow) -> StoreResult<DeadLetter> {
    Ok(DeadLetter {
        id: row.column(0)?,
        lane: lane(row, 1)?,
        attempt: row.column(2)?,
        at: Timestamp(row.column(3)?),
        code: row.column(4)?,
    })
}
