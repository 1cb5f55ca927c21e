//! Suppressed and unsubscribed addresses.

use axum::extract::RawQuery;
use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_service::admin_api::changed;
use postern_service::http::{Json, Query, json};
use serde::Serialize;
use serde_json::{Value, json as value};

use super::super::list::{channel, limit, named};
use super::{Api, Change};
use crate::address::AddressHash;
use crate::delivery::suppression::SuppressionList;
use crate::operations::suppression::{
    SuppressionView, entry_id, entry_of, kinds, parse_entry_id, parse_hash,
};
use crate::store::{SuppressionEntry, SuppressionQuery};

/// Maximum number of entries on a page.
const MAX_PAGE_SIZE: i64 = 1000;
/// Number of entries on a page by default.
const DEFAULT_PAGE_SIZE: i64 = 100;

/// An entry with the id by which it is removed.
#[derive(Serialize)]
struct EntryView {
    id: String,
    #[serde(flatten)]
    entry: SuppressionView,
}

/// Handles `GET /admin/suppression`: entries of the lists, oldest first.
pub(super) async fn list(Api(api): Api, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let filter = read_filter(query.as_deref().unwrap_or_default())?;
    let entries = api.store.suppression_entries(&filter).await?;
    let is_full = i64::try_from(entries.len()).is_ok_and(|count| count >= filter.limit);
    let next = entries.last().filter(|_| is_full).map(cursor);
    let views: Vec<EntryView> = entries
        .iter()
        .map(|entry| EntryView {
            id: entry_id(entry),
            entry: entry.into(),
        })
        .collect();
    let body = value!({ "entries": views, "nextCursor": next });
    Ok(json(StatusCode::OK, &body))
}

fn read_filter(query: &str) -> Result<SuppressionQuery, Problem> {
    const KNOWN: [&str; 7] = [
        "hash", "list", "channel", "category", "reason", "limit", "cursor",
    ];
    let mut query = Query::parse(query, &KNOWN);
    let expected = "must be the SHA-256 of an address in 64 hexadecimal digits";
    let address = query.read("hash", expected, parse_hash);
    let list = query.read("list", "must be suppressed or unsubscribed", |text| {
        named(SuppressionList::NAMES, text)
    });
    let channel = channel(&mut query);
    let [category, reason] = ["category", "reason"].map(|name| query.get(name).map(str::to_owned));
    let limit = limit(&mut query, MAX_PAGE_SIZE);
    let after = query.read("cursor", "must be a nextCursor", parse_cursor);
    query.finish()?;
    Ok(SuppressionQuery {
        kinds: kinds(list, channel),
        address,
        category,
        reason,
        after,
        limit: limit.unwrap_or(DEFAULT_PAGE_SIZE),
        ..SuppressionQuery::default()
    })
}

/// Handles `POST /admin/suppression/remove`: removes the entry with an id. All replicas apply it
/// within seconds.
pub(super) async fn remove(Api(api): Api, change: Change, body: Json) -> Result<Response, Problem> {
    let (id, filter) = body.read(|object| {
        object.required("id", |field| {
            let id = field.text(1..=160)?;
            let filter = entry_of(&id);
            let filter =
                filter.or_else(|| field.fail("invalid_format", "must be the id of an entry"));
            Some((id, filter?))
        })
    })?;
    let removed = api.store.remove_suppressed(&filter).await?;
    change.record("suppression.remove", &id, Value::Null, removed.into());
    Ok(changed(&value!({ "removed": removed })))
}

/// Encodes the position of an entry.
fn cursor(entry: &SuppressionEntry) -> String {
    format!("{}.{}", entry.at.0, entry_id(entry))
}

fn parse_cursor(text: &str) -> Option<(Timestamp, i16, AddressHash, String)> {
    let (at, id) = text.split_once('.')?;
    let (kind, hash, category) = parse_entry_id(id)?;
    Some((Timestamp(at.parse().ok()?), kind, hash, category))
}
