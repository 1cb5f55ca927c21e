use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::hmac;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{StatusCode, Uri};
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
    mood: Mutex<Mood>,
    /// How often the description was asked for.
    pub(crate) described: AtomicU32,
}

/// How the provider means it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Honest,
    /// The token endpoint never answers.
    Silent,
    /// It answers with a page of this status.
    Page(u16),
    /// It answers more than anybody asked for.
    Huge,
    /// It sends us somewhere else.
    Redirect,
    /// Its answer has no ID token.
    NoIdToken,
    /// The ID token is not signed.
    Unsigned,
    /// The ID token is signed with the client's secret.
    Hmac,
    /// The description never comes.
    Hidden,
    /// The description is another issuer's.
    Impostor,
    /// The token endpoint has moved.
    Moved,
    /// It says that it always names itself.
    Named,
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
                mood: Mutex::default(),
                described: AtomicU32::new(0),
            });
            made = Some(Arc::clone(&provider));
            Router::new()
                .route("/.well-known/openid-configuration", get(discovery))
                .route("/jwks", get(jwks))
                .route("/token", post(token))
                .route("/moved", post(token))
                .with_state(provider)
        })
        .await;
        made.expect("made by the router")
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The person says yes: what the provider sends the browser back with, code and state.
    pub(crate) fn consent(&self, authorization: &Url, claims: Value) -> (String, String) {
        let query: BTreeMap<String, String> = authorization.query_pairs().into_owned().collect();
        assert_eq!(query["code_challenge_method"], "S256");
        assert_eq!(query["response_type"], "code");
        let code = crate::random::token();
        let begun = (query["nonce"].clone(), query["code_challenge"].clone());
        self.codes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(code.clone(), begun);
        *self.claims.lock().unwrap_or_else(PoisonError::into_inner) = claims;
        (code, query["state"].clone())
    }
}

async fn discovery(State(provider): State<Arc<StubProvider>>) -> Json<Value> {
    let url = &provider.url;
    provider.described.fetch_add(1, Ordering::SeqCst);
    let mood = provider.mood();
    if mood == Mood::Hidden {
        std::future::pending::<()>().await;
    }
    Json(json!({
        "issuer": if mood == Mood::Impostor { "https://evil.example" } else { url.as_str() },
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/{}", if mood == Mood::Moved { "moved" } else { "token" }),
        "jwks_uri": format!("{url}/jwks"),
        "authorization_response_iss_parameter_supported": mood == Mood::Named,
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
    let mood = provider.mood();
    match mood {
        Mood::Silent => std::future::pending().await,
        Mood::Page(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, "<html>We are sorry</html>").into_response();
        }
        Mood::Huge => return vec![b' '; 300 << 10].into_response(),
        Mood::Redirect => return Redirect::temporary("/moved").into_response(),
        Mood::Moved if uri.path() == "/token" => return StatusCode::GONE.into_response(),
        Mood::Honest | Mood::Moved | Mood::NoIdToken | Mood::Unsigned | Mood::Hmac => {}
        Mood::Hidden | Mood::Impostor | Mood::Named => {}
    }
    let refused = (
        StatusCode::BAD_REQUEST,
        Json(json!({ "error": "invalid_grant" })),
    )
        .into_response();
    let begun = provider
        .codes
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&form["code"]);
    let Some((nonce, challenge)) = begun else {
        return refused;
    };
    if URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])) != challenge {
        return refused;
    }
    let now = provider.clock.now().unix_seconds();
    let mut claims = json!({
        "iss": provider.url, "aud": "social-client", "sub": "p-1", "iat": now, "exp": now + 300, "nonce": nonce,
        "email": "ada@example.com", "email_verified": true, "given_name": "Ada", "name": "Ada Lovelace",
    });
    let wanted = provider
        .claims
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for (name, value) in wanted.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    // A key of somebody else's, under the name of the provider's.
    let forged = SigningKey::new("p1");
    let key = if claims["forged"] == true {
        &forged
    } else {
        &provider.key
    };
    let id_token = match mood {
        Mood::NoIdToken => None,
        Mood::Unsigned => Some(format!(
            "{}.",
            compact(&json!({ "alg": "none", "kid": "p1" }), &claims)
        )),
        Mood::Hmac => {
            let text = compact(&json!({ "alg": "HS256", "kid": "p1" }), &claims);
            let secret = hmac::Key::new(hmac::HMAC_SHA256, b"social-secret");
            let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, text.as_bytes()));
            Some(format!("{text}.{tag}"))
        }
        Mood::Honest | Mood::Moved | Mood::Hidden | Mood::Impostor | Mood::Named => {
            Some(key.sign(&claims))
        }
        Mood::Silent | Mood::Page(_) | Mood::Huge | Mood::Redirect => {
            unreachable!("answered above")
        }
    };
    let answer = json!({
        "access_token": "provider-access", "token_type": "Bearer", "expires_in": 300,
        "refresh_token": "provider-refresh", "id_token": id_token,
    });
    Json(answer).into_response()
}

fn compact(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}
