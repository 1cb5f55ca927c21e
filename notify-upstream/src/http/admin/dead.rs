//! Dead letters: list, and changes of a selection.

use axum::extract::RawQuery;
use axum::response::Response;
use http::StatusCode;
use postern_core::clock::Timestamp;
use postern_core::decode::{Field, Object};
use postern_core::{Clock, Problem};
use postern_service::admin_api::changed;
use postern_service::http::{Json, Query, json};
use serde_json::{Value, json as value};

use super::super::list::{channel, limit, template};
use super::{Api, Change};
use crate::address::Recipient;
use crate::notification::{Channel, NotificationId, OrderSequence};
use crate::store::{DeadFilter, DeadLetter, HistoryEntry, ResultRow, Store, StoreError};
use crate::templates::TemplateName;

/// Maximum number of dead letters that a request lists or changes.
const MAX_LETTERS: i64 = 1000;
/// Number of dead letters that a list contains by default.
const DEFAULT_LETTERS: i64 = 200;
/// Maximum bytes of a code or of the name of a provider.
const MAX_NAME_BYTES: usize = 128;

/// Handles `GET /admin/dead`: dead letters, oldest first.
pub(super) async fn list(Api(api): Api, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let filter = list_filter(query.as_deref().unwrap_or_default())?;
    let letters = api.store.dead_letters(&filter).await?;
    let ids: Vec<NotificationId> = letters.iter().map(|letter| letter.id).collect();
    let histories = api.store.histories(&ids).await?;
    let view = |letter| view(letter, histories.get(&letter.id).map_or(&[], Vec::as_slice));
    let letters: Vec<_> = letters.iter().map(view).collect();
    let is_truncated = i64::try_from(letters.len()).is_ok_and(|count| count >= filter.limit);
    let body = value!({ "deadLetters": letters, "isTruncated": is_truncated });
    Ok(json(StatusCode::OK, &body))
}

fn list_filter(query: &str) -> Result<DeadFilter, Problem> {
    let known = [
        "code", "since", "before", "provider", "template", "channel", "limit",
    ];
    let mut query = Query::parse(query, &known);
    let channel = channel(&mut query);
    let template = template(&mut query);
    let mut name = |name| query.read(name, "must be a name", parse_name);
    let (code, provider) = (name("code"), name("provider"));
    let mut instant = |name| query.read(name, "must be an RFC 3339 time", Timestamp::parse);
    let (since, before) = (instant("since"), instant("before"));
    let limit = limit(&mut query, MAX_LETTERS);
    query.finish()?;
    Ok(DeadFilter {
        id: None,
        code,
        since,
        before,
        provider,
        template,
        channel,
        limit: limit.unwrap_or(DEFAULT_LETTERS),
    })
}

/// Handles `POST /admin/dead/retry`: queues the selected dead letters again. A preview needs no person.
pub(super) async fn retry(
    Api(api): Api,
    change: Result<Change, Problem>,
    body: Json,
) -> Result<Response, Problem> {
    let (filter, is_dry_run) = body.read(|object| {
        let filter = object.required("selector", |field| field.object(read_selector));
        let is_dry_run = object.or("dryRun", false, |field| field.boolean());
        Some((filter?, is_dry_run))
    })?;
    if is_dry_run {
        let letters = api.store.dead_letters(&filter).await?;
        return Ok(json(StatusCode::OK, &result(letters.len() as u64, true)));
    }
    let change = change?;
    let count = replay(&api.store, &filter, &api.clock).await?;
    for channel in Channel::ALL {
        api.dispatch_state.channel(channel).mark_all_waiting();
    }
    let target = value!({
        "code": filter.code, "provider": filter.provider, "template": filter.template,
        "channel": filter.channel.map(Channel::as_str), "since": filter.since, "before": filter.before,
    });
    change.record("dead.retry", &target.to_string(), Value::Null, count.into());
    Ok(changed(&result(count, false)))
}

fn result(count: u64, is_dry_run: bool) -> Value {
    // A selection beyond the maximum is continued by the same request.
    value!({ "count": count, "dryRun": is_dry_run, "isTruncated": count >= MAX_LETTERS.unsigned_abs() })
}

fn parse_name(text: &str) -> Option<String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_graphic());
    (is_name && (1..=MAX_NAME_BYTES).contains(&text.len())).then(|| text.to_owned())
}

/// Queues dead letters again, with all attempts and a new deadline, and returns their number.
pub(super) async fn replay(
    store: &Store,
    filter: &DeadFilter,
    clock: &Clock,
) -> Result<u64, StoreError> {
    store.synchronize(clock).await?;
    let count = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let first = OrderSequence::new(clock.clone()).orders(count);
    store.replay(filter, first, clock.now()).await
}

/// Reads a selector, which must name at least one property.
fn read_selector(object: &Object<'_>) -> Option<DeadFilter> {
    let name = |field: Field<'_>| {
        let text = field.string()?;
        parse_name(text).or_else(|| field.fail("invalid_format", "must be a name"))
    };
    let code = object.optional("code", name);
    let provider = object.optional("provider", name);
    let template = object.optional("template", TemplateName::read);
    let template = template.map(|name| name.as_str().to_owned());
    let channel = object.optional("channel", |field| field.one_of(Channel::NAMES));
    let instant = |name| object.optional(name, |field| field.timestamp());
    let (since, before) = (instant("since"), instant("before"));
    let filter = DeadFilter {
        code,
        provider,
        template,
        channel,
        since,
        before,
        limit: MAX_LETTERS,
        id: None,
    };
    let names = ["code", "provider", "template", "channel", "since", "before"];
    let detail = "must name at least one of code, provider, template, channel, since and before";
    if !names.iter().any(|name| object.has(name)) && object.is_good() {
        object.fail("missing_field", detail);
        return None;
    }
    Some(filter)
}

/// Returns a dead letter with what its history says: the provider of the last result that names
/// one, and the last reply of a provider, without addresses.
fn view(letter: &DeadLetter, history: &[HistoryEntry]) -> Value {
    let last = last_result(history);
    let recipient = letter.recipient.as_deref();
    let recipient: Option<Recipient> = recipient.and_then(|it| serde_json::from_str(it).ok());
    value!({
        "notificationId": letter.id,
        "at": letter.at,
        "channel": letter.lane.channel.as_str(),
        "priority": letter.lane.priority.as_str(),
        "attempts": letter.attempt,
        "code": letter.code,
        "recipientKind": recipient.map(|recipient| recipient.kind()),
        "template": letter.template,
        "provider": last.and_then(|result| result.provider.as_deref()),
        "lastReply": last.and_then(|result| result.detail.as_deref()),
    })
}

/// Returns the last result that a provider gave, or else the last one.
fn last_result(history: &[HistoryEntry]) -> Option<&ResultRow> {
    let results = || history.iter().rev().filter_map(HistoryEntry::result);
    let of_provider = results().find(|result| result.provider.is_some());
    of_provider.or_else(|| results().next())
}
