//! Test support: the development services of `postern-dev` behind a proxy that injects faults, and a
//! fixture that runs the service against them.

pub(crate) mod browser;
mod development;
mod fault_proxy;
mod requests;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_core::clock::Timestamp;
use postern_core::config::{Env, parse};
use postern_core::identity::{SOCIAL_PROOF_KEY, SocialProofKey};
use postern_core::{Clock, Code, Problem, Secret};
use postern_service::http::{Limits, serve};
use postern_store::database::testing::{self, TestDatabase};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::development::{Development, PoolOperator, listen};
pub(crate) use self::fault_proxy::{Fault, FaultProxy, PausePoint, http};
pub(crate) use self::requests::{email, login, registration, reset};
use crate::app::App;
use crate::assembly::AuthService;
use crate::client::ClientContext;
use crate::config::Config;
use crate::crypto::random;
use crate::flows::{
    ChallengeAnswer, ConfirmationRequest, ExchangedIdentity, Flows, SocialCallback, SocialLanding,
    TokenSet,
};
use crate::http::router;
use crate::telemetry::{Audited, AuditedResult};

pub(crate) const ADA: &str = "ada@example.com";
pub(crate) const PASSWORD: &str = "Password-1";

/// A service with the development services.
pub(crate) struct Fixture {
    pub(crate) service: Arc<AuthService>,
    pub(crate) clock: Clock,
    pub(crate) settings: ReplicaSettings,
    pub(crate) database: TestDatabase,
    development: Development,
}

/// The configuration file and the environment of a replica.
#[derive(Clone)]
pub(crate) struct ReplicaSettings {
    file: String,
    variables: BTreeMap<String, String>,
    deadline: Option<Duration>,
}

/// Options of a fixture, with the defaults at first.
#[derive(Default)]
pub(crate) struct FixtureOptions {
    /// Lines for the root table of the configuration.
    pub(crate) config: &'static str,
    pub(crate) social: &'static str,
    /// Shortens the timeouts of calls to the pool and to the provider.
    pub(crate) deadline: Option<Duration>,
    pub(crate) no_credentials: bool,
    pub(crate) no_proof_key: bool,
    /// The URL of the shared cache; memory by default.
    pub(crate) cache: Option<String>,
    /// The database; a SQLite file by default.
    pub(crate) database: Option<TestDatabase>,
    /// The clock of the machine; a manual one by default.
    pub(crate) clock: Option<Clock>,
}

// === impl Fixture ===

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Creates a fixture with lines in the root table of the configuration.
    pub(crate) async fn with_config(config: &'static str) -> Self {
        Self::with(|it| it.config = config).await
    }

    pub(crate) async fn without_credentials() -> Self {
        Self::with(|it| it.no_credentials = true).await
    }

    pub(crate) async fn without_proof_key() -> Self {
        Self::with(|it| it.no_proof_key = true).await
    }

    /// Creates a fixture with lines in `[social]`.
    pub(crate) async fn with_social(social: &'static str) -> Self {
        Self::with(|it| it.social = social).await
    }

    /// Creates a fixture with a cache, or with one that nobody answers for.
    pub(crate) async fn with_cache(url: impl Into<String>) -> Self {
        Self::with(|it| it.cache = Some(url.into())).await
    }

    pub(crate) async fn with_database(database: TestDatabase) -> Self {
        Self::with(|it| it.database = Some(database)).await
    }

    /// Creates a fixture in which codes confirm registrations.
    pub(crate) async fn with_confirmation() -> Self {
        Self::with_config("confirm = 'code'").await
    }

    /// Returns the messages that were sent to an address with a template, in their order.
    pub(crate) fn messages(&self, address: &str, template: &str) -> Vec<Value> {
        let mut sent = self.bodies("/notifications");
        sent.retain(|body| body["recipient"]["email"] == address && body["template"] == template);
        sent
    }

    /// Returns the last code that was sent to an address.
    pub(crate) fn code(&self, address: &str, template: &str) -> String {
        let sent = self.messages(address, template);
        let code = sent
            .last()
            .and_then(|body| body["variables"]["code"].as_str());
        code.expect("a code").to_owned()
    }

    pub(crate) async fn with(choose: impl FnOnce(&mut FixtureOptions)) -> Self {
        let mut options = FixtureOptions::default();
        choose(&mut options);
        let stopped = || Clock::manual(Timestamp::parse("2026-11-20T07:30:00Z").expect("a time"));
        let clock = options.clock.unwrap_or_else(stopped);
        let development = Development::start(&clock).await;
        let database = match options.database {
            Some(database) => database,
            None => testing::sqlite().await,
        };
        let cache = options.cache.unwrap_or_else(|| "memory:".to_owned());
        let url = &development.url;
        let file = format!(
            "database = '{}'\ncache = '{cache}'\nactor_service = '{url}'\n\
             notification_service = '{url}'\n{}\n\
             [social]\nname = 'dev'\nissuer = '{url}'\n\
             redirect_uri = '{url}/auth/social/login/callback'\nui = 'http://127.0.0.1:1/ui'\n\
             authoritative_domains = ['example.com']\n{}\n",
            database.url, options.config, options.social,
        );
        let variables = development.variables.iter();
        let variables = variables.map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut settings = ReplicaSettings {
            file,
            variables: variables.collect(),
            deadline: options.deadline,
        };
        if options.no_credentials {
            settings
                .variables
                .retain(|name, _| !CREDENTIALS.contains(&name.as_str()));
        }
        if options.no_proof_key {
            settings.variables.remove(SOCIAL_PROOF_KEY);
        }
        Self {
            service: settings.start(&clock).await,
            clock,
            settings,
            database,
            development,
        }
    }

    pub(crate) fn pool(&self) -> &PoolOperator {
        &self.development.pool
    }

    pub(crate) fn development_url(&self) -> &str {
        &self.development.url
    }

    /// Adds Ada, with a verified address, and returns the subject.
    pub(crate) async fn add_ada(&self) -> String {
        self.pool().add_user(ADA, PASSWORD, true).await
    }

    pub(crate) async fn has_profile(&self) -> bool {
        let Some(subject) = self.pool().subject(ADA).await else {
            return false;
        };
        let found = self.service.actor_service.has_profile(&subject).await;
        found.expect("the actor service answers")
    }

    pub(crate) fn flows(&self) -> &Arc<Flows> {
        &self.service.flows
    }

    /// Signs Ada in with a password, from a client without an address.
    pub(crate) async fn sign_in(&self, password: &str) -> Result<TokenSet, Problem> {
        sign_in(&self.service, &client(), ADA, password).await
    }

    pub(crate) async fn sign_in_at(
        &self,
        address: &str,
        password: &str,
    ) -> Result<TokenSet, Problem> {
        sign_in(&self.service, &client_at(address), ADA, password).await
    }

    pub(crate) async fn refresh(&self, tokens: &TokenSet) -> Result<TokenSet, Problem> {
        let client = client();
        let refreshed = self.flows().refresh(&client, &tokens.refresh_token);
        plain(refreshed.await)
    }

    /// Registers Ada, from a client without an address.
    pub(crate) async fn register(&self, password: &str) -> Result<TokenSet, Problem> {
        register(&self.service, &client(), ADA, password).await
    }

    /// Resets Ada's password with a code that is sent first.
    pub(crate) async fn reset(&self, address: &str, new_password: &str) {
        self.request_code(ADA).await;
        let code = self.code(ADA, "account-reset");
        let client = client_at(address);
        let done = self.try_reset(&client, &code, new_password);
        done.await.expect("reset");
    }

    pub(crate) async fn try_reset(
        &self,
        client: &ClientContext,
        code: &str,
        new_password: &str,
    ) -> Result<(), Problem> {
        let request = reset(ADA, code, new_password);
        plain(self.flows().reset_password(client, &request).await)
    }

    pub(crate) async fn confirm(
        &self,
        client: &ClientContext,
        session: &str,
        code: &str,
        password: &str,
    ) -> Result<TokenSet, Problem> {
        let confirmation = ConfirmationRequest {
            session: session.to_owned(),
            code: code.to_owned(),
            password: Secret::from(password),
        };
        let confirmed = self.flows().confirm_registration(client, &confirmation);
        plain(confirmed.await)
    }

    /// Answers a challenge with a code, or with a new password.
    pub(crate) async fn answer(
        &self,
        client: &ClientContext,
        session: String,
        answer: Result<&str, &str>,
    ) -> Result<TokenSet, Problem> {
        let answer = ChallengeAnswer {
            session,
            code: answer.ok().map(str::to_owned),
            new_password: answer.err().map(str::to_owned),
            responses: HashMap::new(),
        };
        plain(self.flows().answer_challenge(client, answer).await)
    }

    /// Requests a reset code, from a client without an address.
    pub(crate) async fn request_code(&self, address: &str) {
        let task = self.flows().request_code(client(), email(address));
        task.expect("a task").await.expect("no panic");
    }

    pub(crate) async fn exchange(&self, token: &str) -> ExchangedIdentity {
        let exchanged = self.try_exchange(token, None).await;
        exchanged.expect("a valid token")
    }

    pub(crate) async fn try_exchange(
        &self,
        token: &str,
        verifier: Option<&str>,
    ) -> Result<ExchangedIdentity, Problem> {
        plain(self.flows().exchange(&client(), token, verifier).await)
    }

    /// Signs a person in at the provider and exchanges the temporary token.
    pub(crate) async fn social_sign_in(&self, person: browser::Person) -> ExchangedIdentity {
        let landing = browser::sign_in(self, person).await;
        assert_eq!(landing.name, "temporaryToken", "{}", landing.value);
        self.exchange(&landing.value).await
    }

    pub(crate) async fn pending_registrations(&self) -> i64 {
        let count = self.service.store.count_registrations().await;
        count.expect("the store answers")
    }

    /// Runs the compensation and returns the number of resolved registrations.
    pub(crate) async fn compensate(&self) -> usize {
        let resolved = self.service.flows.compensate().await;
        resolved.expect("the store answers")
    }

    pub(crate) async fn replica(&self) -> Arc<AuthService> {
        self.settings.start(&self.clock).await
    }

    /// Starts another replica with a key for social sign-in: the pool's, or another one.
    pub(crate) async fn replica_with_proof_key(&self, is_right: bool) -> Arc<AuthService> {
        let mut settings = self.settings.clone();
        let key = match is_right {
            true => self.development.variable(SOCIAL_PROOF_KEY).to_owned(),
            false => STANDARD.encode(random::bytes::<32>()),
        };
        settings.variables.insert(SOCIAL_PROOF_KEY.to_owned(), key);
        settings.start(&self.clock).await
    }

    pub(crate) fn proof_key(&self) -> SocialProofKey {
        let key = SocialProofKey::parse(self.development.variable(SOCIAL_PROOF_KEY));
        key.expect("a key")
    }

    /// Serves the HTTP interface on a loopback socket and returns its URL.
    pub(crate) async fn serve(&self) -> String {
        let flows = Arc::clone(&self.service.flows);
        serve_router(router(flows, self.service.trusted_proxies.clone())).await
    }
}

/// The proxy before the development services.
impl Deref for Fixture {
    type Target = FaultProxy;

    fn deref(&self) -> &FaultProxy {
        &self.development.faults
    }
}

// === impl ReplicaSettings ===

impl ReplicaSettings {
    pub(crate) fn read(&self) -> Config {
        let env: Env = self.variables.clone().into_iter().collect();
        let config = parse("test.toml", &self.file, |root| Config::read(root, &env));
        let mut config = config.expect("a valid config");
        if let Some(deadline) = self.deadline {
            config.pool_deadline = deadline;
            if let Some(social) = &mut config.social {
                social.deadline = deadline;
            }
        }
        config
    }

    async fn start(&self, clock: &Clock) -> Arc<AuthService> {
        App::build(self.read(), clock.clone())
            .await
            .expect("the service starts")
            .into_service()
    }
}

const CREDENTIALS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// Serves a router on a loopback socket and returns its URL.
pub(crate) async fn serve_router(router: axum::Router) -> String {
    let (listener, address) = listen().await;
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, router, Limits::default(), stop));
    format!("http://{address}")
}

pub(crate) async fn sign_in(
    service: &AuthService,
    client: &ClientContext,
    account: &str,
    password: &str,
) -> Result<TokenSet, Problem> {
    let request = login(account, password);
    plain(service.flows.sign_in(client, &request).await)
}

pub(crate) async fn register(
    service: &AuthService,
    client: &ClientContext,
    account: &str,
    password: &str,
) -> Result<TokenSet, Problem> {
    let request = registration(account, password);
    plain(service.flows.register(client, &request).await)
}

/// Asserts that an operation is refused with this problem code.
#[track_caller]
pub(crate) fn refused<T: Debug, E: Into<Problem>>(result: Result<T, E>, expected: Code) -> Problem {
    let problem = result.map_err(Into::into).expect_err("refused");
    assert_eq!(problem.code(), expected);
    problem
}

/// Returns a result without the mark that it is audited.
pub(crate) fn plain<T>(result: AuditedResult<T>) -> Result<T, Problem> {
    result.map(Audited::into_inner).map_err(Problem::from)
}

/// Follows the redirect of the provider back to a replica.
pub(crate) async fn land(
    service: &AuthService,
    client: &ClientContext,
    callback: SocialCallback,
) -> SocialLanding {
    let landing = service.flows.finish_callback(client, callback).await;
    landing.expect("social sign-in is on").into_inner()
}

pub(crate) fn session_of(problem: &Problem) -> String {
    let session = &problem.to_json("id")["challenge"]["session"];
    session.as_str().expect("a session").to_owned()
}

pub(crate) fn client() -> ClientContext {
    ClientContext::new("test".into(), None)
}

pub(crate) fn client_at(address: &str) -> ClientContext {
    ClientContext::new("test".into(), Some(address.parse().expect("an address")))
}

/// A time after which interrupted registrations are due: a little more than a minute.
pub(crate) const REGISTRATION_DUE: Duration = Duration::from_secs(61);
