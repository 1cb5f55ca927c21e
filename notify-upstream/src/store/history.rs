//! The statements of the history: records, results, receipts, idempotency keys and webhook tokens.

use std::collections::HashMap;

use postern_core::clock::Timestamp;
use postern_store::database::Database;
use postern_store::with_dialect;
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, rows_json};
use super::read::{HistoryRow, RECORD, RecordRow, history_entry, list_sql, snapshot};
use super::row::{
    IdempotencyRecord, ListQuery, MAX_RECEIPTS_PER_NOTIFICATION, ProviderReport, WebhookToken,
    printable,
};
use super::{HistoryEntry, NotificationSnapshot, Store, StoreResult};
use crate::address::recipient_key;
use crate::notification::NotificationId;

/// Results, receipts and the live row are read in one snapshot, so that a row that moves between
/// tables is seen once.
fn select_history(syntax: Syntax) -> String {
    let ids = syntax.in_list(1);
    format!(
        "SELECT id, CAST(0 AS smallint) AS part, attempt, kind, began_at, at, next_at, provider, code, detail, address,
            template_version FROM notify_result WHERE id {ids}
        UNION ALL
        SELECT id, CAST(1 AS smallint), 0, kind, NULL, at, NULL, provider, code, detail, NULL, NULL FROM notify_receipt WHERE id {ids}
        UNION ALL
        SELECT id, CAST(2 AS smallint), attempt, CAST(0 AS smallint), since, 0, NULL, NULL, NULL, NULL, NULL, NULL
        FROM notify_queue WHERE id {ids}
        UNION ALL
        SELECT id, CAST(2 AS smallint), attempt, CAST(0 AS smallint), NULL, 0, due, NULL, NULL, NULL, NULL, NULL
        FROM notify_delayed WHERE id {ids}
        ORDER BY 6, 3"
    )
}

/// Beyond the limit only the first report of each kind is inserted, so that no final state is lost.
fn insert_receipts(syntax: Syntax) -> String {
    let columns =
        "provider text, event_id text, id uuid, kind int2, at int8, code text, detail text";
    format!(
        "WITH numbered AS MATERIALIZED (
            SELECT input.*, row_number() OVER (PARTITION BY id ORDER BY event_id) AS place,
                row_number() OVER (PARTITION BY id, kind ORDER BY event_id) AS place_of_kind
            FROM {} WHERE NOT EXISTS
                (SELECT 1 FROM notify_receipt k WHERE k.provider = input.provider AND k.event_id = input.event_id)
        ), known AS MATERIALIZED (
            SELECT n.*, (SELECT count(*) FROM notify_receipt r WHERE r.id = n.id) AS stored,
                (SELECT count(*) FROM notify_receipt r WHERE r.id = n.id AND r.kind = n.kind) AS stored_of_kind
            FROM numbered n
        )
        INSERT INTO notify_receipt (provider, event_id, id, kind, at, received_at, code, detail)
        SELECT provider, event_id, id, kind, at, {}, code, detail FROM known
        WHERE place + stored <= $2 OR place_of_kind + stored_of_kind = 1
        ORDER BY provider, event_id ON CONFLICT DO NOTHING",
        syntax.rows(1, columns),
        syntax.clock()
    )
}

impl Store {
    /// Returns the request that an idempotency key was used for.
    pub(crate) async fn idempotency_record(
        &self,
        creator: &str,
        key: &str,
    ) -> StoreResult<Option<IdempotencyRecord>> {
        const SELECT: &str =
            "SELECT id, fingerprint, created_at FROM notify_key WHERE creator = $1 AND key = $2";
        let row: Option<(_, _, i64)> = with_dialect!(self.connections.urgent.readers(), pool => {
            let select = sqlx::query_as(SELECT).bind(creator).bind(key);
            select.fetch_optional(pool).await?
        });
        Ok(row.map(|(id, fingerprint, created_at)| (id, fingerprint, Timestamp(created_at))))
    }

    /// Reads all that is stored about these notifications.
    pub(crate) async fn read(
        &self,
        ids: &[NotificationId],
    ) -> StoreResult<Vec<NotificationSnapshot>> {
        let found = self.records(&self.connections.urgent, ids).await?;
        self.with_history(found).await
    }

    /// Reads records without their history.
    pub(super) async fn records(
        &self,
        database: &Database,
        ids: &[NotificationId],
    ) -> StoreResult<Vec<NotificationSnapshot>> {
        let wanted = self.syntax.in_list(1);
        let sql = format!("SELECT {RECORD} FROM notify_record r WHERE r.id {wanted}");
        let rows: Vec<RecordRow> = with_dialect!(database.readers(), pool => {
            let select = sqlx::query_as(AssertSqlSafe(sql)).bind(List(ids));
            select.fetch_all(pool).await?
        });
        rows.into_iter().map(snapshot).collect()
    }

    /// Adds their history to records.
    pub(crate) async fn with_history(
        &self,
        mut records: Vec<NotificationSnapshot>,
    ) -> StoreResult<Vec<NotificationSnapshot>> {
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        let mut histories = self.histories(&ids).await?;
        for record in &mut records {
            record.history = histories.remove(&record.id).unwrap_or_default();
        }
        Ok(records)
    }

    /// Reads the results, the receipts and the live row of notifications.
    pub(crate) async fn histories(
        &self,
        ids: &[NotificationId],
    ) -> StoreResult<HashMap<NotificationId, Vec<HistoryEntry>>> {
        let mut found: HashMap<_, Vec<_>> = HashMap::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(found);
        }
        let history = AssertSqlSafe(select_history(self.syntax));
        let rows: Vec<HistoryRow> = with_dialect!(self.connections.urgent.readers(), pool => {
            sqlx::query_as(history).bind(List(ids)).fetch_all(pool).await?
        });
        for row in rows {
            let entries = found.entry(row.0).or_default();
            entries.push(history_entry(row)?);
        }
        Ok(found)
    }

    /// Returns a part of a list of notifications, newest first, without variables and history.
    pub(crate) async fn list(&self, query: &ListQuery) -> StoreResult<Vec<NotificationSnapshot>> {
        let sql = AssertSqlSafe(list_sql(query));
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let rows: Vec<RecordRow> = with_dialect!(self.connections.urgent.readers(), pool => {
            let select = sqlx::query_as(sql).bind(query.before).bind(query.from).bind(limit);
            let select = select.bind(&query.creator).bind(query.recipient).bind(&query.request);
            let key = query.addressee.as_deref().map(recipient_key);
            select.bind(&query.addressee).bind(key).fetch_all(pool).await?
        });
        rows.into_iter().map(snapshot).collect()
    }

    /// Stores the delivery reports about notifications of this service, up to
    /// [`MAX_RECEIPTS_PER_NOTIFICATION`], and returns the number of new ones.
    pub(crate) async fn save_receipts(
        &self,
        provider: &str,
        reports: &[ProviderReport],
    ) -> StoreResult<u64> {
        let text = |text: &Option<String>| text.as_ref().map(|text| printable(text, 300));
        let row = |report: &ProviderReport| {
            Some(json!({
                "provider": provider,
                "event_id": printable(&report.event_id, 200),
                "id": report.id?,
                "kind": report.kind.code(),
                "at": report.at.0,
                "code": text(&report.code),
                "detail": text(&report.detail),
            }))
        };
        let rows: Vec<_> = reports.iter().filter_map(row).collect();
        if rows.is_empty() {
            return Ok(0);
        }
        let rows = rows_json(&rows);
        let sql = AssertSqlSafe(insert_receipts(self.syntax));
        with_dialect!(self.connections.history.writer(), pool => {
            let insert = sqlx::query(sql).bind(rows).bind(MAX_RECEIPTS_PER_NOTIFICATION);
            Ok(insert.execute(pool).await?.rows_affected())
        })
    }

    /// Stores a webhook token with the body of its first use. Returns whether the body is the same.
    pub(crate) async fn bind_webhook_token(
        &self,
        provider: &str,
        token: &WebhookToken,
        now: Timestamp,
    ) -> StoreResult<bool> {
        const INSERT: &str =
            "INSERT INTO notify_webhook_token (provider, token, body, at) VALUES ($1, $2, $3, $4)
            ON CONFLICT DO NOTHING";
        const SELECT: &str =
            "SELECT body FROM notify_webhook_token WHERE provider = $1 AND token = $2";
        with_dialect!(self.connections.history.writer(), pool => {
            let insert = sqlx::query(INSERT).bind(provider).bind(&token.token);
            insert.bind(token.body.as_slice()).bind(now.0).execute(pool).await?;
            let select = sqlx::query_scalar(SELECT).bind(provider).bind(&token.token);
            let first: Vec<u8> = select.fetch_one(pool).await?;
            Ok(first == token.body)
        })
    }
}
