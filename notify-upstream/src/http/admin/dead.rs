//! Dead letters: list, and changes of a selection.

use axum::extract::{FromRequest, FromRequestParts, RawQuery, Request, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_core::decode::{Field, Object};
use postern_service::admin_api::changed;
use postern_service::http::{Json, Query, json};
use serde_json::{Value, json as value};

use super::super::ApiState;
use super::super::list::{channel, limit};
use super::{AdminState, Api, Change};
use crate::notification::{Channel, NotificationId};
use crate::operations::dead;
use crate::store::DeadFilter;
use crate::templates::TemplateName;

/// Maximum number of dead letters that a request lists or changes.
const MAX_LETTERS: i64 = 1000;
/// Number of dead letters that a list contains by default.
const DEFAULT_LETTERS: i64 = 200;
/// Maximum bytes of a code or of the name of a provider.
const MAX_NAME_BYTES: usize = 128;

/// Handles `GET /admin/dead`: dead letters with the filters of `postern-notify dead list`, oldest
/// first.
pub(super) async fn list(Api(api): Api, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let filter = list_filter(query.as_deref().unwrap_or_default())?;
    let letters = dead::list(&api.store, &filter).await?;
    let is_truncated = i64::try_from(letters.len()).is_ok_and(|count| count >= filter.limit);
    let body = value!({ "deadLetters": letters, "isTruncated": is_truncated });
    Ok(json(StatusCode::OK, &body))
}

fn list_filter(query: &str) -> Result<DeadFilter, Problem> {
    const KNOWN: [&str; 8] = [
        "id", "code", "since", "until", "provider", "template", "channel", "limit",
    ];
    let mut query = Query::parse(query, &KNOWN);
    let id = query.read(
        "id",
        "must be the id of a notification",
        NotificationId::parse,
    );
    let channel = channel(&mut query);
    let template = query.read("template", "must be the name of a template", |text| {
        TemplateName::parse(text).map(|name| name.as_str().to_owned())
    });
    let mut name = |name| query.read(name, "must be a name", parse_name);
    let (code, provider) = (name("code"), name("provider"));
    let mut instant = |name| query.read(name, "must be an RFC 3339 time", Timestamp::parse);
    let (since, until) = (instant("since"), instant("until"));
    let limit = limit(&mut query, MAX_LETTERS);
    query.finish()?;
    Ok(DeadFilter {
        id,
        code,
        since,
        until,
        provider,
        template,
        channel,
        limit: limit.unwrap_or(DEFAULT_LETTERS),
    })
}

/// A change of dead letters, or its preview. The person is required for the change only.
struct Selection {
    filter: DeadFilter,
    /// `None` for a preview.
    change: Option<Change>,
}

/// Handles `POST /admin/dead/retry`: queues the selected dead letters again.
pub(super) async fn retry(
    State(state): State<AdminState>,
    Api(api): Api,
    request: Request,
) -> Result<Response, Problem> {
    let selection = Selection::read(request, &state).await?;
    let Some(change) = selection.change else {
        return preview(&api, &selection.filter).await;
    };
    let count = dead::replay(&api.store, &selection.filter, &api.clock).await?;
    for channel in Channel::ALL {
        api.dispatch_state.channel(channel).mark_all_waiting();
    }
    Ok(finished(&change, "dead.retry", &selection.filter, count))
}

/// Handles `POST /admin/dead/drop`: deletes the selected dead letters. Their history is kept.
pub(super) async fn drop_letters(
    State(state): State<AdminState>,
    Api(api): Api,
    request: Request,
) -> Result<Response, Problem> {
    let selection = Selection::read(request, &state).await?;
    let Some(change) = selection.change else {
        return preview(&api, &selection.filter).await;
    };
    let count = api.store.discard_dead_letters(&selection.filter).await?;
    Ok(finished(&change, "dead.drop", &selection.filter, count))
}

async fn preview(api: &ApiState, filter: &DeadFilter) -> Result<Response, Problem> {
    let letters = api.store.dead_letters(filter).await?;
    Ok(json(StatusCode::OK, &result(letters.len() as u64, true)))
}

fn finished(change: &Change, action: &'static str, filter: &DeadFilter, count: u64) -> Response {
    let target = value!({
        "code": filter.code, "provider": filter.provider, "template": filter.template,
        "channel": filter.channel.map(Channel::as_str), "before": filter.until,
    });
    change.record(action, &target.to_string(), Value::Null, count.into());
    changed(&result(count, false))
}

fn result(count: u64, is_dry_run: bool) -> Value {
    // A selection beyond the maximum is continued by the same request.
    value!({ "count": count, "dryRun": is_dry_run, "isTruncated": count >= MAX_LETTERS.unsigned_abs() })
}

fn parse_name(text: &str) -> Option<String> {
    let is_name = (1..=MAX_NAME_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_name.then(|| text.to_owned())
}

// === impl Selection ===

impl Selection {
    async fn read(request: Request, state: &AdminState) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        // The operator is read first: a request without one has no effect whatever its body is.
        let change = Change::from_request_parts(&mut parts, state).await;
        let body = Json::from_request(Request::from_parts(parts, body), state).await?;
        let (filter, is_dry_run) = body.read(|object| {
            let filter = object.required("selector", |field| field.object(read_selector));
            let is_dry_run = object.or("dryRun", false, |field| field.boolean());
            Some((filter?, is_dry_run))
        })?;
        let change = if is_dry_run { None } else { Some(change?) };
        Ok(Self { filter, change })
    }
}

/// Reads a selector, which must name at least one property.
fn read_selector(object: &Object<'_>) -> Option<DeadFilter> {
    let name = |field: Field<'_>| {
        let text = field.string()?;
        parse_name(text).or_else(|| field.fail("invalid_format", "must be a name"))
    };
    let code = object.optional("code", name);
    let provider = object.optional("provider", name);
    let template = object.optional("template", |field| {
        let found = TemplateName::parse(field.string()?);
        let found = found.map(|name| name.as_str().to_owned());
        found.or_else(|| field.fail("invalid_format", "must be 1 to 64 of a-z, 0-9, - and _"))
    });
    let channel = object.optional("channel", |field| field.one_of(Channel::NAMES));
    let until = object.optional("before", |field| field.timestamp());
    let filter = DeadFilter {
        code,
        provider,
        template,
        channel,
        until,
        limit: MAX_LETTERS,
        ..DeadFilter::default()
    };
    if filter.is_unrestricted() && object.is_good() {
        let detail = "must name at least one of code, provider, template, channel and before";
        object.fail("missing_field", detail);
        return None;
    }
    Some(filter)
}
