//! Conversion of rows of both databases.

use postern_core::clock::Timestamp;

use super::{HistoryEntry, NotificationSnapshot, ReceiptEntry, StoreResult, WaitingRow};
use crate::notification::{Lane, NotificationId};
use crate::store::row::{ListQuery, ReceiptKind, Record, ResultKind, ResultRow};

/// The columns of a [`RecordRow`], in this order.
pub(super) const RECORD: &str = "r.id, r.send_at, r.lane, r.creator, r.addressee, r.template, r.template_version, r.locale, \
                                 r.recipient, r.variables, r.created_at, r.expires_at, r.request_id, r.trace_context";

/// The columns of `RECORD`.
pub(super) type RecordRow = (
    NotificationId,
    Option<i64>,
    i16,
    String,
    Option<String>,
    String,
    i32,
    String,
    String,
    String,
    i64,
    Option<i64>,
    Option<String>,
    Option<String>,
);

/// Identifier, part, attempt, kind, `began_at`, `at`, `next_at` or `due`, provider, code, detail,
/// address, template version.
pub(super) type HistoryRow = (
    NotificationId,
    i16,
    i32,
    i16,
    Option<i64>,
    i64,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<Vec<u8>>,
    Option<i32>,
);

/// Returns the error for a code that only a newer version writes.
fn unknown(what: &str) -> super::StoreError {
    let reason = format!("a {what} that this version does not know");
    super::StoreError::Refused(sqlx::Error::Decode(reason.into()))
}

pub(super) fn lane_of(code: i16) -> StoreResult<Lane> {
    Lane::from_code(code).ok_or_else(|| unknown("lane"))
}

/// Converts rows of lanes.
pub(super) fn by_lane(rows: impl Iterator<Item = (i16, i64)>) -> StoreResult<Vec<(Lane, i64)>> {
    let by_lane = rows.map(|(lane, value)| Ok((lane_of(lane)?, value)));
    by_lane.collect()
}

/// Converts the columns of `RECORD`.
pub(super) fn snapshot(row: RecordRow) -> StoreResult<NotificationSnapshot> {
    let record = Record {
        lane: lane_of(row.2)?,
        creator: row.3,
        addressee: row.4,
        template: row.5,
        template_version: row.6,
        locale: row.7,
        recipient: row.8,
        variables: row.9,
        created_at: Timestamp(row.10),
        expires_at: row.11.map(Timestamp),
        request_id: row.12,
        trace_context: row.13,
    };
    Ok(NotificationSnapshot {
        id: row.0,
        record,
        send_at: row.1.map(Timestamp),
        history: Vec::new(),
    })
}

pub(super) fn history_entry(row: HistoryRow) -> StoreResult<HistoryEntry> {
    let (_, part, attempt, kind, since, at, due, provider, code, detail, address, version) = row;
    let (since, at, due) = (since.map(Timestamp), Timestamp(at), due.map(Timestamp));
    Ok(match part {
        0 => HistoryEntry::Result(ResultRow {
            attempt,
            kind: ResultKind::from_code(kind).ok_or_else(|| unknown("kind of result"))?,
            began_at: since,
            at,
            next_at: due,
            provider,
            code,
            detail,
            address: address.and_then(|hash| hash.try_into().ok()),
            template_version: version,
        }),
        1 => HistoryEntry::Receipt(ReceiptEntry {
            kind: ReceiptKind::from_code(kind).ok_or_else(|| unknown("kind of receipt"))?,
            at,
            provider: provider.unwrap_or_default(),
            code,
            detail,
        }),
        _ => HistoryEntry::Waiting(WaitingRow {
            attempt,
            since,
            due,
        }),
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
            "SELECT * FROM (SELECT {columns} FROM notify_record r
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
    let to_actor = || part(&[("r.recipient_key", "$8")], to_actor);
    let to_actor = query.addressee.is_some().then(to_actor);
    let parts: Vec<_> = std::iter::once(listed).chain(to_actor).collect();
    format!("{} ORDER BY 1 DESC LIMIT $3", parts.join(" UNION ALL "))
}
