//! The HTTP face: Amazon's JSON 1.1 protocol at `POST /`, keys and discovery at their well-known
//! places.

mod discovery;
mod sigv4;

use std::sync::{Arc, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Uri};
use postern_common::http::{AllowedHosts, RequestId};
use prometheus::IntCounterVec;
use serde_json::{Value, json};

pub(crate) use self::sigv4::AccessKey;
use crate::fault::{Fault, Kind};
use crate::operation::{self, Access, Call, Subject};
use crate::server::Server;

/// The content type of the protocol.
const JSON_1_1: &str = "application/x-amz-json-1.1";
/// What every operation's name begins with.
const TARGET: &str = "AWSCognitoIdentityProviderService.";
/// Bytes of a request at most; the largest that Cognito takes are far smaller.
const LARGEST_BODY: usize = 128 << 10;

/// What the handlers share.
pub(crate) struct Wire {
    pub(crate) server: Arc<Server>,
    pub(crate) access_key: AccessKey,
    /// Seconds that keys and discovery may be cached.
    pub(crate) max_age_s: u64,
    /// The pool that `/.well-known/openid-configuration` without a pool speaks of.
    pub(crate) default_pool: String,
    /// Calls by operation and outcome.
    pub(crate) calls: IntCounterVec,
}

/// A request as the signature covers it.
struct Received<'a> {
    uri: &'a Uri,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

/// The router, without the rim. Operations are for `hosts` alone; keys and discovery are public,
/// and the gateway forwards them with the name that its client used.
pub(crate) fn router(wire: Wire, hosts: AllowedHosts) -> Router {
    hosts
        .guard(Router::new().route("/", post(call)))
        .route("/.well-known/jwks.json", get(discovery::every_key))
        .route(
            "/.well-known/openid-configuration",
            get(discovery::default_configuration),
        )
        .route("/{pool}/.well-known/jwks.json", get(discovery::keys))
        .route(
            "/{pool}/.well-known/openid-configuration",
            get(discovery::configuration),
        )
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(Arc::new(wire))
}

async fn call(
    State(wire): State<Arc<Wire>>,
    request_id: RequestId,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let Ok(body) = body else {
        let fault = Fault::new(
            Kind::Serialization,
            "The request body is too large or did not arrive whole",
        );
        return render(&Err(fault), &request_id);
    };
    let received = Received {
        uri: &uri,
        headers: &headers,
        body: &body,
    };
    let call = Call::new(&wire.server, &body);
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok());
    let operation = target
        .and_then(|target| target.strip_prefix(TARGET))
        .unwrap_or("none");
    let outcome = answer(&wire, operation, &received, &call).await;
    let subject = call
        .subject
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    wire.calls
        .with_label_values(&[known(operation), outcome_name(&outcome)])
        .inc();
    audit(operation, &subject, &outcome, &request_id);
    render(&outcome, &request_id)
}

async fn answer(
    wire: &Wire,
    operation: &str,
    received: &Received<'_>,
    call: &Call<'_>,
) -> Result<Value, Fault> {
    let access = operation::access(operation).ok_or_else(|| operation::unknown(operation))?;
    if access == Access::Administrator {
        sigv4::verify(
            received,
            &wire.access_key,
            &wire.server.region,
            wire.server.clock.now(),
        )?;
    }
    let content_type = received
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    if content_type.is_none_or(|sent| !sent.starts_with(JSON_1_1)) {
        return Err(Fault::new(
            Kind::Serialization,
            format!("Content-Type must be {JSON_1_1}"),
        ));
    }
    operation::run(operation, call).await
}

/// The operation as a label: what is not an operation is one label, whatever clients send.
fn known(operation: &str) -> &str {
    if operation::access(operation).is_some() {
        operation
    } else {
        "unknown"
    }
}

fn outcome_name(outcome: &Result<Value, Fault>) -> &'static str {
    outcome
        .as_ref()
        .err()
        .map_or("ok", |fault| fault.kind().name())
}

/// Who, what, outcome, request id. Ids only: nothing that a person typed, and never a secret.
fn audit(
    operation: &str,
    subject: &Subject,
    outcome: &Result<Value, Fault>,
    request_id: &RequestId,
) {
    let by = match operation::access(operation) {
        Some(Access::Administrator) => "administrator",
        Some(Access::Public) | None => "client",
    };
    tracing::info!(
        target: "audit",
        by,
        operation = known(operation),
        outcome = outcome_name(outcome),
        pool_id = subject.pool_id,
        client_id = subject.client_id,
        sub = subject.sub,
        request_id = &*request_id.0,
        "identity pool call"
    );
}

fn render(outcome: &Result<Value, Fault>, request_id: &RequestId) -> Response {
    let (status, body, fault) = match outcome {
        Ok(value) => (StatusCode::OK, value.to_string(), None),
        Err(fault) => {
            let body =
                json!({"__type": fault.kind().name(), "message": fault.message()}).to_string();
            (fault.kind().status(), body, Some(fault.kind()))
        }
    };
    let mut response = (status, [(CONTENT_TYPE, JSON_1_1)], body).into_response();
    let headers = response.headers_mut();
    headers.insert(
        http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-store"),
    );
    if let Ok(id) = HeaderValue::from_str(&request_id.0) {
        headers.insert(HeaderName::from_static("x-amzn-requestid"), id);
    }
    if let Some(kind) = fault {
        let name = HeaderName::from_static("x-amzn-errortype");
        headers.insert(name, HeaderValue::from_static(kind.name()));
    }
    response
}
