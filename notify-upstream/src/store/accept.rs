//! The statements of acceptance.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::AssertSqlSafe;

use super::dialect::{Syntax, bytes_json, execute_rows, rows_json, transaction};
use super::queue::{DelayedRow, insert_delayed};
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

fn insert_records(syntax: Syntax) -> String {
    let columns = "id uuid, lane int2, creator text, addressee text, template text, template_version int4, locale text, \
        recipient text, variables text, created_at int8, send_at int8, expires_at int8, recipient_key int8, \
        request_id text, trace_context text";
    format!(
        "INSERT INTO notify_record (id, lane, creator, addressee, template, template_version, locale, recipient,
            variables, created_at, send_at, expires_at, recipient_key, request_id, trace_context)
        SELECT id, lane, creator, addressee, template, template_version, locale, recipient,
            variables, created_at, send_at, expires_at, recipient_key, request_id, trace_context FROM {}",
        syntax.rows(1, columns)
    )
}

fn insert_queue(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_queue (id, lane, caller, ord, fence, attempt) SELECT id, lane, caller, ord, 0, 0 FROM {}",
        syntax.rows(1, "id uuid, lane int2, caller text, ord int8")
    )
}

#[derive(Serialize)]
struct KeyRow<'a> {
    creator: &'a str,
    key: &'a str,
    id: NotificationId,
    fingerprint: String,
    created_at: i64,
}

#[derive(Serialize)]
struct RecordRow<'a> {
    id: NotificationId,
    lane: i16,
    creator: &'a str,
    addressee: Option<&'a str>,
    template: &'a str,
    template_version: i32,
    locale: &'a str,
    recipient: &'a str,
    variables: &'a str,
    created_at: i64,
    send_at: Option<i64>,
    expires_at: Option<i64>,
    recipient_key: Option<i64>,
    request_id: Option<&'a str>,
    trace_context: Option<&'a str>,
}

#[derive(Serialize)]
struct QueueRow<'a> {
    id: NotificationId,
    lane: i16,
    /// A user, or empty for all services.
    caller: &'a str,
    ord: i64,
}

impl Store {
    /// Stores a batch in one transaction, in the order given. Returns the identifiers that were
    /// rejected because their idempotency key is in use; all others are durable.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn accept(
        &self,
        batch: &[NewNotification],
    ) -> StoreResult<Vec<NotificationId>> {
        let syntax = self.syntax;
        let keys: Vec<_> = batch.iter().filter_map(key_row).collect();
        transaction!(self.connections.urgent, "INSERT INTO notify_record", transaction => {
            let mut rejected = Vec::new();
            if !keys.is_empty() {
                let insert = sqlx::query_scalar(AssertSqlSafe(insert_keys(syntax))).bind(rows_json(&keys));
                let kept: Vec<NotificationId> = insert.fetch_all(&mut *transaction).await?;
                let kept: HashSet<_> = kept.into_iter().collect();
                let is_taken = |row: &&NewNotification| row.key.is_some() && !kept.contains(&row.id);
                rejected = batch.iter().filter(is_taken).map(|row| row.id).collect();
            }
            let fresh = || batch.iter().filter(|row| !rejected.contains(&row.id));
            let records: Vec<_> = fresh().map(record_row).collect();
            let queued: Vec<_> = fresh().filter_map(queue_row).collect();
            let delayed: Vec<_> = fresh().filter_map(scheduled_row).collect();
            execute_rows!(transaction, insert_records(syntax), records);
            execute_rows!(transaction, insert_queue(syntax), queued);
            execute_rows!(transaction, insert_delayed(syntax), delayed);
            rejected
        })
    }
}

fn key_row(row: &NewNotification) -> Option<KeyRow<'_>> {
    let (key, fingerprint) = row.key.as_ref()?;
    Some(KeyRow {
        creator: &row.record.creator,
        key,
        id: row.id,
        fingerprint: bytes_json(fingerprint),
        created_at: row.record.created_at.0,
    })
}

fn record_row(row: &NewNotification) -> RecordRow<'_> {
    let record = &row.record;
    RecordRow {
        id: row.id,
        lane: record.lane.code(),
        creator: &record.creator,
        addressee: record.addressee.as_deref(),
        template: &record.template,
        template_version: record.template_version,
        locale: &record.locale,
        recipient: &record.recipient,
        variables: &record.variables,
        created_at: record.created_at.0,
        send_at: row.send_at.map(|at| at.0),
        expires_at: record.expires_at.map(|at| at.0),
        recipient_key: recipient_key_of(&record.recipient),
        request_id: record.request_id.as_deref(),
        trace_context: record.trace_context.as_deref(),
    }
}

fn queue_row(row: &NewNotification) -> Option<QueueRow<'_>> {
    let creator = &*row.record.creator;
    let is_user = Principal::is_user(creator);
    row.send_at.is_none().then(|| QueueRow {
        id: row.id,
        lane: row.record.lane.code(),
        caller: if is_user { creator } else { "" },
        ord: row.order,
    })
}

fn scheduled_row(row: &NewNotification) -> Option<DelayedRow> {
    Some(DelayedRow {
        id: row.id,
        due: row.send_at?.0,
        lane: row.record.lane.code(),
        fence: 0,
        attempt: 0,
    })
}
