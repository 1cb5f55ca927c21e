//! A configurable stub of a service pool, with Cognito's protocol (JSON 1.1).

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};

use postern_core::Clock;

/// The pool's response to sign-ins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mood {
    /// Tokens valid for one hour, with the claim in the ID token.
    Good,
    /// Tokens valid for one hour, with the claim in the access token.
    ClaimInAccessToken,
    /// Tokens without the claim.
    NoClaim,
    /// Expired tokens.
    Over,
    /// A challenge.
    Challenge,
    /// An error with this status and name.
    Error(u16, &'static str),
    /// No answer.
    Hang,
}

#[derive(Clone)]
pub(super) struct Stub {
    pub(super) url: String,
    clock: Clock,
    state: Arc<Mutex<(Mood, Vec<Value>)>>,
}

impl Stub {
    pub(super) async fn start(clock: &Clock, mood: Mood) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let stub = Self {
            url,
            clock: clock.clone(),
            state: Arc::new(Mutex::new((mood, Vec::new()))),
        };
        let router = Router::new()
            .route("/", post(answer))
            .with_state(stub.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        stub
    }

    pub(super) fn set(&self, mood: Mood) {
        self.state.lock().0 = mood;
    }

    /// Returns the received sign-ins in order.
    pub(super) fn calls(&self) -> Vec<Value> {
        self.state.lock().1.clone()
    }

    fn tokens(&self, number: usize, in_id: bool, in_access: bool, seconds: i64) -> Value {
        let now = self.clock.now().unix_seconds();
        let token = |token_use: &str, claim: bool| {
            let exp = now + seconds;
            let mut claims = json!({"iat": now, "exp": exp, "token_use": token_use, "n": number});
            if claim {
                claims["custom:service_id"] = json!("auth");
            }
            format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
        };
        json!({"ChallengeParameters": {}, "AuthenticationResult": {
            "IdToken": token("id", in_id), "AccessToken": token("access", in_access),
            "ExpiresIn": seconds, "TokenType": "Bearer"}})
    }
}

async fn answer(State(stub): State<Stub>, headers: HeaderMap, body: String) -> Response {
    let target = "AWSCognitoIdentityProviderService.InitiateAuth";
    assert_eq!(headers["x-amz-target"], target);
    let is_signed = headers.contains_key(header::AUTHORIZATION);
    assert!(!is_signed);
    let (mood, number) = {
        let mut state = stub.state.lock();
        state.1.push(serde_json::from_str(&body).expect("JSON"));
        (state.0, state.1.len())
    };
    let (status, body) = match mood {
        Mood::Good => (200, stub.tokens(number, true, false, 3600)),
        Mood::ClaimInAccessToken => (200, stub.tokens(number, false, true, 3600)),
        Mood::NoClaim => (200, stub.tokens(number, false, false, 3600)),
        Mood::Over => (200, stub.tokens(number, true, false, 0)),
        Mood::Challenge => (200, json!({"ChallengeName": "NEW_PASSWORD_REQUIRED"})),
        Mood::Error(status, name) => (status, json!({"__type": name, "message": "no"})),
        Mood::Hang => return std::future::pending().await,
    };
    let status = StatusCode::from_u16(status).expect("a status");
    let content_type = [(header::CONTENT_TYPE, "application/x-amz-json-1.1")];
    (status, content_type, body.to_string()).into_response()
}
