use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::header::{HeaderMap, LOCATION};
use http::request::Parts;
use http::{HeaderName, StatusCode};
use postern_common::clock::Timestamp;
use postern_common::decode::{Mistakes, Node, Value};
use postern_common::http::{BudgetPermit, Json, RequestId};
use postern_common::{Code, Problem};
use serde::Serialize;

use super::{Authenticated, Service};
use crate::intake::group_commit::{self, Accepted};
use crate::intake::request::{Draft, IdempotencyKey, Request};
use crate::principal::Principal;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum number of notifications in a batch.
const MAX_BATCH: usize = 1000;
/// Maximum number of a batch's notifications that wait for their commit concurrently.
const AT_ONCE: usize = 256;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    notification_id: String,
    status: &'static str,
    channel: &'static str,
    priority: &'static str,
    created_at: Timestamp,
}

#[derive(Serialize)]
struct CreatedInBatch {
    status: u16,
    #[serde(flatten)]
    created: Members,
}

/// The members of a batch result. In a batch, `status` is the HTTP status of the item; the other
/// members are those of a single response.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Members {
    notification_id: String,
    channel: &'static str,
    priority: &'static str,
    created_at: Timestamp,
}

pub(super) async fn one(
    State(service): State<Arc<Service>>,
    Authenticated(principal): Authenticated,
    Key(key): Key,
    body: Json,
) -> Result<Response, Problem> {
    let now = service.clock.now();
    let (mut asked, permit) = (None, body.permit());
    let request = body.read(|object| {
        let request = Request::read(object, now);
        asked = key.is_some().then(|| request.clone()).flatten();
        request
    });
    let answer = match request {
        Ok(request) => accept(&service, &principal, request, (key.clone(), permit)).await,
        Err(problem) => Err(problem),
    };
    let (accepted, words) = match (answer, asked, key) {
        (Err(problem), Some(asked), Some(key))
            if problem.code().status() == StatusCode::UNPROCESSABLE_ENTITY =>
        {
            first_answer(&service, &principal, &asked, &key)
                .await?
                .ok_or(problem)?
        }
        (answer, ..) => answer?,
    };
    let created = Created {
        notification_id: accepted.id.to_string(),
        status: "QUEUED",
        channel: words.0,
        priority: words.1,
        created_at: accepted.created_at,
    };
    let mut response = postern_common::http::json(StatusCode::CREATED, &created);
    if let Ok(location) = format!("/notifications/{}", accepted.id).parse() {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Channel and priority, for the answer.
type Words = (&'static str, &'static str);

/// Returns the first result for this key and body. A request that is invalid now may have been
/// valid when it was first sent, because times pass and templates change; its repetition gets the
/// same response.
async fn first_answer(
    service: &Service,
    principal: &Principal,
    request: &Request,
    key: &IdempotencyKey,
) -> Result<Option<(Accepted, Words)>, Problem> {
    let (now, print) = (service.clock.now(), request.fingerprint());
    let first = group_commit::first_answer(
        &service.store,
        now,
        &principal.creator,
        key.as_str(),
        &print,
    )
    .await?;
    Ok(first.map(|accepted| (accepted, words(request))))
}

fn words(request: &Request) -> Words {
    (request.channel.as_str(), request.priority.as_str())
}

async fn accept(
    service: &Service,
    principal: &Principal,
    request: Request,
    (key, permit): (Option<IdempotencyKey>, BudgetPermit),
) -> Result<(Accepted, Words), Problem> {
    let draft = check(service, principal, request)?;
    service.quota.take(principal).await?;
    let words = words(&draft.request);
    Ok((
        service.door.accept(principal, draft, key, permit).await?,
        words,
    ))
}

fn check(service: &Service, principal: &Principal, request: Request) -> Result<Draft, Problem> {
    principal.may_address(&request.recipient, service.users_may_address_anyone)?;
    principal.may_send(request.priority, service.users_may_send_urgent)?;
    request.check(
        &service.templates.load(),
        Principal::author(&principal.creator),
    )
}

/// The `Idempotency-Key` header, if present.
pub(super) struct Key(Option<IdempotencyKey>);

impl FromRequestParts<Arc<Service>> for Key {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        _service: &Arc<Service>,
    ) -> Result<Self, Problem> {
        idempotency_key(&parts.headers).map(Self)
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let wrong = || {
        Problem::new(Code::InvalidHeader)
            .detail("Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
    };
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .ok()
            .and_then(IdempotencyKey::parse)
            .map(Some)
            .ok_or_else(wrong),
        (Some(_), Some(_)) => Err(wrong()),
    }
}

pub(super) async fn batch(
    State(service): State<Arc<Service>>,
    Authenticated(principal): Authenticated,
    RequestId(request_id): RequestId,
    Key(key): Key,
    body: Json,
) -> Result<Response, Problem> {
    if key.is_some() {
        return Err(
            Problem::new(Code::InvalidHeader).detail("Idempotency-Key is for single notifications")
        );
    }
    let permit = body.permit();
    let requests = read_batch(body, service.clock.now())?;
    let (service, principal, permit) = (&service, &principal, &permit);
    let results: Vec<serde_json::Value> =
        futures_util::stream::iter(requests)
            .map(|request| async move {
                one_of_batch(service, principal, request?, permit.clone()).await
            })
            .buffered(AT_ONCE)
            .map(|result| result.unwrap_or_else(|problem| problem.to_json(&request_id)))
            .collect()
            .await;
    Ok(
        postern_common::http::json(StatusCode::OK, &serde_json::json!({ "results": results }))
            .into_response(),
    )
}

/// Parses each item separately. The parsed JSON tree takes many times the memory of its text and is
/// freed before any item waits for its commit.
fn read_batch(body: Json, now: Timestamp) -> Result<Vec<Result<Request, Problem>>, Problem> {
    let one = |item: &Node| {
        let mistakes = Mistakes::default();
        let request = mistakes.object(item, |object| Request::read(object, now));
        mistakes.finish(request).map_err(Problem::from_mistakes)
    };
    body.read(|object| {
        object.required("notifications", |field| match field.value() {
            Value::Array(items) if (1..=MAX_BATCH).contains(&items.len()) => {
                Some(items.iter().map(one).collect())
            }
            Value::Array(_) => field.reject(
                "invalid_length",
                format!("must hold 1 to {MAX_BATCH} notifications"),
            ),
            Value::Null
            | Value::Bool(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::String(_)
            | Value::Object(_) => field.fail("invalid_type", "must be an array"),
        })
    })
}

async fn one_of_batch(
    service: &Service,
    principal: &Principal,
    request: Request,
    permit: BudgetPermit,
) -> Result<serde_json::Value, Problem> {
    let (accepted, words) = accept(service, principal, request, (None, permit)).await?;
    let created = Members {
        notification_id: accepted.id.to_string(),
        channel: words.0,
        priority: words.1,
        created_at: accepted.created_at,
    };
    let created = CreatedInBatch {
        status: StatusCode::CREATED.as_u16(),
        created,
    };
    serde_json::to_value(created).map_err(|_| Code::Internal.into())
}
