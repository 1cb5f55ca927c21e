use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use postern_common::Clock;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use super::{SigningKey, spawn};

/// A social provider with OpenID Connect, honest unless told otherwise.
pub(crate) struct StubProvider {
    pub(crate) url: String,
    clock: Clock,
    key: SigningKey,
    /// What the person that signs in is called; claims that replace the honest ones.
    pub(crate) claims: Mutex<Value>,
    /// Codes given out, with nonce and challenge.
    codes: Mutex<BTreeMap<String, (String, String)>>,
}

impl StubProvider {
    pub(super) async fn start(clock: Clock) -> Arc<Self> {
        let mut made = None;
        spawn(|url| {
            let provider = Arc::new(Self {
                url: url.to_owned(),
                clock,
                key: SigningKey::new("p1"),
                claims: Mutex::new(json!({})),
                codes: Mutex::default(),
            });
            made = Some(Arc::clone(&provider));
            Router::new()
                .route("/.well-known/openid-configuration", get(discovery))
                .route("/jwks", get(jwks))
                .route("/token", post(token))
                .with_state(provider)
        })
        .await;
        made.expect("made by the router")
    }

    /// The person says yes: what the provider sends the browser back with, code and state.
    pub(crate) fn consent(&self, authorization: &Url, claims: Value) -> (String, String) {
        let query: BTreeMap<String, String> = authorization.query_pairs().into_owned().collect();
        assert_eq!(query["code_challenge_method"], "S256");
        assert_eq!(query["response_type"], "code");
        let code = crate::random::token();
        let begun = (query["nonce"].clone(), query["code_challenge"].clone());
        self.codes.lock().unwrap_or_else(PoisonError::into_inner).insert(code.clone(), begun);
        *self.claims.lock().unwrap_or_else(PoisonError::into_inner) = claims;
        (code, query["state"].clone())
    }
}

async fn discovery(State(provider): State<Arc<StubProvider>>) -> Json<Value> {
    let url = &provider.url;
    Json(json!({
        "issuer": url,
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/token"),
        "jwks_uri": format!("{url}/jwks"),
    }))
}

async fn jwks(State(provider): State<Arc<StubProvider>>) -> Json<Value> {
    Json(provider.key.jwks())
}

async fn token(
    State(provider): State<Arc<StubProvider>>,
    Form(form): Form<BTreeMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    let refused = (StatusCode::BAD_REQUEST, Json(json!({ "error": "invalid_grant" })));
    let begun = provider.codes.lock().unwrap_or_else(PoisonError::into_inner).remove(&form["code"]);
    let Some((nonce, challenge)) = begun else { return refused };
    if URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])) != challenge {
        return refused;
    }
    let now = provider.clock.now().unix_seconds();
    let mut claims = json!({
        "iss": provider.url, "aud": "social-client", "sub": "p-1", "iat": now, "exp": now + 300, "nonce": nonce,
        "email": "ada@example.com", "email_verified": true, "given_name": "Ada", "name": "Ada Lovelace",
    });
    let wanted = provider.claims.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (name, value) in wanted.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    // A key of somebody else's, under the name of the provider's.
    let forged = SigningKey::new("p1");
    let key = if claims["forged"] == true { &forged } else { &provider.key };
    let answer = json!({
        "access_token": "provider-access", "token_type": "Bearer", "expires_in": 300,
        "refresh_token": "provider-refresh", "id_token": key.sign(&claims),
    });
    (StatusCode::OK, Json(answer))
}
