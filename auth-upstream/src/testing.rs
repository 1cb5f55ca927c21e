//! What the tests run against: a pool that speaks Cognito's wire on a loopback socket, an actor
//! service and a social provider. Each can be told to fail.

mod actors;
mod hold;
mod keys;
mod pool;
mod provider;
pub(crate) mod social;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_common::cache::testing::TestCache;
use postern_common::clock::Timestamp;
use postern_common::config::{Env, parse};
use postern_common::database::testing::{self, TestDatabase};
use postern_common::http::{Limits, serve};
use postern_common::{Clock, Secret};
use tokio::net::TcpListener;

pub(crate) use self::actors::StubActors;
pub(crate) use self::hold::{Holds, When};
pub(crate) use self::keys::SigningKey;
pub(crate) use self::pool::StubPool;
pub(crate) use self::provider::{Mood, StubProvider};
use crate::app::App;
use crate::auth::{Auth, Visitor};
use crate::config::Config;
use crate::email::Email;
use crate::login::Login;
use crate::register::Registration;
use crate::{http, random};

/// One authentication upstream and its surroundings.
pub(crate) struct Fixture {
    pub(crate) auth: Arc<Auth>,
    pub(crate) pool: Arc<StubPool>,
    pub(crate) actors: Arc<StubActors>,
    pub(crate) provider: Arc<StubProvider>,
    pub(crate) clock: Clock,
    pub(crate) config: Setup,
    _database: TestDatabase,
}

/// What a replica is started with.
#[derive(Clone)]
pub(crate) struct Setup {
    text: String,
    variables: BTreeMap<String, String>,
}

/// What a test wants to be different.
#[derive(Default)]
pub(crate) struct Wish {
    /// Lines of the config's root.
    pub(crate) config: &'static str,
    /// Lines of `[social]`.
    pub(crate) social: &'static str,
    /// No AWS credentials.
    pub(crate) no_credentials: bool,
    /// A shared cache other than memory.
    pub(crate) cache: Option<TestCache>,
    /// The same by its address.
    pub(crate) cache_url: Option<String>,
}

/// A scripted refusal: an operation and how it fails.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    pub(crate) name: &'static str,
    pub(crate) message: &'static str,
}

/// Failures still to come, by operation.
#[derive(Debug, Default)]
pub(crate) struct Script(Mutex<VecDeque<(String, Failure)>>);

// === impl Script ===

impl Script {
    pub(crate) fn add(&self, operation: &str, failure: Failure) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back((operation.to_owned(), failure));
    }

    fn next(&self, operation: &str) -> Option<Failure> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(name, _)| name == operation)?;
        all.remove(at).map(|(_, failure)| failure)
    }
}

// === impl Fixture ===

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(Wish::default()).await
    }

    pub(crate) async fn with(wish: Wish) -> Self {
        let clock = Clock::manual(Timestamp::parse("2026-11-20T07:30:00Z").expect("an instant"));
        let pool = StubPool::start(clock.clone()).await;
        let actors = StubActors::start().await;
        let provider = StubProvider::start(clock.clone()).await;
        let database = testing::sqlite().await;
        let cache = wish.cache.map(|cache| cache.url).or(wish.cache_url);
        let cache = cache.unwrap_or_else(|| "memory:".to_owned());
        let text = format!(
            "database = '{}'\ncache = '{cache}'\nactor_service = '{}'\n{}\n\
             [social]\nprovider = 'stub'\nissuer = '{}'\nui = 'http://127.0.0.1:1/ui'\n\
             authoritative_domains = ['example.com']\ndeadline = '300ms'\n{}\n",
            database.url, actors.url, wish.config, provider.url, wish.social,
        );
        let setup = Setup {
            text,
            variables: environment(&pool.url, wish.no_credentials),
        };
        let auth = setup.start(&clock).await;
        Self {
            auth,
            pool,
            actors,
            provider,
            clock,
            config: setup,
            _database: database,
        }
    }

    /// Another replica, with a new key for the provider's tokens before the one that was.
    pub(crate) async fn replica_with_a_new_key(&self) -> Arc<Auth> {
        let name = "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY";
        let mut setup = self.config.clone();
        let keys = format!(
            "{},{}",
            STANDARD.encode(random::bytes::<32>()),
            setup.variables[name]
        );
        setup.variables.insert(name.to_owned(), keys);
        setup.start(&self.clock).await
    }

    /// Another replica, which an operator has given AWS credentials.
    pub(crate) async fn replica_with_credentials(&self) -> Arc<Auth> {
        let mut setup = self.config.clone();
        for (name, value) in CREDENTIALS {
            setup.variables.insert(name.to_owned(), value.to_owned());
        }
        setup.start(&self.clock).await
    }

    /// Another replica over the same stores.
    pub(crate) async fn replica(&self) -> Arc<Auth> {
        self.config.start(&self.clock).await
    }

    /// The service on a socket of its own, for tests of the rim.
    pub(crate) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(serve(
            listener,
            http::router(Arc::clone(&self.auth)),
            Limits::default(),
            CancellationToken::new(),
        ));
        url
    }
}

impl Setup {
    pub(crate) fn read(&self) -> Config {
        let env: Env = self.variables.clone().into_iter().collect();
        parse("test.toml", &self.text, |root| Config::read(root, &env)).expect("a config")
    }

    async fn start(&self, clock: &Clock) -> Arc<Auth> {
        App::build(self.read(), clock.clone())
            .await
            .expect("built")
            .into_auth()
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

/// Serves a stub on a socket of its own and returns its URL.
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

pub(crate) fn visitor() -> Visitor {
    Visitor {
        request_id: "test".into(),
        address: None,
    }
}

pub(crate) fn email(text: &str) -> Email {
    Email::parse(text).expect("an address")
}

pub(crate) fn login(address: &str, password: &str) -> Login {
    Login {
        email: email(address),
        password: Secret::from(password),
    }
}

pub(crate) fn registration(address: &str, password: &str) -> Registration {
    let profile = [("firstName".to_owned(), "Ada".into())]
        .into_iter()
        .collect();
    Registration {
        email: email(address),
        password: Secret::from(password),
        profile,
    }
}

/// A little more than a minute: what was given up by then is due.
pub(crate) const LATER: Duration = Duration::from_secs(61);
