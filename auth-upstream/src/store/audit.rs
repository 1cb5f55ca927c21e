//! All SQL of the audit events.

use postern_core::clock::Timestamp;
use postern_store::database::is_unavailable;
use postern_store::{from_row, with_dialect};
use serde::{Serialize, Serializer};
use sqlx::AssertSqlSafe;

use super::{AuthStore, StoreError, Stored, with_timeout};
use crate::crypto::hex;

/// The columns, in the order of [`AuditRow`].
const COLUMNS: &str =
    "id, at, operation, outcome, reason, request_id, subject, email_hash, network, provider";
const COLUMN_COUNT: usize = 10;

/// An index finds the oldest events, and one statement deletes a bounded number of them.
const DELETE_OLD: &str = "DELETE FROM auth_audit WHERE id IN \
     (SELECT id FROM auth_audit WHERE at < $1 ORDER BY at LIMIT $2)";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditRow {
    pub(crate) id: String,
    #[serde(serialize_with = "instant")]
    pub(crate) at: i64,
    #[serde(rename = "event")]
    pub(crate) operation: String,
    /// `ok` or the name of an error.
    pub(crate) outcome: String,
    /// The reason that the response hid.
    pub(crate) reason: Option<String>,
    pub(crate) request_id: String,
    pub(crate) subject: Option<String>,
    /// The keyed hash of the e-mail address, for operators in hexadecimal digits.
    #[serde(serialize_with = "digits")]
    pub(crate) email_hash: Option<Vec<u8>>,
    /// The /24 or /64 network of the client.
    pub(crate) network: Option<String>,
    /// `password` or `social`.
    pub(crate) provider: Option<String>,
}

from_row!(AuditRow {
    id: String,
    at: i64,
    operation: String,
    outcome: String,
    reason: Option<String>,
    request_id: String,
    subject: Option<String>,
    email_hash: Option<Vec<u8>>,
    network: Option<String>,
    provider: Option<String>,
});

fn instant<S: Serializer>(at: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    Timestamp(*at).serialize(serializer)
}

fn digits<S: Serializer>(hash: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    hash.as_ref().map(hex).serialize(serializer)
}

/// A selection of audit events. Each variant but the last has an index.
#[derive(Clone, Debug)]
pub(crate) enum AuditSelector {
    Subject(String),
    EmailHash(Vec<u8>),
    RequestId(String),
    All,
}

/// A query of the newest audit events of a selection.
#[derive(Clone, Debug)]
pub(crate) struct AuditQuery {
    pub(crate) selector: AuditSelector,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    /// Only events older than this one, in the order of the result.
    pub(crate) after: Option<AuditPosition>,
    pub(crate) limit: i64,
}

/// The position of an event among all: its time and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AuditPosition {
    pub(crate) at: i64,
    pub(crate) id: String,
}

// === impl StoreError ===

impl StoreError {
    /// Returns whether the same statement may succeed later.
    pub(crate) fn is_unavailable(&self) -> bool {
        is_unavailable(&self.0)
    }
}

// === impl AuditSelector ===

impl AuditSelector {
    /// Returns the condition on `$6`.
    fn condition(&self) -> &'static str {
        match self {
            Self::Subject(_) => "AND subject = $6",
            Self::EmailHash(_) => "AND email_hash = $6",
            Self::RequestId(_) => "AND request_id = $6",
            Self::All => "",
        }
    }
}

// === impl AuthStore ===

impl AuthStore {
    pub(crate) async fn insert_audit_rows(&self, rows: &[AuditRow]) -> Stored {
        let tuple = |row: usize| {
            let columns = (1..=COLUMN_COUNT).map(|column| row * COLUMN_COUNT + column);
            let columns: Vec<String> = columns.map(|number| format!("${number}")).collect();
            format!("({})", columns.join(", "))
        };
        let tuples: Vec<String> = (0..rows.len()).map(tuple).collect();
        let sql = format!(
            "INSERT INTO auth_audit ({COLUMNS}) VALUES {} ON CONFLICT (id) DO NOTHING",
            tuples.join(", ")
        );
        with_dialect!(self.database.writer(), pool => with_timeout(async {
            // There are as many texts as batch sizes: a prepared statement would seldom be reused.
            let mut insert = sqlx::query(AssertSqlSafe(sql)).persistent(false);
            for row in rows {
                insert = insert
                    .bind(&row.id)
                    .bind(row.at)
                    .bind(&row.operation)
                    .bind(&row.outcome)
                    .bind(row.reason.as_deref())
                    .bind(&row.request_id)
                    .bind(row.subject.as_deref())
                    .bind(row.email_hash.as_deref())
                    .bind(row.network.as_deref())
                    .bind(row.provider.as_deref());
            }
            insert.execute(pool).await.map(drop)
        }).await)
    }

    pub(crate) async fn audit_rows(&self, query: &AuditQuery) -> Stored<Vec<AuditRow>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM auth_audit WHERE at >= $1 AND at < $2 \
             AND (at < $4 OR (at = $4 AND id < $5)) {} ORDER BY at DESC, id DESC LIMIT $3",
            query.selector.condition()
        );
        let (since, until) = (query.since.0, query.until.0);
        let (at, id) = query
            .after
            .as_ref()
            .map_or((i64::MAX, ""), |after| (after.at, &*after.id));
        with_dialect!(self.database.readers(), pool => with_timeout(async {
            let select = sqlx::query_as(AssertSqlSafe(sql)).bind(since).bind(until);
            let select = select.bind(query.limit).bind(at).bind(id);
            let select = match &query.selector {
                AuditSelector::Subject(text) | AuditSelector::RequestId(text) => select.bind(text),
                AuditSelector::EmailHash(hash) => select.bind(hash),
                AuditSelector::All => select,
            };
            select.fetch_all(pool).await
        }).await)
    }

    /// Deletes at most `limit` of the events before a time, oldest first. Returns their number.
    pub(crate) async fn delete_audit_rows(&self, before: Timestamp, limit: i64) -> Stored<u64> {
        with_dialect!(self.database.writer(), pool => with_timeout(async {
            let delete = sqlx::query(DELETE_OLD).bind(before.0).bind(limit);
            Ok(delete.execute(pool).await?.rows_affected())
        }).await)
    }
}
