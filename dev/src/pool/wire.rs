//! The HTTP interface: Amazon's JSON 1.1 protocol at `POST /`, and JWK sets and OpenID Connect
//! discovery at the well-known paths.
//!
//! Authenticates and decodes requests, calls `operations`, and encodes results. Depends on
//! `operations` and `context`.

mod discovery;
mod sigv4;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use postern_service::http::{AllowedHosts, RequestId};
use serde_json::{Value, json};

use crate::pool::context::PoolContext;
use crate::pool::error::{ApiError, ApiResult, ExceptionKind};
use crate::pool::operations::{self, OperationAccess};

/// Content type of the protocol.
const JSON_1_1: &str = "application/x-amz-json-1.1";
/// Prefix of every operation in `X-Amz-Target`.
const TARGET_PREFIX: &str = "AWSCognitoIdentityProviderService.";
/// Maximum size of a request body in bytes; the largest that Cognito accepts are far smaller.
const MAX_BODY_BYTES: usize = 128 << 10;

/// State shared by the handlers.
pub(crate) struct WireState {
    pub(crate) context: Arc<PoolContext>,
    /// Id of the administrator's access key.
    pub(crate) access_key_id: String,
    /// Pool described by `/.well-known/openid-configuration` without a pool id.
    pub(crate) default_pool: String,
}

/// Builds the router, without the request layer. Only requests for `hosts` may call operations. JWK
/// sets and discovery are public: the gateway forwards them with its client's `Host`.
pub(crate) fn router(state: WireState, hosts: AllowedHosts) -> Router {
    hosts
        .guard(Router::new().route("/", post(handle_call)))
        .route("/.well-known/jwks.json", get(discovery::keys))
        .route("/{pool}/.well-known/jwks.json", get(discovery::keys))
        .route(
            "/.well-known/openid-configuration",
            get(discovery::configuration),
        )
        .route(
            "/{pool}/.well-known/openid-configuration",
            get(discovery::configuration),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::new(state))
}

async fn handle_call(
    State(state): State<Arc<WireState>>,
    request_id: RequestId,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let Ok(body) = body else {
        let error = ApiError::new(
            ExceptionKind::Serialization,
            "The request body is too large or incomplete",
        );
        return render(&Err(error), &request_id);
    };
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok());
    let operation = target
        .and_then(|target| target.strip_prefix(TARGET_PREFIX))
        .unwrap_or("none");
    let outcome = dispatch(&state, operation, &headers, &body).await;
    render(&outcome, &request_id)
}

async fn dispatch(
    state: &WireState,
    operation: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> ApiResult<Value> {
    let access =
        operations::access(operation).ok_or_else(|| operations::unknown_operation(operation))?;
    if access == OperationAccess::Administrator {
        sigv4::check(headers, &state.access_key_id)?;
    }
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    if content_type.is_none_or(|sent| !sent.starts_with(JSON_1_1)) {
        return Err(ApiError::new(
            ExceptionKind::Serialization,
            format!("Content-Type must be {JSON_1_1}"),
        ));
    }
    operations::run(operation, &state.context, body).await
}

fn render(outcome: &ApiResult<Value>, request_id: &RequestId) -> Response {
    let (status, body, error) = match outcome {
        Ok(value) => (StatusCode::OK, value.to_string(), None),
        Err(error) => {
            let body =
                json!({"__type": error.kind().name(), "message": error.message()}).to_string();
            (error.kind().status(), body, Some(error.kind()))
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
    if let Some(name) = error.and_then(|kind| HeaderValue::try_from(kind.name()).ok()) {
        headers.insert(HeaderName::from_static("x-amzn-errortype"), name);
    }
    response
}
