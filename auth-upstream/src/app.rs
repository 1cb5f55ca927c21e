//! The process: built from its config, run on sockets that the caller owns.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_common::admin::{self, Health};
use postern_common::cache::{self, Cache};
use postern_common::database::{Database, Options};
use postern_common::exit::Exit;
use postern_common::http::{Limits, serve};
use postern_common::service::{ServiceClient, ServiceTokens, http_client};
use postern_common::token::{Verifier, VerifierOptions};
use postern_common::{Clock, Shutdown};
use tokio::net::TcpListener;

use crate::actors::ActorService;
use crate::auth::Auth;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pool::UserPool;
use crate::seal::{Key, KeyRing};
use crate::social::Social;
use crate::store::Store;
use crate::vault::Vault;
use crate::{http, random};

/// JSON bodies at most: a registration is below 40 KiB.
const MOST_BODY_BYTES: usize = 64 << 10;
/// Remembered tokens of `GET /auth/me`: few, the gateway has verified them before.
const VERIFIER_CACHE_BYTES: usize = 8 << 20;
/// How often readiness is looked at.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// The sockets that the process listens on; whoever calls owns them.
#[derive(Debug)]
pub struct Listeners {
    /// For clients' requests.
    pub public: TcpListener,
    /// For `/livez`, `/readyz` and `/metrics`; none if somebody else serves them.
    pub admin: Option<TcpListener>,
}

/// One authentication upstream.
#[derive(Debug)]
pub struct App {
    auth: Arc<Auth>,
    health: Health,
}

// === impl App ===

impl App {
    /// Opens the stores and makes everything, without touching a socket.
    ///
    /// # Errors
    /// Status 64 for a config that cannot work, 69 if the database is away.
    pub async fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let Config {
            identity,
            database,
            cache,
            actor_service,
            aws,
            confirm,
            flow,
            refresh,
            sealing,
            social,
            ..
        } = config;
        let database = Database::open(&database, Options::new("postern-auth")).await?;
        let store = Store::new(database).await?;
        let options = cache::Options { clock: clock.clone(), ..cache::Options::default() };
        let cache = Cache::open_with(&cache, &options)?;
        let ring = match sealing {
            Some(ring) => ring,
            None => stored_ring(&store, &clock).await?,
        };
        let admin = match aws {
            Some(credentials) => Some(Box::pin(identity.client(Some(credentials))).await),
            None => None,
        };
        let client = Box::pin(identity.client(None)).await;
        let tokens = ServiceTokens::new(&identity, cache.clone(), clock.clone());
        let options = VerifierOptions {
            clock: clock.clone(),
            cache_bytes: VERIFIER_CACHE_BYTES,
            ..VerifierOptions::default()
        };
        let auth = Auth {
            pool: UserPool::new(client, admin, identity.actor.clone(), flow),
            actors: ActorService::new(ServiceClient::new(tokens, http_client()), actor_service),
            verifier: Verifier::new(identity.issuers(), options),
            vault: Vault::new(cache.clone()),
            social: social.map(|config| Social::new(config, http_client(), clock.clone())),
            metrics: Metrics::new()?,
            clock,
            store,
            cache,
            ring,
            confirm,
            refresh,
        };
        Ok(Self { auth: Arc::new(auth), health: Health::new() })
    }

    /// What stands in the way of readiness, for a process that serves it itself.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// The journeys alone, for tests that drive them.
    #[cfg(test)]
    pub(crate) fn into_auth(self) -> Arc<Auth> {
        self.auth
    }

    /// Serves until the stop begins and every request in flight has ended.
    pub async fn run(self, listeners: Listeners, shutdown: Shutdown) {
        let Self { auth, health } = self;
        let limits = Limits { body: MOST_BODY_BYTES, ..Limits::default() };
        let background = tokio::spawn(background(Arc::clone(&auth), health.clone(), shutdown.clone()));
        let admin = listeners.admin.map(|listener| {
            let router = admin::router(health, auth.metrics.registry.clone());
            tokio::spawn(serve(listener, router, Limits::default(), shutdown.clone()))
        });
        serve(listeners.public, http::router(Arc::clone(&auth)), limits, shutdown).await;
        for task in std::iter::once(background).chain(admin) {
            if let Err(error) = task.await {
                tracing::error!(%error, "a background task ended badly");
            }
        }
    }
}

async fn background(auth: Arc<Auth>, health: Health, shutdown: Shutdown) {
    tokio::join!(
        Arc::clone(&auth.verifier).run(shutdown.clone()),
        auth.compensate(&shutdown),
        probe(&auth, &health, &shutdown),
    );
}

/// Ready means that sign-in can work. The cache is not part of it: without it refresh and social sign-in say
/// 503, and the rest goes on.
async fn probe(auth: &Auth, health: &Health, shutdown: &Shutdown) {
    let database = health.check("database");
    while !shutdown.has_begun() {
        match auth.store.ping().await {
            Ok(()) => database.set_ok(),
            Err(_) => database.set_failed("does not answer"),
        }
        auth.metrics.cache_up.set(i64::from(auth.cache.ping().await.is_ok()));
        tokio::select! {
            () = shutdown.begun() => {}
            () = tokio::time::sleep(PROBE_EVERY) => {}
        }
    }
    database.set_failed("stopping");
}

/// The key of this installation, made at the first start; every replica reads the same.
async fn stored_ring(store: &Store, clock: &Clock) -> Result<KeyRing, Exit> {
    let fresh = STANDARD.encode(random::bytes::<32>());
    let stored = store.key("sealing", &fresh, clock.now()).await;
    let stored =
        stored.map_err(|error| Exit::unavailable(format!("cannot read the sealing key: {error}")))?;
    let key = Key::parse(&stored).map_err(|error| Exit::usage(format!("the stored sealing key {error}")))?;
    Ok(KeyRing::new(key, Vec::new()))
}
