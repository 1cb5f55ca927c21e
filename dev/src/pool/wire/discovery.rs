//! JWK sets and OpenID Connect discovery documents, with cache headers.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use postern_core::Problem;
use postern_core::problem::Code;
use postern_service::http as rim;
use serde_json::{Value, json};

use super::WireState;
use crate::pool::crypto::random;

pub(super) async fn pool_keys(
    State(state): State<Arc<WireState>>,
    Path(pool): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    state
        .context
        .pool(&pool)
        .map_err(|_| Problem::new(Code::NotFound))?;
    Ok(cacheable_response(
        &state,
        &headers,
        &state.context.keys.to_jwks(Some(&pool)),
    ))
}

/// Returns the keys of every pool in one set, for clients that know only the gateway.
pub(super) async fn all_pool_keys(
    State(state): State<Arc<WireState>>,
    headers: HeaderMap,
) -> Response {
    cacheable_response(&state, &headers, &state.context.keys.to_jwks(None))
}

pub(super) async fn pool_configuration(
    State(state): State<Arc<WireState>>,
    Path(pool): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    state
        .context
        .pool(&pool)
        .map_err(|_| Problem::new(Code::NotFound))?;
    Ok(cacheable_response(
        &state,
        &headers,
        &provider_metadata(&state, &pool),
    ))
}

pub(super) async fn default_configuration(
    State(state): State<Arc<WireState>>,
    headers: HeaderMap,
) -> Response {
    cacheable_response(
        &state,
        &headers,
        &provider_metadata(&state, &state.default_pool),
    )
}

/// Returns the metadata of OpenID Connect Discovery 1.0 section 3. There is no authorization
/// endpoint; tokens are issued by the API.
fn provider_metadata(state: &WireState, pool: &str) -> Value {
    let issuer = state.context.issuer(pool);
    json!({
        "issuer": issuer,
        "jwks_uri": format!("{issuer}/.well-known/jwks.json"),
        "id_token_signing_alg_values_supported": ["RS256"],
        "subject_types_supported": ["public"],
        "response_types_supported": ["token"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        "claims_supported": ["aud", "auth_time", "email", "email_verified", "exp", "iat", "iss", "jti", "sub"],
    })
}

fn cacheable_response(state: &WireState, headers: &HeaderMap, body: &Value) -> Response {
    let etag = format!("\"{}\"", random::digest(&[&body.to_string()]));
    let known = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .any(|value| value.as_bytes() == etag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        rim::json(StatusCode::OK, body)
    };
    let cache = format!("public, max-age={}", state.max_age_s);
    for (name, value) in [(CACHE_CONTROL, cache), (ETAG, etag)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
