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

/// Returns the keys of a pool, or of every pool in one set, for clients that know only the gateway.
pub(super) async fn keys(
    State(state): State<Arc<WireState>>,
    pool: Option<Path<String>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let pool = known_pool(&state, pool)?;
    let keys = state.context.keys.to_jwks(pool.as_deref());
    Ok(cacheable_response(&headers, &keys))
}

/// Returns the metadata of a pool, or of the one for users.
pub(super) async fn configuration(
    State(state): State<Arc<WireState>>,
    pool: Option<Path<String>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let pool = known_pool(&state, pool)?;
    let pool = pool.as_deref().unwrap_or(&state.default_pool);
    Ok(cacheable_response(
        &headers,
        &provider_metadata(&state, pool),
    ))
}

fn known_pool(state: &WireState, pool: Option<Path<String>>) -> Result<Option<String>, Problem> {
    let known = pool.map(|Path(id)| state.context.pool(&id).map(|pool| pool.id));
    known.transpose().map_err(|_| Code::NotFound.into())
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

fn cacheable_response(headers: &HeaderMap, body: &Value) -> Response {
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
    let cache = HeaderValue::from_static("public, max-age=300");
    response.headers_mut().insert(CACHE_CONTROL, cache);
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}
