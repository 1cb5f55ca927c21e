//! An actor service with the service pool that a client of it signs in to.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::config::{self, Env};
use postern_core::identity::IdentityConfig;
use postern_service::calls::{ServiceClient, ServiceTokens};
use serde_json::{Value, json};

use super::{START, serve};
use crate::delivery::actors::{ActorClient, UserAddressPolicy};
use crate::metrics::NotifyMetrics;
use crate::notification::PerChannel;

/// A running actor service. Every actor has an unverified address of its own, except `thief`, whose
/// profile has Ada's, `mute`, who has none, and `nobody`, who does not exist.
pub(crate) struct TestActorService {
    url: String,
    asked: Asked,
}

/// Actors with the tokens of the calls.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

impl TestActorService {
    pub(crate) async fn start() -> Self {
        let asked = Asked::default();
        let router = Router::new()
            .route("/", post(sign_in))
            .route("/actors/{id}", get(profile))
            .with_state(Arc::clone(&asked));
        let url = serve(router).await;
        Self { url, asked }
    }

    /// Creates a client with a service account.
    pub(crate) fn client(&self, clock: &Clock) -> ActorClient {
        let env = Env::from([
            (
                "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER",
                self.url.as_str(),
            ),
            ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
            ("IDP_ACTOR_CLIENT_ID", "actors"),
            ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
            ("IDP_SERVICE_CLIENT_ID", "services"),
            ("IDP_SERVICE_CLIENT_SECRET", "secret"),
            ("IDP_SERVICE_ACCOUNT_USERNAME", "notify"),
            ("IDP_SERVICE_ACCOUNT_PASSWORD", "password"),
        ]);
        actors(&self.url, &env, clock)
    }

    /// Returns the calls since the last time.
    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.asked.lock())
    }
}

/// The token that the service account gets.
pub(crate) fn service_account_token() -> String {
    let (issued, expires) = (START.unix_seconds(), START.unix_seconds() + 86_400);
    let claims =
        json!({"iat": issued, "exp": expires, "token_use": "id", "custom:service_id": "notify"})
            .to_string();
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}

async fn sign_in() -> ([(&'static str, &'static str); 1], String) {
    let token = service_account_token();
    let result =
        json!({"IdToken": token, "AccessToken": token, "ExpiresIn": 86_400, "TokenType": "Bearer"});
    let answer = json!({"ChallengeParameters": {}, "AuthenticationResult": result});
    (
        [("content-type", "application/x-amz-json-1.1")],
        answer.to_string(),
    )
}

async fn profile(
    State(asked): State<Asked>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    let token = headers["authorization"].to_str().expect("text");
    let token = token.strip_prefix("Bearer ").expect("a bearer token");
    asked.lock().push((id.clone(), token.to_owned()));
    let email = match id.as_str() {
        "nobody" => return Err(StatusCode::NOT_FOUND),
        "mute" => Value::Null,
        "thief" => json!("ada@example.com"),
        name => json!(format!("{name}@example.com")),
    };
    Ok(Json(
        json!({"actorId": id, "email": email, "emailVerified": false}),
    ))
}

/// Returns a client of the actor service at `base` with tokens of the pools in `env`.
fn actors(base: &str, env: &Env, clock: &Clock) -> ActorClient {
    let identity = config::parse("test", "", |root| IdentityConfig::read(root, env));
    let tokens = ServiceTokens::new(&identity.expect("complete"), clock.clone());
    let calls = ServiceClient::new(tokens, postern_service::calls::http_client());
    let own = UserAddressPolicy {
        anyone: false,
        unverified: PerChannel::default(),
    };
    let (base, metrics) = (base.parse().expect("URL"), NotifyMetrics::new());
    ActorClient::new(base, calls, own, &metrics.dependencies)
}

pub(crate) fn unreachable_actors(clock: &Clock) -> ActorClient {
    let env = Env::from([
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "actors"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "services"),
    ]);
    actors("http://127.0.0.1:9", &env, clock)
}
