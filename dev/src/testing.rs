//! Test support: two token issuers whose keys the test holds, and services on real sockets.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use axum::Router;
use axum::routing::get;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::token::{Issuer, IssuerKind, IssuerRules, Verifier, VerifierOptions};
use postern_service::http::{Limits, serve};
use postern_store::database::Sqlite;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::database;
use crate::signing_key::SigningKey;

const NOW: i64 = 1_800_000_000;

pub(crate) struct TestIssuers {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) clock: Clock,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) sqlite: Sqlite,
    keys: [SigningKey; 2],
    base: String,
}

pub(crate) async fn serve_router(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    tokio::spawn(serve(
        listener,
        router,
        Limits::default(),
        CancellationToken::new(),
    ));
    url
}

impl TestIssuers {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let clock = Clock::manual(Timestamp::from_unix_seconds(NOW));
        let keys = ["actors", "services"]
            .map(|name| SigningKey::from_pkcs8(&SigningKey::generate().expect("key"), name));
        let keys = keys.map(|key| key.expect("key"));
        let sets = keys
            .each_ref()
            .map(|key| json!({ "keys": [key.jwk()] }).to_string());
        let [actors, services] = sets;
        let router = Router::new()
            .route("/actors", get(|| async { actors }))
            .route("/services", get(|| async { services }));
        let base = serve_router(router).await;
        let issuer = |name: &str, kind| Issuer {
            issuer: format!("{base}/{name}"),
            jwks_url: format!("{base}/{name}").parse().expect("URL"),
            kind,
            client_ids: vec![format!("{name}-client")],
            rules: IssuerRules::default(),
            claims: Vec::new(),
        };
        let issuers = vec![
            issuer("actors", IssuerKind::User),
            issuer("services", IssuerKind::Service),
        ];
        let options = VerifierOptions {
            clock: clock.clone(),
            ..VerifierOptions::default()
        };
        let sqlite = database::open(&folder.path().join("development.db"))
            .await
            .expect("store");
        Self {
            folder,
            verifier: Verifier::new(issuers, options),
            clock,
            sqlite,
            keys,
            base,
        }
    }

    pub(crate) fn user(&self, subject: &str, groups: &[&str]) -> String {
        let claims = json!({
            "iss": format!("{}/actors", self.base), "sub": subject, "username": subject, "token_use": "access",
            "client_id": "actors-client", "iat": NOW, "exp": NOW + 3600, "cognito:groups": groups,
        });
        self.keys[0].sign(&claims)
    }
}

/// Sends a request with a bearer token. Returns the status and the JSON body.
pub(crate) async fn send_request(request: reqwest::RequestBuilder, token: &str) -> (u16, Value) {
    let response = request.bearer_auth(token).send().await.expect("answer");
    (
        response.status().as_u16(),
        response.json().await.expect("JSON"),
    )
}
