//! Conversion of rows of both databases. Each function documents the columns that it expects, by
//! position.

use postern_core::clock::Timestamp;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row, Type};

use crate::notification::Lane;
use crate::store::row::{
    DeadLetter, IdempotencyRecord, ListQuery, ReceiptKind, Record, ResultKind, ResultRow,
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

/// Returns the statement of a list, with `$1` as the upper bound of ids, `$2` as the lower one, `$3`
/// as the maximum number, `$4` as the creator, `$5` as the recipient, `$6` as the request, and `$7`
/// and `$8` as the addressee and its key. Each part is a range of one index that contains nothing else,
/// so that its time tells nothing of other notifications: bounds and order of all columns of the index
/// leave no other. Variables are not read.
pub(super) fn list_sql(query: &ListQuery) -> String {
    let columns = RECORD.replace("r.variables", "'' AS variables");
    let part = |keys: &[(&str, &str)], conditions: &str| {
        let names: String = keys.iter().map(|(name, _)| format!("{name}, ")).collect();
        let values: String = keys.iter().map(|(_, value)| format!("{value}, ")).collect();
        let order = names.replace(',', " DESC,");
        format!(
            "SELECT * FROM (SELECT r.id, r.send_at, {columns} FROM notify_record r
            WHERE ({names}r.id) < ({values}$1) AND ({names}r.id) >= ({values}$2) {conditions}
            ORDER BY {order}r.id DESC LIMIT $3) AS part"
        )
    };
    let (creator, recipient) = (("r.creator", "$4"), ("r.recipient_key", "$5"));
    let listed = match (&query.creator, query.recipient) {
        (Some(_), Some(_)) => part(&[creator, recipient], ""),
        (Some(_), None) => part(&[creator], ""),
        (None, Some(_)) => part(&[recipient], "AND r.recipient_key IS NOT NULL"),
        (None, None) if query.request.is_some() => part(&[], "AND r.request_id = $6"),
        (None, None) => part(&[], ""),
    };
    let to_actor = "AND r.recipient_key IS NOT NULL AND r.addressee = $7 AND r.creator <> $4";
    let to_actor = query
        .addressee
        .as_ref()
        .map(|_| part(&[("r.recipient_key", "$8")], to_actor));
    let parts: Vec<_> = std::iter::once(listed).chain(to_actor).collect();
    format!("{} ORDER BY 1 DESC LIMIT $3", parts.join(" UNION ALL "))
}

/// Reads identifier, lane, attempt, `at`, code, template, recipient.
pub(super) fn dead_letter(row: &impl StoredRow) -> StoreResult<DeadLetter> {
    Ok(DeadLetter {
        id: row.column(0)?,
        lane: lane(row, 1)?,
        attempt: row.column(2)?,
        at: Timestamp(row.column(3)?),
        code: row.column(4)?,
        template: row.column(5)?,
        recipient: row.column(6)?,
    })
}
