//! The HTTP interface: Amazon's JSON 1.1 protocol at `POST /`, and JWK sets and OpenID Connect
//! discovery at the well-known paths.

mod discovery;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap};
use postern_service::http::{AllowedHosts, Raw, RequestId};
use serde_json::{Value, json};

use crate::pool::App;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::operations;

const JSON_1_1: &str = "application/x-amz-json-1.1";
/// Prefix of every operation in `X-Amz-Target`.
const TARGET_PREFIX: &str = "AWSCognitoIdentityProviderService.";

/// Builds the router, without the request layer. Only requests for `hosts` may call operations. JWK
/// sets and discovery are public: the gateway forwards them with its client's `Host`.
pub(super) fn router(app: Arc<App>, hosts: AllowedHosts) -> Router {
    let mut router = hosts.guard(Router::new().route("/", post(handle_call)));
    for prefix in ["", "/{pool}"] {
        let path = |name: &str| format!("{prefix}/.well-known/{name}");
        router = router
            .route(&path("jwks.json"), get(discovery::keys))
            .route(&path("openid-configuration"), get(discovery::configuration));
    }
    router.with_state(app)
}

async fn handle_call(
    State(app): State<Arc<App>>,
    RequestId(id): RequestId,
    headers: HeaderMap,
    Raw(body, _permit): Raw,
) -> Response {
    let called = Box::pin(call(&app, &headers, &body)).await;
    let (status, body, exception) = match called {
        Ok(value) => (StatusCode::OK, value, None),
        Err(error) => {
            let body = json!({"__type": error.exception, "message": error.message});
            (error.status(), body, Some(error.exception))
        }
    };
    let fields = [
        (CONTENT_TYPE.as_str(), JSON_1_1),
        (CACHE_CONTROL.as_str(), "no-store"),
        ("x-amzn-requestid", &*id),
    ];
    let error_type = exception.map(|name| [("x-amzn-errortype", name)]);
    (status, fields, error_type, body.to_string()).into_response()
}

async fn call(app: &App, headers: &HeaderMap, body: &[u8]) -> ApiResult<Value> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let target = text("x-amz-target").unwrap_or_default();
    let operation = target.strip_prefix(TARGET_PREFIX).unwrap_or("none");
    if text(CONTENT_TYPE.as_str()).is_none_or(|sent| !sent.starts_with(JSON_1_1)) {
        return Err(ApiError::unreadable(format!(
            "Content-Type must be {JSON_1_1}"
        )));
    }
    let access_key_id = &app.provisioned.access_key_id;
    let check = || check_signature(text(AUTHORIZATION.as_str()), access_key_id);
    operations::run(operation, &app.context, check, body).await
}

/// Checks that a request has an AWS Signature Version 4 by the administrator's access key ("Create a
/// signed AWS API request", AWS IAM User Guide). The signature itself is not verified: the pool
/// accepts loopback connections only.
fn check_signature(header: Option<&str>, access_key_id: &str) -> ApiResult {
    let Some(header) = header else {
        let exception = "MissingAuthenticationTokenException";
        return Err(ApiError::new(exception, "Missing Authentication Token"));
    };
    if header.starts_with(&format!("AWS4-HMAC-SHA256 Credential={access_key_id}/")) {
        return Ok(());
    }
    let text = "The security token included in the request is invalid.";
    Err(ApiError::new("UnrecognizedClientException", text))
}
