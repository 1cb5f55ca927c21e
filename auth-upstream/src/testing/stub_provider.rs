//! A stub of a social provider with OpenID Connect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_lc_rs::hmac;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{StatusCode, Uri};
use parking_lot::Mutex;
use postern_common::Clock;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use super::{SigningKey, spawn};

/// A social provider on a loopback socket.
pub(crate) struct StubProvider {
    pub(crate) url: String,
    clock: Clock,
    key: SigningKey,
    /// Claims that replace the default ones in the next ID token.
    pub(crate) claims: Mutex<Value>,
    /// Nonce and code challenge by authorization code.
    codes: Mutex<BTreeMap<String, (String, String)>>,
    behavior: Mutex<ProviderBehavior>,
    /// The number of requests for the discovery document.
    pub(crate) discoveries: AtomicU32,
}

/// The behavior of the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProviderBehavior {
    #[default]
    Correct,
    /// The token endpoint does not respond.
    Unresponsive,
    /// The token endpoint responds with an HTML page of this status.
    HtmlPage(u16),
    /// The response of the token endpoint is too large.
    OversizedResponse,
    /// The token endpoint redirects.
    Redirect,
    /// The token response has no ID token.
    NoIdToken,
    /// The ID token is not signed.
    Unsigned,
    /// The ID token is signed with the client's secret.
    Hmac,
    /// The discovery document is not served.
    NoDiscovery,
    /// The discovery document names another issuer.
    WrongIssuer,
    /// The token endpoint has moved.
    Moved,
    /// The discovery document promises the issuer in callbacks.
    SendsIssuer,
}

impl StubProvider {
    pub(super) async fn start(clock: Clock) -> Arc<Self> {
        let mut stub = None;
        spawn(|url| {
            let provider = Arc::new(Self {
                url: url.to_owned(),
                clock,
                key: SigningKey::new("p1"),
                claims: Mutex::new(json!({})),
                codes: Mutex::default(),
                behavior: Mutex::default(),
                discoveries: AtomicU32::new(0),
            });
            stub = Some(Arc::clone(&provider));
            Router::new()
                .route("/.well-known/openid-configuration", get(discovery))
                .route("/jwks", get(jwks))
                .route("/token", post(token))
                .route("/moved", post(token))
                .with_state(provider)
        })
        .await;
        stub.expect("created with the router")
    }

    pub(crate) fn set(&self, behavior: ProviderBehavior) {
        *self.behavior.lock() = behavior;
    }

    fn behavior(&self) -> ProviderBehavior {
        *self.behavior.lock()
    }

    /// Returns code and state of the redirect after the user has consented.
    pub(crate) fn consent(&self, authorization: &Url, claims: Value) -> (String, String) {
        let query: BTreeMap<String, String> = authorization.query_pairs().into_owned().collect();
        assert_eq!(query["code_challenge_method"], "S256");
        assert_eq!(query["response_type"], "code");
        let code = crate::crypto::random::token();
        let issued = (query["nonce"].clone(), query["code_challenge"].clone());
        self.codes.lock().insert(code.clone(), issued);
        *self.claims.lock() = claims;
        (code, query["state"].clone())
    }
}

async fn discovery(State(provider): State<Arc<StubProvider>>) -> Json<Value> {
    let url = &provider.url;
    provider.discoveries.fetch_add(1, Ordering::SeqCst);
    let behavior = provider.behavior();
    if behavior == ProviderBehavior::NoDiscovery {
        std::future::pending::<()>().await;
    }
    Json(json!({
        "issuer": if behavior == ProviderBehavior::WrongIssuer { "https://evil.example" } else { url.as_str() },
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/{}", if behavior == ProviderBehavior::Moved { "moved" } else { "token" }),
        "jwks_uri": format!("{url}/jwks"),
        "authorization_response_iss_parameter_supported": behavior == ProviderBehavior::SendsIssuer,
    }))
}

async fn jwks(State(provider): State<Arc<StubProvider>>) -> Json<Value> {
    Json(provider.key.jwks())
}

async fn token(
    State(provider): State<Arc<StubProvider>>,
    uri: Uri,
    Form(form): Form<BTreeMap<String, String>>,
) -> Response {
    let behavior = provider.behavior();
    match behavior {
        ProviderBehavior::Unresponsive => std::future::pending().await,
        ProviderBehavior::HtmlPage(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, "<html>We are sorry</html>").into_response();
        }
        ProviderBehavior::OversizedResponse => return vec![b' '; 300 << 10].into_response(),
        ProviderBehavior::Redirect => return Redirect::temporary("/moved").into_response(),
        ProviderBehavior::Moved if uri.path() == "/token" => {
            return StatusCode::GONE.into_response();
        }
        ProviderBehavior::Correct
        | ProviderBehavior::Moved
        | ProviderBehavior::NoIdToken
        | ProviderBehavior::Unsigned
        | ProviderBehavior::Hmac => {}
        ProviderBehavior::NoDiscovery
        | ProviderBehavior::WrongIssuer
        | ProviderBehavior::SendsIssuer => {}
    }
    let rejection = (
        StatusCode::BAD_REQUEST,
        Json(json!({ "error": "invalid_grant" })),
    )
        .into_response();
    let issued = provider.codes.lock().remove(&form["code"]);
    let Some((nonce, challenge)) = issued else {
        return rejection;
    };
    if URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])) != challenge {
        return rejection;
    }
    let claims = claims(&provider, &nonce);
    let id_token = id_token(&provider, behavior, &claims);
    let response = json!({
        "access_token": "provider-access", "token_type": "Bearer", "expires_in": 300,
        "refresh_token": "provider-refresh", "id_token": id_token,
    });
    Json(response).into_response()
}

/// Returns the claims of the next ID token.
fn claims(provider: &StubProvider, nonce: &str) -> Value {
    let now = provider.clock.now().unix_seconds();
    let mut claims = json!({
        "iss": provider.url, "aud": "social-client", "sub": "p-1", "iat": now, "exp": now + 300, "nonce": nonce,
        "email": "ada@example.com", "email_verified": true, "given_name": "Ada", "name": "Ada Lovelace",
    });
    let replaced = provider.claims.lock().clone();
    for (name, value) in replaced.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

/// Returns the ID token of a token response.
fn id_token(provider: &StubProvider, behavior: ProviderBehavior, claims: &Value) -> Option<String> {
    // Another key with the id of the provider's.
    let forged = SigningKey::new("p1");
    let key = if claims["forged"] == true {
        &forged
    } else {
        &provider.key
    };
    match behavior {
        ProviderBehavior::NoIdToken => None,
        ProviderBehavior::Unsigned => Some(format!(
            "{}.",
            compact(&json!({ "alg": "none", "kid": "p1" }), claims)
        )),
        ProviderBehavior::Hmac => {
            let text = compact(&json!({ "alg": "HS256", "kid": "p1" }), claims);
            let secret = hmac::Key::new(hmac::HMAC_SHA256, b"social-secret");
            let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, text.as_bytes()));
            Some(format!("{text}.{tag}"))
        }
        ProviderBehavior::Correct
        | ProviderBehavior::Moved
        | ProviderBehavior::NoDiscovery
        | ProviderBehavior::WrongIssuer
        | ProviderBehavior::SendsIssuer => Some(key.sign(claims)),
        ProviderBehavior::Unresponsive
        | ProviderBehavior::HtmlPage(_)
        | ProviderBehavior::OversizedResponse
        | ProviderBehavior::Redirect => {
            unreachable!("responded above")
        }
    }
}

fn compact(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}
