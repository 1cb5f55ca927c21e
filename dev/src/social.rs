//! A social provider for development: OAuth 2.0 (RFC 6749, PKCE S256 by RFC 7636, `iss` by RFC
//! 9207) and OpenID Connect Core 1.0, with a page to choose the person who signs in.
//!
//! It is strict, so that a client that works with it works with real providers: exact redirect
//! URIs, single-use codes that expire after a minute, RS256 ID tokens with the nonce. Only the ID token
//! can be used: its access and refresh tokens are random text. There are no passwords, so it accepts loopback connections only.

mod authorization_endpoint;
mod token_endpoint;

mod codes;
mod persons;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{get, post};
use http::StatusCode;
use parking_lot::Mutex;
use postern_core::{Clock, Secret};
use postern_service::http::{AllowedHosts, json};
use serde_json::json;

use codes::IssuedCode;

use crate::signing_key::SigningKey;

#[derive(Clone, Debug)]
pub(crate) struct RegisteredClient {
    pub(crate) id: String,
    pub(crate) secret: Secret,
    /// Registered redirect URIs, compared byte for byte (RFC 9700 section 2.1).
    pub(crate) redirect_uris: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct SocialProvider {
    issuer: String,
    client: RegisteredClient,
    key: SigningKey,
    /// The codes that have not been redeemed.
    codes: Mutex<HashMap<String, IssuedCode>>,
    clock: Clock,
}

// === impl SocialProvider ===

impl SocialProvider {
    /// Creates a provider whose base URL, without a trailing slash, is `issuer`.
    pub(crate) fn new(
        issuer: String,
        client: RegisteredClient,
        key: SigningKey,
        clock: Clock,
    ) -> Self {
        Self {
            issuer,
            client,
            key,
            codes: Mutex::default(),
            clock,
        }
    }
}

pub(crate) fn router(provider: Arc<SocialProvider>) -> Router {
    let router = Router::new()
        .route("/.well-known/openid-configuration", get(discovery))
        .route("/jwks", get(jwks))
        .route(
            "/authorize",
            get(authorization_endpoint::show_form).post(authorization_endpoint::submit_form),
        )
        .route("/token", post(token_endpoint::exchange))
        .merge(crate::web::page::assets())
        .with_state(provider);
    let router = AllowedHosts::loopback().guard(router);
    router.layer(map_response(crate::web::page::protect))
}

async fn discovery(State(provider): State<Arc<SocialProvider>>) -> Response {
    let issuer = &provider.issuer;
    let document = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/jwks"),
        "scopes_supported": ["openid", "email", "profile", "offline_access"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        "code_challenge_methods_supported": ["S256"],
        "claims_supported": ["sub", "iss", "aud", "exp", "iat", "nonce", "email", "email_verified", "name",
            "given_name", "family_name"],
        "authorization_response_iss_parameter_supported": true,
    });
    json(StatusCode::OK, &document)
}

async fn jwks(State(provider): State<Arc<SocialProvider>>) -> Response {
    json(StatusCode::OK, &json!({ "keys": [provider.key.jwk()] }))
}

#[cfg(test)]
mod tests;
