//! From a config to an authentication upstream: stores are opened, clients made, keys found.

use std::error::Error;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_common::Clock;
use postern_common::cache::{self, Cache};
use postern_common::database::{Database, Options};
use postern_common::exit::Exit;
use postern_common::service::{ServiceClient, ServiceTokens, http_client};
use postern_common::token::{Verifier, VerifierOptions};
use tokio::sync::Semaphore;

use crate::abuse::Abuse;
use crate::actors::ActorService;
use crate::auth::Auth;
use crate::config::Config;
use crate::logout::MAX_REVOCATION_RETRIES;
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::pool::UserPool;
use crate::random;
use crate::seal::{Key, KeyRing};
use crate::social::Social;
use crate::store::Store;
use crate::vault::Vault;

/// Remembered tokens of `GET /auth/me`: few, the gateway has verified them before.
const VERIFIER_CACHE_BYTES: usize = 8 << 20;
/// Codes for a new password that are being asked for at once.
const CODES_AT_ONCE: usize = 64;

/// Opens the stores and makes everything.
pub(crate) async fn assemble(mut config: Config, clock: Clock) -> Result<Auth, Exit> {
    require_ca_certificates()?;
    let database = Database::open(&config.database, Options::new("postern-auth")).await?;
    let store = Store::new(database).await?;
    let options = cache::Options {
        clock: clock.clone(),
        ..cache::Options::default()
    };
    let cache = Cache::open_with(&config.cache, &options)?;
    let ring = match config.sealing.take() {
        Some(ring) => ring,
        None => stored_ring(&store, &clock).await?,
    };
    let options = VerifierOptions {
        clock: clock.clone(),
        cache_bytes: VERIFIER_CACHE_BYTES,
        ..VerifierOptions::default()
    };
    let metrics = Metrics::new()?;
    Ok(Auth {
        pool: Box::pin(user_pool(&mut config, &clock, &metrics)).await,
        actors: actor_service(&config, &cache, &clock),
        verifier: Verifier::new(config.identity.issuers(), options),
        vault: Vault::new(cache.clone()),
        abuse: Abuse::new(cache.clone(), clock.clone(), config.abuse),
        pace: Pace::default(),
        trusted_proxies: config.trusted_proxies,
        social: config
            .social
            .map(|social| Social::new(social, http_client(), clock.clone())),
        metrics,
        codes: Arc::new(Semaphore::new(CODES_AT_ONCE)),
        revocations: Arc::new(Semaphore::new(MAX_REVOCATION_RETRIES)),
        confirm: config.confirm,
        refresh: config.refresh,
        clock,
        store,
        cache,
        ring,
    })
}

/// Fails where no HTTPS client can be built, as without CA certificates: every client of
/// [`http_client`] needs them.
fn require_ca_certificates() -> Result<(), Exit> {
    reqwest::Client::builder().no_proxy().build().map(drop).map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Exit::unavailable(format!(
            "cannot build an HTTPS client: {reason}; install the system's CA certificates (package ca-certificates), or \
             name them in SSL_CERT_FILE or SSL_CERT_DIR"
        ))
    })
}

async fn user_pool(config: &mut Config, clock: &Clock, metrics: &Metrics) -> UserPool {
    let admin = match config.aws.take() {
        Some(credentials) => Some(config.identity.client(Some(credentials)).await),
        None => None,
    };
    let client = config.identity.client(None).await;
    UserPool::new(
        (client, admin),
        &config.identity.actor,
        config.flow,
        config.pool_deadline,
        clock,
        metrics,
    )
}

fn actor_service(config: &Config, cache: &Cache, clock: &Clock) -> ActorService {
    let tokens = ServiceTokens::new(&config.identity, cache.clone(), clock.clone());
    ActorService::new(
        ServiceClient::new(tokens, http_client()),
        config.actor_service.clone(),
    )
}

/// The key of this installation, made at the first start; every replica reads the same.
async fn stored_ring(store: &Store, clock: &Clock) -> Result<KeyRing, Exit> {
    let fresh = STANDARD.encode(random::bytes::<32>());
    let stored = store.key("sealing", &fresh, clock.now()).await;
    let stored = stored
        .map_err(|error| Exit::unavailable(format!("cannot read the sealing key: {error}")))?;
    let key = Key::parse(&stored)
        .map_err(|error| Exit::usage(format!("the stored sealing key {error}")))?;
    Ok(KeyRing::new(key, Vec::new()))
}
