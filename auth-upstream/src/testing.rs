//! Test support: stubs of the pools, the actor service and the social provider on loopback sockets,
//! each of which can fail on demand, and a fixture that runs the service against them.

pub(crate) mod browser;
mod keys;
mod pause;
mod stub_actors;
mod stub_pool;
mod stub_provider;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use postern_common::cache::testing::TestCache;
use postern_common::clock::Timestamp;
use postern_common::config::{Env, parse};
use postern_common::database::testing::{self, TestDatabase};
use postern_common::email::EmailAddress;
use postern_common::http::{Limits, serve};
use postern_common::{Clock, Secret};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) use self::keys::SigningKey;
pub(crate) use self::pause::{CallPauses, PausePoint};
pub(crate) use self::stub_actors::StubActors;
pub(crate) use self::stub_pool::StubPool;
pub(crate) use self::stub_provider::{ProviderBehavior, StubProvider};
use crate::app::App;
use crate::assembly::AuthService;
use crate::client::ClientContext;
use crate::config::Config;
use crate::crypto::random;
use crate::flows::{ExchangedIdentity, LoginRequest, RegistrationRequest, SocialFlow, TokenSet};
use crate::http;
use crate::telemetry::AuditedResult;

/// A service with its stubs.
pub(crate) struct Fixture {
    pub(crate) service: Arc<AuthService>,
    pub(crate) pool: Arc<StubPool>,
    pub(crate) actors: Arc<StubActors>,
    pub(crate) provider: Arc<StubProvider>,
    pub(crate) clock: Clock,
    pub(crate) settings: ReplicaSettings,
    pub(crate) database: TestDatabase,
}

/// The configuration file and the environment of a replica.
#[derive(Clone)]
pub(crate) struct ReplicaSettings {
    file: String,
    variables: BTreeMap<String, String>,
}

/// Deviations of a fixture from the defaults.
#[derive(Default)]
pub(crate) struct FixtureOptions {
    /// Lines for the root table of the configuration.
    pub(crate) config: &'static str,
    /// Lines for `[social]`.
    pub(crate) social: &'static str,
    /// Whether there are no AWS credentials.
    pub(crate) no_credentials: bool,
    /// The shared cache; memory if neither field is set.
    pub(crate) cache: Option<TestCache>,
    pub(crate) cache_url: Option<String>,
    /// The database; a SQLite file by default.
    pub(crate) database: Option<TestDatabase>,
}

/// An error response of a stub. Status 0: no response.
#[derive(Clone, Debug)]
pub(crate) struct StubFailure {
    pub(crate) status: u16,
    pub(crate) name: &'static str,
    pub(crate) message: &'static str,
}

/// Failures of the next calls, by operation.
#[derive(Debug, Default)]
pub(crate) struct FailureScript(Mutex<VecDeque<(String, StubFailure)>>);

// === impl FailureScript ===

impl FailureScript {
    pub(crate) fn add(&self, operation: &str, failure: StubFailure) {
        self.0.lock().push_back((operation.to_owned(), failure));
    }

    fn next(&self, operation: &str) -> Option<StubFailure> {
        let mut failures = self.0.lock();
        let index = failures.iter().position(|(name, _)| name == operation)?;
        failures.remove(index).map(|(_, failure)| failure)
    }
}

// === impl StubFailure ===

impl StubFailure {
    /// An internal error of the pool.
    pub(crate) const INTERNAL_ERROR: Self = Self {
        status: 500,
        name: "InternalErrorException",
        message: "x",
    };
}

// === impl Fixture ===

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(FixtureOptions::default()).await
    }

    /// Creates a fixture with lines in the root table of the configuration.
    pub(crate) async fn with_config(config: &'static str) -> Self {
        Self::with(FixtureOptions {
            config,
            ..FixtureOptions::default()
        })
        .await
    }

    pub(crate) async fn with(options: FixtureOptions) -> Self {
        let clock = Clock::manual(Timestamp::parse("2026-11-20T07:30:00Z").expect("a time"));
        let pool = StubPool::start(clock.clone()).await;
        let actors = StubActors::start().await;
        let provider = StubProvider::start(clock.clone()).await;
        let database = match options.database {
            Some(database) => database,
            None => testing::sqlite().await,
        };
        let cache = options.cache.map(|cache| cache.url).or(options.cache_url);
        let cache = cache.unwrap_or_else(|| "memory:".to_owned());
        let file = format!(
            "database = '{}'\ncache = '{cache}'\nactor_service = '{}'\n{}\n\
             [social]\nprovider = 'stub'\nissuer = '{}'\nui = 'http://127.0.0.1:1/ui'\n\
             authoritative_domains = ['example.com']\ndeadline = '300ms'\n{}\n",
            database.url, actors.url, options.config, provider.url, options.social,
        );
        let settings = ReplicaSettings {
            file,
            variables: environment(&pool.url, options.no_credentials),
        };
        let service = settings.start(&clock).await;
        Self {
            service,
            pool,
            actors,
            provider,
            clock,
            settings,
            database,
        }
    }

    /// Returns the social flow.
    pub(crate) fn social(&self) -> &SocialFlow {
        social_of(&self.service)
    }

    /// Signs in with a password, from a client without an address.
    pub(crate) async fn sign_in(&self, address: &str, password: &str) -> AuditedResult<TokenSet> {
        let request = login(address, password);
        self.service.flows.login.sign_in(&client(), &request).await
    }

    /// Refreshes tokens.
    pub(crate) async fn refresh(&self, tokens: &TokenSet) -> AuditedResult<TokenSet> {
        refresh(&self.service, tokens).await
    }

    /// Revokes the refresh token of a set.
    pub(crate) async fn logout(&self, tokens: &TokenSet) -> AuditedResult<()> {
        let flow = &self.service.flows.logout;
        flow.logout(&client(), &tokens.refresh_token).await
    }

    /// Registers a user, from a client without an address.
    pub(crate) async fn register(&self, address: &str, password: &str) -> AuditedResult<TokenSet> {
        let request = registration(address, password);
        let flow = &self.service.flows.registration;
        flow.register(&client(), &request).await
    }

    /// Exchanges a temporary token.
    pub(crate) async fn exchange(&self, token: &str) -> ExchangedIdentity {
        let exchanged = self
            .service
            .flows
            .exchange
            .exchange(&client(), token, None)
            .await;
        exchanged.expect("a valid token").into_inner()
    }

    /// Returns the number of pending registrations.
    pub(crate) async fn pending_registrations(&self) -> i64 {
        let count = self.service.store.count_registrations().await;
        count.expect("the store answers")
    }

    /// Runs the compensation and returns the number of resolved registrations.
    pub(crate) async fn compensate(&self) -> usize {
        let resolved = self.service.compensator.run_once().await;
        resolved.expect("the store answers")
    }

    /// Starts another replica with the same stores.
    pub(crate) async fn replica(&self) -> Arc<AuthService> {
        self.settings.start(&self.clock).await
    }

    /// Starts another replica, with an additional newest key for provider tokens.
    pub(crate) async fn replica_with_new_key(&self) -> Arc<AuthService> {
        let name = "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY";
        let mut settings = self.settings.clone();
        let keys = format!(
            "{},{}",
            STANDARD.encode(random::bytes::<32>()),
            settings.variables[name]
        );
        settings.variables.insert(name.to_owned(), keys);
        settings.start(&self.clock).await
    }

    /// Starts another replica with AWS credentials.
    pub(crate) async fn replica_with_credentials(&self) -> Arc<AuthService> {
        let mut settings = self.settings.clone();
        for (name, value) in CREDENTIALS {
            settings.variables.insert(name.to_owned(), value.to_owned());
        }
        settings.start(&self.clock).await
    }

    /// Serves the HTTP interface on a loopback socket and returns its URL.
    pub(crate) async fn serve(&self) -> String {
        let router = http::router(
            Arc::clone(&self.service.flows),
            self.service.trusted_proxies.clone(),
        );
        spawn(|_| router).await
    }
}

// === impl ReplicaSettings ===

impl ReplicaSettings {
    pub(crate) fn read(&self) -> Config {
        let env: Env = self.variables.clone().into_iter().collect();
        parse("test.toml", &self.file, |root| Config::read(root, &env)).expect("a valid config")
    }

    async fn start(&self, clock: &Clock) -> Arc<AuthService> {
        App::build(self.read(), clock.clone())
            .await
            .expect("the service starts")
            .into_service()
    }
}

const CREDENTIALS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
    ("AWS_SECRET_ACCESS_KEY", "aws-secret"),
];

fn environment(pool: &str, no_credentials: bool) -> BTreeMap<String, String> {
    let key = STANDARD.encode(random::bytes::<32>());
    let mut pairs = vec![
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", pool),
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "actor-client"),
        ("IDP_ACTOR_CLIENT_SECRET", "actor-secret"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "service-client"),
        ("IDP_SERVICE_ACCOUNT_USERNAME", "auth"),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", "service-password"),
        ("SOCIAL_OAUTH2_CLIENT_ID", "social-client"),
        ("SOCIAL_OAUTH2_CLIENT_SECRET", "social-secret"),
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.as_str()),
    ];
    if !no_credentials {
        pairs.extend(CREDENTIALS);
    }
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Serves a router on a loopback socket and returns its URL.
async fn spawn(router: impl FnOnce(&str) -> Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(serve(
        listener,
        router(&url),
        Limits::default(),
        CancellationToken::new(),
    ));
    url
}

/// Refreshes tokens at a replica.
pub(crate) async fn refresh(service: &AuthService, tokens: &TokenSet) -> AuditedResult<TokenSet> {
    let flow = &service.flows.refresh;
    flow.refresh(&client(), &tokens.refresh_token).await
}

/// Returns the social flow of a replica.
pub(crate) fn social_of(service: &AuthService) -> &SocialFlow {
    service.flows.social.as_ref().expect("social sign-in is on")
}

/// Returns a client without an address.
pub(crate) fn client() -> ClientContext {
    ClientContext::new("test".into(), None)
}

/// Returns a client with an address.
pub(crate) fn client_at(address: &str) -> ClientContext {
    ClientContext::new("test".into(), Some(address.parse().expect("an address")))
}

pub(crate) fn email(text: &str) -> EmailAddress {
    EmailAddress::parse(text).expect("an address")
}

pub(crate) fn login(address: &str, password: &str) -> LoginRequest {
    LoginRequest {
        email: email(address),
        password: Secret::from(password),
    }
}

pub(crate) fn registration(address: &str, password: &str) -> RegistrationRequest {
    let profile = [("firstName".to_owned(), "Ada".into())]
        .into_iter()
        .collect();
    RegistrationRequest {
        email: email(address),
        password: Secret::from(password),
        profile,
    }
}

/// A time after which interrupted registrations are due: a little more than a minute.
pub(crate) const REGISTRATION_DUE: Duration = Duration::from_secs(61);
