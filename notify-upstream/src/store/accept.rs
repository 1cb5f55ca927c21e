//! The statements of acceptance.

use std::borrow::Borrow;
use std::collections::HashSet;

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::dialect::{Syntax, bytes_json, execute_rows, rows_json, transaction};
use super::queue::{DELAYED, delayed_row};
use super::row::NewNotification;
use super::{Store, StoreResult};
use crate::address::recipient_key_of;
use crate::notification::NotificationId;
use crate::principal::Principal;

/// Keys are inserted in order, which prevents deadlocks between replicas.
fn insert_keys(syntax: Syntax) -> String {
    let columns = "creator text, key text, id uuid, fingerprint bytea, created_at int8";
    format!(
        "INSERT INTO notify_key (creator, key, id, fingerprint, created_at)
        SELECT creator, key, id, fingerprint, created_at FROM {} WHERE true ORDER BY creator, key
        ON CONFLICT DO NOTHING RETURNING id",
        syntax.rows(1, columns)
    )
}

const RECORD: &str = "id uuid, lane int2, creator text, addressee text, template text, \
    template_version int4, locale text, recipient text, variables text, created_at int8, \
    send_at int8, expires_at int8, recipient_key int8, request_id text, trace_context text";

const QUEUED: &str = "id uuid, lane int2, caller text, ord int8, fence int4, attempt int4";

impl Store {
    /// Stores a batch in one transaction, in the order given. Returns the identifiers that were
    /// rejected because their idempotency key is in use; all others are durable.
    pub(crate) async fn accept(
        &self,
        batch: &[impl Borrow<NewNotification> + Sync],
    ) -> StoreResult<Vec<NotificationId>> {
        let syntax = self.syntax;
        let batch: Vec<&NewNotification> = batch.iter().map(Borrow::borrow).collect();
        let keys: Vec<_> = batch.iter().filter_map(|row| key_row(row)).collect();
        transaction!(self.connections.urgent, "INSERT INTO notify_record", transaction => {
            let mut rejected = Vec::new();
            if !keys.is_empty() {
                let insert = sqlx::query_scalar(AssertSqlSafe(insert_keys(syntax))).bind(rows_json(&keys));
                let kept: Vec<NotificationId> = insert.fetch_all(&mut *transaction).await?;
                let kept: HashSet<_> = kept.into_iter().collect();
                let is_taken = |row: &&NewNotification| row.key.is_some() && !kept.contains(&row.id);
                rejected = batch.iter().copied().filter(is_taken).map(|row| row.id).collect();
            }
            let fresh = || batch.iter().copied().filter(|row| !rejected.contains(&row.id));
            let records: Vec<_> = fresh().map(record_row).collect();
            let queued: Vec<_> = fresh().filter_map(queue_row).collect();
            let delayed: Vec<_> = fresh().filter_map(scheduled_row).collect();
            execute_rows!(transaction, syntax.insert("notify_record", RECORD), records);
            execute_rows!(transaction, syntax.insert("notify_queue", QUEUED), queued);
            execute_rows!(transaction, syntax.insert("notify_delayed", DELAYED), delayed);
            rejected
        })
    }
}

fn key_row(row: &NewNotification) -> Option<Value> {
    let (key, fingerprint) = row.key.as_ref()?;
    Some(json!({
        "creator": row.record.creator,
        "key": key,
        "id": row.id,
        "fingerprint": bytes_json(fingerprint),
        "created_at": row.record.created_at.0,
    }))
}

fn record_row(row: &NewNotification) -> Value {
    let record = &row.record;
    json!({
        "id": row.id,
        "lane": record.lane.code(),
        "creator": record.creator,
        "addressee": record.addressee,
        "template": record.template,
        "template_version": record.template_version,
        "locale": record.locale,
        "recipient": record.recipient,
        "variables": record.variables,
        "created_at": record.created_at.0,
        "send_at": row.send_at.map(|at| at.0),
        "expires_at": record.expires_at.map(|at| at.0),
        "recipient_key": recipient_key_of(&record.recipient),
        "request_id": record.request_id,
        "trace_context": record.trace_context,
    })
}

fn queue_row(row: &NewNotification) -> Option<Value> {
    row.send_at.is_none().then(|| {
        json!({
            "id": row.id,
            "lane": row.record.lane.code(),
            "caller": Principal::queue_caller(&row.record.creator),
            "ord": row.order,
            "fence": 0,
            "attempt": 0,
        })
    })
}

fn scheduled_row(row: &NewNotification) -> Option<Value> {
    let (record, due) = (&row.record, row.send_at?);
    Some(delayed_row(
        row.id,
        due,
        record.lane,
        &record.creator,
        (0, 0),
    ))
}
