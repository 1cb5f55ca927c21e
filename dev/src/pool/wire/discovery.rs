//! JWK sets and OpenID Connect discovery documents, with cache headers.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH};
use postern_core::Problem;
use postern_core::problem::Code;
use serde_json::{Value, json};

use crate::pool::App;
use crate::pool::crypto::{digest, signing_key};
use crate::pool::error::ApiError;

/// Returns the keys of a pool, or of every pool in one set, for clients that know only the gateway.
pub(super) async fn keys(
    State(app): State<Arc<App>>,
    pool: Option<Path<String>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let pools = match pool {
        Some(Path(id)) => vec![app.context.pool(&id).map_err(|_| Code::NotFound)?],
        None => app.context.store.pools.all(),
    };
    let keys: Result<Vec<Value>, _> = pools
        .iter()
        .map(|pool| Ok(signing_key(pool)?.jwk()))
        .collect();
    let keys = keys.map_err(|_: ApiError| Code::Internal)?;
    Ok(cacheable_response(&headers, &json!({ "keys": keys })))
}

/// Returns the metadata of a pool, or of the one for users (OpenID Connect Discovery 1.0 section 3).
/// There is no authorization endpoint; tokens are issued by the API.
pub(super) async fn configuration(
    State(app): State<Arc<App>>,
    pool: Option<Path<String>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let pool = pool.map_or_else(|| app.provisioned.actor.pool_id.clone(), |Path(id)| id);
    app.context.pool(&pool).map_err(|_| Code::NotFound)?;
    let issuer = app.context.issuer(&pool);
    let metadata = json!({
        "issuer": issuer,
        "jwks_uri": format!("{issuer}/.well-known/jwks.json"),
        "id_token_signing_alg_values_supported": ["RS256"],
        "subject_types_supported": ["public"],
        "response_types_supported": ["token"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        "claims_supported": ["aud", "auth_time", "email", "email_verified", "exp", "iat", "iss", "jti", "sub"],
    });
    Ok(cacheable_response(&headers, &metadata))
}

fn cacheable_response(headers: &HeaderMap, body: &Value) -> Response {
    let body = body.to_string();
    let etag = format!("\"{}\"", digest(&body));
    let mut known = headers.get_all(IF_NONE_MATCH).iter();
    let (status, body) = match known.any(|value| value.as_bytes() == etag.as_bytes()) {
        true => (StatusCode::NOT_MODIFIED, String::new()),
        false => (StatusCode::OK, body),
    };
    let fields = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "public, max-age=300"),
        (ETAG, etag.as_str()),
    ];
    (status, fields, body).into_response()
}
