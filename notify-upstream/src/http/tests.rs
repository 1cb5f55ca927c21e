//! Tests of the API over real sockets, with tokens of a test issuer, over both stores.

mod actors;
mod admin;
mod bodies;
mod injection;
mod list;
mod repeats;
mod reports;
mod unfinished;

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use postern_core::Secret;
use postern_core::token::{Issuer, IssuerKind, IssuerRules, VerifierOptions};
use postern_service::http::{BodyBudgets, Limits};
use postern_store::cache::Cache;
use postern_store::database::testing::TestDatabase;
use serde_json::{Value, json};

use super::*;
use crate::intake::group_commit::GroupCommitter;
use crate::receipts::webhook::{MailgunWebhook, StandardWebhook, Webhooks};
use crate::store::Store;
use crate::testing::actor_service::{TestActorService, service_account_token, unreachable_actors};
use crate::testing::script::ProviderScript;
use crate::testing::{START, TestReplica, mail_tokens, ok, stores};

/// Notifications of a user per minute.
const USER_QUOTA: u64 = 100;

/// A running service.
struct TestServer {
    metrics: NotifyMetrics,
    url: String,
    /// The URL of the admin routes.
    admin_url: String,
    client: reqwest::Client,
    issuer: String,
    key: EncodingKey,
    dispatcher: crate::dispatch::Dispatcher,
    result_writer: crate::dispatch::ResultWriter,
    runner: Arc<crate::dispatch::AttemptRunner>,
    templates: Arc<ArcSwap<Templates>>,
    clock: Clock,
    shutdown: CancellationToken,
    script: ProviderScript,
}

async fn listen(router: Router, limits: Limits, shutdown: &CancellationToken) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    tokio::spawn(postern_service::http::serve(
        listener,
        router,
        limits,
        shutdown.clone(),
    ));
    url
}

async fn served(store: &Store) -> TestServer {
    let (served, committer) = served_within(store, Limits::default()).await;
    tokio::spawn(committer.run());
    served
}

/// Starts a service over each store.
async fn servers() -> Vec<(TestServer, TestDatabase)> {
    let mut servers = Vec::new();
    for (store, database) in stores().await {
        servers.push((served(&store).await, database));
    }
    servers
}

/// Returns the issuer of services and two issuers of users, of which `actors` is the actor pool.
fn trusted_issuers(issuer: &str) -> Vec<Issuer> {
    let issuer = |name: &str, kind, client: &str| Issuer {
        issuer: format!("{issuer}/{name}"),
        jwks_url: format!("{issuer}/{name}/keys").parse().expect("URL"),
        kind,
        client_ids: vec![client.to_owned()],
        rules: IssuerRules::default(),
        claims: Vec::new(),
    };
    vec![
        issuer("services", IssuerKind::Service, "services"),
        issuer("actors", IssuerKind::User, "actors"),
        issuer("partners", IssuerKind::User, "actors"),
    ]
}

/// Starts a test issuer, and returns its URL and the key of its tokens.
async fn issuer(shutdown: &CancellationToken) -> (String, EncodingKey) {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let public = pair.public_key().as_ref().to_vec();
    let private = pair.to_pkcs8v1().expect("DER");
    let key = EncodingKey::from_ec_der(private.as_ref());
    let [x, y] = [1..33, 33..65].map(|half| URL_SAFE_NO_PAD.encode(&public[half]));
    let keys = json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k", "x": x, "y": y}]});
    let answer = get(move || async move { axum::Json(keys.clone()) });
    let router = Router::new().route("/{issuer}/keys", answer);
    let issuer = listen(router, Limits::default(), shutdown).await;
    (issuer, key)
}

/// Starts a service that commits submissions only when the test runs the returned committer.
async fn served_within(store: &Store, limits: Limits) -> (TestServer, GroupCommitter) {
    let actors = unreachable_actors(&Clock::manual(START));
    served_beside(store, limits, actors).await
}

/// As [`served_within`], beside an actor service.
async fn served_beside(
    store: &Store,
    limits: Limits,
    actors: ActorClient,
) -> (TestServer, GroupCommitter) {
    let shutdown = CancellationToken::new();
    let (issuer, key) = issuer(&shutdown).await;
    let clock = Clock::manual(START);
    let options = VerifierOptions {
        clock: clock.clone(),
        ..VerifierOptions::default()
    };
    let verifier = Verifier::new(trusted_issuers(&issuer), options);
    let rig = TestReplica::new(store, &clock, 8).await;
    let (metrics, cache) = (NotifyMetrics::new(), Cache::memory(clock.clone()));
    let service = ApiState {
        verifier,
        actor_issuer: format!("{issuer}/actors").into(),
        clock: clock.clone(),
        templates: Arc::clone(&rig.templates),
        store: store.clone(),
        submissions: rig.submissions,
        status_reads: Semaphore::new(CONCURRENT_READS),
        dispatch_state: rig.dispatch_state,
        quota: CallerQuota::new(cache.clone(), clock.clone(), Some(USER_QUOTA), None),
        mail_tokens: Some(mail_tokens()),
        webhooks: Arc::new(webhooks()),
        actors,
        unverified: UnverifiedQuota::new(cache, clock.clone()),
        suppression: rig.suppression,
        metrics: metrics.clone(),
        trusted_proxies: TrustedProxies::default(),
        readers: Arc::new(["support".to_owned()]),
        users_may_address_anyone: false,
        users_may_send_urgent: false,
    };
    let service = Arc::new(service);
    let admin_url = listen(admin::routes(&service, rig.pauses), limits, &shutdown).await;
    let url = listen(router(service), limits, &shutdown).await;
    let served = TestServer {
        metrics,
        url,
        admin_url,
        client: reqwest::Client::new(),
        issuer,
        key,
        dispatcher: rig.dispatcher,
        result_writer: rig.result_writer,
        runner: rig.runner,
        templates: rig.templates,
        clock,
        shutdown,
        script: rig.script,
    };
    (served, rig.committer)
}

fn webhooks() -> Webhooks {
    Webhooks {
        standard: StandardWebhook::new(&Secret::from("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3")),
        mailgun: Some(MailgunWebhook {
            signing_key: Secret::from("mg-key"),
        }),
        ..Webhooks::default()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl TestServer {
    fn service_token(&self, name: &str) -> String {
        let now = START.unix_seconds();
        let claims = json!({
            "iss": format!("{}/services", self.issuer), "sub": name, "aud": "services", "token_use": "id",
            "custom:service_id": name, "iat": now, "exp": now + 600
        });
        self.sign(&claims)
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header {
            kid: Some("k".to_owned()),
            ..Header::new(Algorithm::ES256)
        };
        jsonwebtoken::encode(&header, claims, &self.key).expect("signs")
    }

    async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> (StatusCode, Value) {
        let mut request = self.client.post(format!("{}{path}", self.url)).json(body);
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            request = request.bearer_auth(self.service_token("auth"));
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.expect("a response");
        (answer.status(), answer.json().await.unwrap_or_default())
    }

    async fn accepted(&self, body: &Value) -> String {
        let token = format!("Bearer {}", self.service_token("auth"));
        self.accepted_as(&token, body).await
    }

    async fn accepted_as(&self, token: &str, body: &Value) -> String {
        let headers = [("authorization", token)];
        let (status, created) = self.post("/notifications", &headers, body).await;
        assert_eq!(status, StatusCode::CREATED, "{created}");
        let id = created["notificationId"].as_str();
        id.expect("an id").to_owned()
    }

    async fn cancel(&self, id: &str, service: &str) -> (StatusCode, Value) {
        let url = format!("{}/notifications/{id}", self.url);
        let request = self.client.delete(url);
        let request = request.bearer_auth(self.service_token(service));
        let answer = request.send().await.expect("a response");
        (answer.status(), answer.json().await.unwrap_or_default())
    }

    async fn get(
        &self,
        id: &str,
        service: &str,
        tag: Option<&str>,
    ) -> (StatusCode, Option<String>, Value) {
        let request = self.client.get(format!("{}/notifications/{id}", self.url));
        let mut request = request.bearer_auth(self.service_token(service));
        if let Some(tag) = tag {
            request = request.header("if-none-match", tag);
        }
        let answer = request.send().await.expect("a response");
        let (status, tag) = (answer.status(), answer.headers().get("etag"));
        let tag = tag.and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        (status, tag, answer.json().await.unwrap_or_default())
    }

    async fn deliver(&mut self) {
        self.dispatcher.poll().await.expect("scan");
        self.deliver_known().await;
    }

    /// Delivers from the lanes that are known to have waiting rows.
    async fn deliver_known(&mut self) {
        self.dispatcher.claim_available().await.expect("claim");
        self.runner.wait_until_idle().await;
        self.result_writer.drain().await;
    }
}

fn welcome() -> Value {
    json!({"channel": "email", "recipient": {"email": "ada@example.com"}, "template": "welcome", "variables": {"name": "Ada"}})
}

#[tokio::test]
async fn batch_results_are_in_request_order() {
    for (served, _database) in servers().await {
        let mut bad = welcome();
        bad["template"] = "nope".into();
        let body = json!({"notifications": [welcome(), bad, 7, welcome()]});
        let (status, answer) = served.post("/notification-batches", &[], &body).await;
        let results = answer["results"].as_array().expect("results").iter();
        let statuses: Vec<_> = results.map(|result| &result["status"]).collect();
        assert_eq!(status, StatusCode::OK);
        assert_eq!(statuses, [201, 422, 400, 201], "{answer}");
    }
}
