//! Creation of notifications, single and in batches.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use futures_util::StreamExt;
use http::header::{HeaderMap, HeaderValue, LOCATION};
use http::{HeaderName, StatusCode};
use postern_core::clock::Timestamp;
use postern_core::decode::{Mistakes, Node, Value};
use postern_core::{Code, Problem, log_limited};
use postern_service::http::{BudgetPermit, Json, RequestId, json};
use serde::Serialize;
use serde_json::{Value as JsonValue, json as value};

use super::{ApiState, AuthenticatedCaller};
use crate::address::AddressHash;
use crate::delivery::actors::{ActorAddressError, AddressedActors};
use crate::intake::group_commit::{self, AcceptedNotification};
use crate::intake::request::{NotificationRequest, ValidatedRequest};
use crate::notification::{Channel, Priority};
use crate::principal::Principal;
use crate::templates::TemplateName;

/// Maximum number of errors of one request in a log event.
const MAX_LOGGED_POINTERS: usize = 10;
/// Maximum length of their pointers, which contain names of variables.
const MAX_LOGGED_POINTER_CHARS: usize = 512;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum number of notifications in a batch.
const MAX_BATCH_ITEMS: usize = 1000;
/// Maximum number of a batch's notifications that wait for their commit concurrently.
const BATCH_CONCURRENCY: usize = 256;

/// Handles `POST /notifications`.
pub(super) async fn create(
    State(service): State<Arc<ApiState>>,
    AuthenticatedCaller { principal, .. }: AuthenticatedCaller,
    headers: HeaderMap,
    body: Json,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let now = service.clock.now();
    let (mut parsed, permit) = (None, body.permit());
    let request = body.read(|object| {
        let request = NotificationRequest::read(object, now);
        parsed = key.is_some().then(|| request.clone()).flatten();
        request
    });
    let waiting = check_waiting(&service, &principal).await;
    let checked = request.and_then(|request| check(&service, &principal, request));
    let result = match waiting.and(checked) {
        Ok(validated) => {
            let addressed = validated.request.addressee().cloned().into_iter().collect();
            let actors = service.actors.addressed(addressed).await;
            let key = key.clone();
            accept(&service, &principal, validated, &actors, key, permit).await
        }
        Err(problem) => Err(problem),
    };
    let created = match (result, parsed, key) {
        (Err(problem), Some(parsed), Some(key))
            if matches!(problem.code().status().as_u16(), 422 | 429) =>
        {
            let first = find_first_result(&service, &principal, &parsed, &key).await?;
            first.ok_or(problem)?
        }
        (result, ..) => result?,
    };
    let location = HeaderValue::try_from(format!("/notifications/{}", created.notification_id));
    let mut response = json(StatusCode::CREATED, &created);
    if let Ok(location) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// The answer about an accepted notification. In a batch, `status` is the HTTP status of the item.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    notification_id: String,
    status: JsonValue,
    channel: &'static str,
    priority: &'static str,
    created_at: Timestamp,
}

fn created(accepted: &AcceptedNotification, channel: Channel, priority: Priority) -> Created {
    Created {
        notification_id: accepted.id.to_string(),
        status: "QUEUED".into(),
        channel: channel.as_str(),
        priority: priority.as_str(),
        created_at: accepted.created_at,
    }
}

/// Returns the first result for this key and body. A request that is invalid now may have been
/// valid when it was first sent, because times pass and templates change; its repetition gets the
/// same response.
async fn find_first_result(
    service: &ApiState,
    principal: &Principal,
    request: &NotificationRequest,
    key: &str,
) -> Result<Option<Created>, Problem> {
    let ApiState { store, clock, .. } = service;
    let (creator, fingerprint) = (&*principal.creator, request.fingerprint());
    let first = group_commit::find_first_result(store, clock, creator, key, &fingerprint);
    let first = first.await?;
    Ok(first.map(|accepted| created(&accepted, request.channel, request.priority)))
}

async fn accept(
    service: &ApiState,
    principal: &Principal,
    validated: ValidatedRequest,
    actors: &AddressedActors,
    key: Option<String>,
    permit: BudgetPermit,
) -> Result<Created, Problem> {
    let unverified = unverified_address(service, principal, &validated, actors)?;
    if let Some(address) = &unverified {
        if let Some(key) = &key {
            let request = &validated.request;
            if let Some(first) = find_first_result(service, principal, request, key).await? {
                return Ok(first);
            }
        }
        let counted = service.unverified.count_one(&principal.creator, address);
        if !counted.await.map_err(|_| Code::Unavailable)? {
            let detail = "no more messages to an unverified address in this hour";
            return Err(not_addressable("unverified_address_quota", detail));
        }
    }
    let taken = service
        .quota
        .take(principal, validated.request.send_at)
        .await;
    taken.inspect_err(|problem| record_exceeded(service, principal, problem))?;
    let (channel, priority) = (validated.request.channel, validated.request.priority);
    let accepted = service
        .submissions
        .submit(principal, validated, key, permit);
    let accepted = accepted.await?;
    if unverified.is_some() {
        // Without the mark it is counted again at delivery.
        let _marked = service.unverified.mark_counted(accepted.id).await;
    }
    Ok(created(&accepted, channel, priority))
}

fn check(
    service: &ApiState,
    principal: &Principal,
    request: NotificationRequest,
) -> Result<ValidatedRequest, Problem> {
    principal.authorize_recipient(&request.recipient, service.users_may_address_anyone)?;
    principal.authorize_priority(request.priority, service.users_may_send_urgent)?;
    let (template, author) = (
        request.template.clone(),
        Principal::author(&principal.creator),
    );
    let checked = request.check(&service.templates.load(), author);
    checked.inspect_err(|problem| log_template_rejection(principal, &template, problem))
}

/// Checks that the addressed actor has an address that the caller may use. Returns the address if it
/// is not verified, and is counted therefore. What the actor service does not say now is decided at
/// delivery.
fn unverified_address(
    service: &ApiState,
    principal: &Principal,
    validated: &ValidatedRequest,
    actors: &AddressedActors,
) -> Result<Option<AddressHash>, Problem> {
    let Some(actor) = validated.request.addressee() else {
        return Ok(None);
    };
    let (channel, creator) = (validated.request.channel, &principal.creator);
    let (code, detail) = match service.actors.address_of(actor, actors, channel, creator) {
        Err(ActorAddressError::Unavailable | ActorAddressError::Misconfigured) => return Ok(None),
        Ok(found) if found.is_trusted => return Ok(None),
        Ok(found) if validated.allows_unverified => return Ok(Some(found.address.hash())),
        Ok(_) => (
            "address_not_verified",
            "the address of the actor is not verified",
        ),
        Err(ActorAddressError::Unknown) => ("actor_unknown", "there is no such actor"),
        Err(ActorAddressError::Missing) => (
            "actor_has_no_address",
            "the actor has no address on this channel",
        ),
    };
    Err(not_addressable(code, detail))
}

fn not_addressable(code: &'static str, detail: &'static str) -> Problem {
    Problem::new(Code::ValidationFailed).error("/recipient/actorId", code, detail)
}

/// Logs a request that does not fit the loaded templates: the caller or the templates are of another
/// version than expected.
fn log_template_rejection(principal: &Principal, template: &TemplateName, problem: &Problem) {
    let (caller, template) = (&*principal.creator, template.as_str());
    if problem.code() == Code::UnknownTemplate {
        log_limited!(
            warn,
            caller,
            template,
            "notification rejected, template unknown"
        );
    } else {
        let pointers = pointers(problem);
        log_limited!(
            warn,
            caller,
            template,
            pointers,
            "notification rejected, variables do not fit the template"
        );
    }
}

/// Returns the pointers of the errors of a problem, separated by spaces.
fn pointers(problem: &Problem) -> String {
    let problem = problem.to_json("");
    let errors = problem["errors"].as_array().into_iter().flatten();
    let pointers = errors.filter_map(|error| error["pointer"].as_str());
    let pointers: Vec<&str> = pointers.take(MAX_LOGGED_POINTERS).collect();
    let pointers = pointers.join(" ");
    pointers.chars().take(MAX_LOGGED_POINTER_CHARS).collect()
}

/// Returns the `Idempotency-Key` header, if present.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok().filter(|text| is_idempotency_key(text)),
        (Some(_), Some(_)) => None,
    };
    let expected = "Idempotency-Key must be one value of 1 to 255 visible ASCII characters";
    let wrong = || Problem::new(Code::InvalidHeader).detail(expected);
    key.map(|key| Some(key.to_owned())).ok_or_else(wrong)
}

fn is_idempotency_key(text: &str) -> bool {
    (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Handles `POST /notification-batches`. Items are accepted or rejected individually.
pub(super) async fn batch(
    State(service): State<Arc<ApiState>>,
    AuthenticatedCaller { principal, .. }: AuthenticatedCaller,
    RequestId(request_id): RequestId,
    headers: HeaderMap,
    body: Json,
) -> Result<Response, Problem> {
    if idempotency_key(&headers)?.is_some() {
        let detail = "Idempotency-Key is for single notifications";
        return Err(Problem::new(Code::InvalidHeader).detail(detail));
    }
    let permit = body.permit();
    let requests = read_batch(body, service.clock.now())?;
    let (service, principal, permit) = (&service, &principal, &permit);
    let checked = requests.into_iter();
    let checked = checked.map(|request| check(service, principal, request?));
    let checked: Vec<Result<ValidatedRequest, Problem>> = checked.collect();
    let addressed = checked.iter().flatten();
    let addressed = addressed.filter_map(|item| item.request.addressee().cloned());
    let actors = &service.actors.addressed(addressed.collect()).await;
    check_waiting(service, principal).await?;
    let results: Vec<JsonValue> = futures_util::stream::iter(checked)
        .map(|validated| async move {
            let permit = permit.clone();
            let accepted = accept(service, principal, validated?, actors, None, permit);
            let mut item = accepted.await?;
            item.status = StatusCode::CREATED.as_u16().into();
            serde_json::to_value(item).map_err(|_| Code::Internal.into())
        })
        .buffered(BATCH_CONCURRENCY)
        .map(|item| item.unwrap_or_else(|problem: Problem| problem.to_json(&request_id)))
        .collect()
        .await;
    Ok(json(StatusCode::OK, &value!({ "results": results })))
}

/// Parses each item separately. The parsed JSON tree takes many times the memory of its text and is
/// freed before any item waits for its commit.
fn read_batch(
    body: Json,
    now: Timestamp,
) -> Result<Vec<Result<NotificationRequest, Problem>>, Problem> {
    let one = |item: &Node| {
        let mistakes = Mistakes::default();
        let request = mistakes.object(item, |object| NotificationRequest::read(object, now));
        mistakes.finish(request).map_err(Problem::from_mistakes)
    };
    body.read(|object| {
        object.required("notifications", |field| {
            let Value::Array(items) = field.value() else {
                return field.fail("invalid_type", "must be an array");
            };
            if (1..=MAX_BATCH_ITEMS).contains(&items.len()) {
                return Some(items.iter().map(one).collect());
            }
            let detail = format!("must hold 1 to {MAX_BATCH_ITEMS} notifications");
            field.reject("invalid_length", detail)
        })
    })
}

async fn check_waiting(service: &ApiState, principal: &Principal) -> Result<(), Problem> {
    let checked = service.quota.check_waiting(&service.store, principal).await;
    checked.inspect_err(|problem| record_exceeded(service, principal, problem))
}

/// Counts and logs a request that the quota rejected.
fn record_exceeded(service: &ApiState, principal: &Principal, problem: &Problem) {
    if problem.code() != Code::RateLimited {
        return;
    }
    let counter = &service.metrics.events.quota_exceeded;
    let is_user = Principal::is_user(&principal.creator);
    let caller = if is_user { "user" } else { "service" };
    counter.with_label_values(&[caller]).inc();
    log_limited!(warn, caller = %principal.creator, "caller quota exceeded");
}
