//! JWK sets and OpenID Connect discovery, with cache headers.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use postern_common::Problem;
use postern_common::http as rim;
use postern_common::problem::Code;
use serde_json::{Value, json};

use super::Wire;
use crate::random;

pub(super) async fn keys(
    State(wire): State<Arc<Wire>>,
    Path(pool): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    wire.server
        .directory
        .pool(&pool)
        .map_err(|_| Problem::new(Code::NotFound))?;
    wait(&wire).await?;
    Ok(cached(&wire, &headers, &wire.server.keys.to_jwks([&pool])))
}

/// The keys of every pool in one set, for clients that know only the gateway.
pub(super) async fn every_key(
    State(wire): State<Arc<Wire>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    wait(&wire).await?;
    Ok(cached(
        &wire,
        &headers,
        &wire.server.keys.to_jwks(&wire.server.directory.pool_ids()),
    ))
}

/// Keys that are not made yet are waited for: an empty set would be cached.
async fn wait(wire: &Wire) -> Result<(), Problem> {
    wire.server
        .keys
        .wait()
        .await
        .map_err(|_| Problem::new(Code::Internal))
}

pub(super) async fn configuration(
    State(wire): State<Arc<Wire>>,
    Path(pool): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    wire.server
        .directory
        .pool(&pool)
        .map_err(|_| Problem::new(Code::NotFound))?;
    Ok(cached(&wire, &headers, &describe(&wire, &pool)))
}

pub(super) async fn default_configuration(
    State(wire): State<Arc<Wire>>,
    headers: HeaderMap,
) -> Response {
    cached(&wire, &headers, &describe(&wire, &wire.default_pool))
}

/// OpenID Connect Discovery 1.0 section 3. There is no authorization endpoint: tokens come from the
/// API.
fn describe(wire: &Wire, pool: &str) -> Value {
    let issuer = wire.server.issuer(pool);
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

fn cached(wire: &Wire, headers: &HeaderMap, body: &Value) -> Response {
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
    let cache = format!("public, max-age={}", wire.max_age_s);
    for (name, value) in [(CACHE_CONTROL, cache), (ETAG, etag)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
