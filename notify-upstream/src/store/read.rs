//! Conversion of rows, generated for both databases: their row types have no common trait with
//! typed access.

/// Returns the error for a code that only a newer version writes.
pub(super) fn unknown(what: &str) -> super::StoreError {
    super::StoreError::Refused(sqlx::Error::Decode(
        format!("a {what} that this version does not know").into(),
    ))
}

/// The columns that `record` reads, in this order.
pub(super) const RECORD: &str = "r.lane, r.creator, r.addressee, r.template, r.template_version, r.locale, r.recipient, r.variables, r.created_at, \
     r.expires_at";

/// The start of the retry window.
pub(super) const WANTED_AT: &str = "coalesce(r.send_at, r.created_at)";

/// Defines the functions that convert rows of one type. Each documents the columns that it expects,
/// by position.
macro_rules! row_readers {
    ($row:ty) => {
        use postern_common::clock::Timestamp;
        use sqlx::Row;

        use crate::notification::Lane;
        use crate::store::read::unknown;
        use crate::store::row::{
            DeadLetter, IdempotencyRecord, LaneDepth, LanePosition, LaneScan, ReceiptKind, Record,
            ResultKind, ResultRow,
        };
        use crate::store::{
            HistoryEntry, NotificationSnapshot, ReceiptEntry, StoreResult, WaitingRow,
        };

        fn instant(row: &$row, column: usize) -> StoreResult<Option<Timestamp>> {
            Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp))
        }

        pub(super) fn lane(row: &$row, column: usize) -> StoreResult<Lane> {
            Lane::from_code(row.try_get(column)?).ok_or_else(|| unknown("lane"))
        }

        /// Reads a lane and an order.
        pub(super) fn place(row: &$row) -> StoreResult<LanePosition> {
            Ok(LanePosition {
                lane: lane(row, 0)?,
                order: row.try_get(1)?,
            })
        }

        /// Reads a lane and its number of rows.
        pub(super) fn depth(row: &$row) -> StoreResult<LaneDepth> {
            Ok(LaneDepth {
                lane: lane(row, 0)?,
                rows: row.try_get(1)?,
            })
        }

        /// Reads the columns of `RECORD`, from position `first`.
        pub(super) fn record(row: &$row, first: usize) -> StoreResult<Record> {
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
                expires_at: instant(row, first + 9)?,
            })
        }

        /// Reads identifier, `send_at` and `RECORD`.
        pub(super) fn snapshot(row: &$row) -> StoreResult<NotificationSnapshot> {
            let (id, send_at) = (row.try_get(0)?, instant(row, 1)?);
            Ok(NotificationSnapshot {
                id,
                record: record(row, 2)?,
                send_at,
                history: Vec::new(),
            })
        }

        /// Reads identifier, part, attempt, kind, `began_at`, `at`, `next_at` or `due`, provider,
        /// code, detail, address, template version.
        pub(super) fn history_entry(row: &$row) -> StoreResult<HistoryEntry> {
            let kind: i16 = row.try_get(3)?;
            Ok(match row.try_get::<i16, _>(1)? {
                0 => HistoryEntry::Result(ResultRow {
                    attempt: row.try_get(2)?,
                    kind: ResultKind::from_code(kind).ok_or_else(|| unknown("kind of result"))?,
                    began_at: instant(row, 4)?,
                    at: Timestamp(row.try_get(5)?),
                    next_at: instant(row, 6)?,
                    provider: row.try_get(7)?,
                    code: row.try_get(8)?,
                    detail: row.try_get(9)?,
                    address: row
                        .try_get::<Option<Vec<u8>>, _>(10)?
                        .and_then(|hash| hash.try_into().ok()),
                    template_version: row.try_get(11)?,
                }),
                1 => HistoryEntry::Receipt(ReceiptEntry {
                    kind: ReceiptKind::from_code(kind).ok_or_else(|| unknown("kind of receipt"))?,
                    at: Timestamp(row.try_get(5)?),
                    provider: row.try_get(7)?,
                    code: row.try_get(8)?,
                    detail: row.try_get(9)?,
                }),
                _ => HistoryEntry::Waiting(WaitingRow {
                    attempt: row.try_get(2)?,
                    since: instant(row, 4)?,
                    due: instant(row, 6)?,
                }),
            })
        }

        /// Reads lane, head, gap, lowest.
        pub(super) fn lane_scan(row: &$row) -> StoreResult<LaneScan> {
            Ok(LaneScan {
                lane: lane(row, 0)?,
                head: row.try_get(1)?,
                gap: row.try_get(2)?,
                lowest: row.try_get(3)?,
            })
        }

        /// Reads identifier, fingerprint, `created_at`.
        pub(super) fn idempotency_record(row: &$row) -> StoreResult<IdempotencyRecord> {
            Ok(IdempotencyRecord {
                id: row.try_get(0)?,
                fingerprint: row.try_get(1)?,
                created_at: Timestamp(row.try_get(2)?),
            })
        }

        /// Reads identifier, lane, attempt, `at`, code.
        pub(super) fn dead_letter(row: &$row) -> StoreResult<DeadLetter> {
            Ok(DeadLetter {
                id: row.try_get(0)?,
                lane: lane(row, 1)?,
                attempt: row.try_get(2)?,
                at: Timestamp(row.try_get(3)?),
                code: row.try_get(4)?,
            })
        }
    };
}

pub(super) use row_readers;
