//! A social provider for development: OAuth 2.0 (RFC 6749, PKCE S256 by RFC 7636, `iss` by RFC
//! 9207) and OpenID Connect Core 1.0, with a page that asks which person to be.
//!
//! It is strict, so that the client that signs in here signs in at a real provider: exact redirect
//! URIs, codes that work once and for a minute, rotating refresh tokens, RS256 ID tokens with the
//! nonce. There is no password: whoever reaches the page may be anyone, which is why it serves this
//! machine only.

mod authorize;
mod grants;
mod keys;
mod people;
mod token;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use postern_common::database::Sqlite;
use postern_common::http::{AllowedHosts, json};
use postern_common::{Clock, Secret};
use serde_json::json;

use grants::Grants;
pub(crate) use keys::SigningKey;

/// The one client that may sign people in.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// `client_id`.
    pub(crate) id: String,
    /// `client_secret`.
    pub(crate) secret: Secret,
    /// The redirect URIs that are registered; compared byte for byte (RFC 9700 section 2.1).
    pub(crate) redirect_uris: Vec<String>,
}

/// The provider.
#[derive(Debug)]
pub(crate) struct Provider {
    issuer: String,
    client: Client,
    key: SigningKey,
    grants: Grants,
    clock: Clock,
}

// === impl Provider ===

impl Provider {
    /// A provider whose own base URL, without a slash at the end, is `issuer`.
    pub(crate) fn new(
        issuer: String,
        client: Client,
        key: SigningKey,
        store: Sqlite,
        clock: Clock,
    ) -> Self {
        Self {
            issuer,
            client,
            key,
            grants: Grants::new(store, clock.clone()),
            clock,
        }
    }
}

/// Every endpoint of the provider.
pub(crate) fn router(provider: Arc<Provider>) -> Router {
    let router = Router::new()
        .route("/.well-known/openid-configuration", get(discovery))
        .route("/jwks", get(jwks))
        .route("/authorize", get(authorize::ask).post(authorize::decide))
        .route("/token", axum::routing::post(token::exchange))
        .route("/userinfo", get(token::userinfo).post(token::userinfo))
        .with_state(provider);
    AllowedHosts::loopback().guard(router)
}

async fn discovery(State(provider): State<Arc<Provider>>) -> Response {
    let issuer = &provider.issuer;
    let document = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "userinfo_endpoint": format!("{issuer}/userinfo"),
        "jwks_uri": format!("{issuer}/jwks"),
        "scopes_supported": ["openid", "email", "profile", "offline_access"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        "code_challenge_methods_supported": ["S256"],
        "claims_supported": ["sub", "iss", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", "email",
            "email_verified", "name", "given_name", "family_name"],
        "authorization_response_iss_parameter_supported": true,
        "prompt_values_supported": ["login", "consent", "select_account"],
    });
    json(StatusCode::OK, &document)
}

async fn jwks(State(provider): State<Arc<Provider>>) -> Response {
    json(StatusCode::OK, &json!({ "keys": [provider.key.jwk()] }))
}

#[cfg(test)]
mod tests;
