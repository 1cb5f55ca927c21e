//! Suppressed and unsubscribed addresses.

use axum::extract::RawQuery;
use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_service::admin_api::changed;
use postern_service::http::{Json, Query, json};
use serde_json::{Value, json as value};

use super::super::list::limit;
use super::{Api, Change};
use crate::address::AddressHash;
use crate::delivery::suppression::SuppressionList;
use crate::store::{SuppressionEntry, SuppressionQuery};

/// Maximum number of entries on a page.
const MAX_PAGE_SIZE: i64 = 1000;
/// Number of entries on a page by default.
const DEFAULT_PAGE_SIZE: i64 = 100;

/// Handles `GET /admin/suppression`: entries of the lists, oldest first.
pub(super) async fn list(Api(api): Api, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let filter = read_filter(query.as_deref().unwrap_or_default())?;
    let entries = api.store.suppression_entries(&filter).await?;
    let is_full = i64::try_from(entries.len()).is_ok_and(|count| count >= filter.limit);
    let next = entries.last().filter(|_| is_full).map(cursor);
    let views: Vec<Value> = entries.iter().map(view).collect();
    let body = value!({ "entries": views, "nextCursor": next });
    Ok(json(StatusCode::OK, &body))
}

fn read_filter(query: &str) -> Result<SuppressionQuery, Problem> {
    let mut query = Query::parse(query, &["hash", "limit", "cursor"]);
    let expected = "must be the SHA-256 of an address in 64 hexadecimal digits";
    let address = query.read("hash", expected, parse_hash);
    let limit = limit(&mut query, MAX_PAGE_SIZE);
    let after = query.read("cursor", "must be a nextCursor", parse_cursor);
    query.finish()?;
    Ok(SuppressionQuery {
        kinds: SuppressionList::all_kinds(),
        address,
        after,
        limit: limit.unwrap_or(DEFAULT_PAGE_SIZE),
    })
}

/// Handles `POST /admin/suppression/remove`: removes the entry with an id. All replicas apply it
/// within seconds.
pub(super) async fn remove(Api(api): Api, change: Change, body: Json) -> Result<Response, Problem> {
    let (id, (kind, hash, category)) = body.read(|object| {
        object.required("id", |field| {
            let id = field.text(1..=160)?;
            let wrong = || field.fail("invalid_format", "must be the id of an entry");
            let entry = parse_entry_id(&id).or_else(wrong)?;
            Some((id, entry))
        })
    })?;
    let removed = api.store.remove_suppressed(kind, &hash, &category).await?;
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

/// Parses the SHA-256 of an address: 64 hexadecimal digits.
fn parse_hash(text: &str) -> Option<AddressHash> {
    hex::decode(text).ok()?.try_into().ok()
}

/// Returns the id of an entry: list and channel, hash of the address, category.
fn entry_id(entry: &SuppressionEntry) -> String {
    let hash = hex::encode(&entry.address);
    format!("{}.{hash}.{}", entry.kind, entry.category)
}

/// Returns the parts of the id of an entry.
fn parse_entry_id(id: &str) -> Option<(i16, AddressHash, String)> {
    let (kind, id) = id.split_once('.')?;
    let (hash, category) = id.split_once('.')?;
    let kind = kind.parse().ok()?;
    SuppressionList::of_kind(kind)?;
    Some((kind, parse_hash(hash)?, category.to_owned()))
}

/// Returns an entry of a suppression list. Addresses are stored as SHA-256 digests only.
fn view(entry: &SuppressionEntry) -> Value {
    let kind = SuppressionList::of_kind(entry.kind);
    value!({
        "id": entry_id(entry),
        "at": entry.at,
        "list": kind.map(|(list, _)| list.as_str()),
        "channel": kind.map(|(_, channel)| channel.as_str()),
        "category": Some(&entry.category).filter(|category| !category.is_empty()),
        "reason": entry.reason,
        "addressHash": hex::encode(&entry.address),
    })
}
