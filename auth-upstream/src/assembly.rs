//! Construction of the service from its configuration: opens the stores, creates the clients and
//! loads the keys.

use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_core::Clock;
use postern_core::dependency::origin;
use postern_core::exit::Exit;
use postern_core::token::{Verifier, VerifierOptions};
use postern_service::calls::{ServiceClient, ServiceTokens, http_client};
use postern_service::http::TrustedProxies;
use postern_store::cache::Cache;
use postern_store::database::{Database, DatabaseOptions};
use tokio::sync::Semaphore;
use url::Url;

use crate::account_messages::AccountMessages;
use crate::actor_service::ActorService;
use crate::audit_trail::{AuditReader, AuditTrail};
use crate::config::Config;
use crate::crypto::{KeyRing, SealingKey, random};
use crate::flows::{Flows, MAX_CODE_REQUESTS, Social};
use crate::pool::UserPool;
use crate::protection::{AttemptLimiter, ResponseTimePadding};
use crate::service_endpoint::ServiceEndpoint;
use crate::store::AuthStore;
use crate::telemetry::Metrics;

/// Size of the token cache of `GET /auth/me`. Small, because the gateway has verified the tokens.
const VERIFIER_CACHE_BYTES: usize = 8 << 20;

/// The flows of the service, and what background tasks, checks and shutdown use.
#[derive(Debug)]
pub(crate) struct AuthService {
    pub(crate) flows: Arc<Flows>,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) audit_trail: AuditTrail,
}

// === impl AuthService ===

impl AuthService {
    /// Opens the stores and builds the service.
    pub(crate) async fn build(mut config: Config, machine: Clock) -> Result<Self, Exit> {
        require_ca_certificates()?;
        let database = Database::open(&config.database, config.database_options()).await?;
        let store = AuthStore::new(database).await?;
        // What replicas share has the time of the database, what others sign that of the machine.
        let clock = store.database().clock(&machine).await?;
        let cache = Cache::open(&config.cache, &machine)?;
        let key_ring = Arc::new(match config.sealing_keys.take() {
            Some(key_ring) => key_ring,
            None => stored_key_ring(&store).await?,
        });
        let store = store.with_keys(Arc::clone(&key_ring));
        let metrics = Metrics::new()?;
        let reader = AuditReader::new(store.clone(), Arc::clone(&key_ring));
        let (audit, audit_trail) =
            AuditTrail::open(reader, &clock, config.audit.retention, &metrics);
        let (aws, proof_key) = (config.aws.take(), config.social_proof_key.take());
        let (identity, deadline) = (&config.identity, config.pool_deadline);
        let pool = UserPool::open(identity, aws, proof_key, deadline, &machine, &metrics);
        let pool = Box::pin(pool).await;
        let (actor_service, messages) = services(&config, &machine, &metrics);
        let verifier = verifier(&config, &machine);
        let dependencies = &metrics.dependencies;
        let social = config.social.take();
        let social = social.map(|config| Social::new(config, dependencies, &clock, &verifier));
        let flows = Flows {
            pool,
            actor_service,
            messages,
            store,
            limiter: AttemptLimiter::new(cache.clone(), clock.clone(), config.attempt_limits),
            padding: ResponseTimePadding::default(),
            code_requests: Arc::new(Semaphore::new(MAX_CODE_REQUESTS)),
            cache,
            key_ring,
            verifier,
            actor_issuer: config.identity.actor.issuer.as_str().into(),
            makes_codes: config.own_codes,
            confirmation: config.confirmation,
            social,
            audit,
            metrics,
            clock,
        };
        Ok(Self {
            flows: Arc::new(flows),
            trusted_proxies: config.trusted_proxies,
            audit_trail,
        })
    }
}

impl Deref for AuthService {
    type Target = Flows;

    fn deref(&self) -> &Flows {
        &self.flows
    }
}

fn verifier(config: &Config, clock: &Clock) -> Arc<Verifier> {
    let options = VerifierOptions {
        clock: clock.clone(),
        cache_bytes: VERIFIER_CACHE_BYTES,
        limits: config.identity.token_limits,
        ..VerifierOptions::default()
    };
    Verifier::new(config.identity.issuers(), options)
}

// === impl AuditReader ===

impl AuditReader {
    /// Opens the audit trail of a configuration, without starting the service.
    ///
    /// # Errors
    /// Exit status 64 if the stored sealing key is invalid, 69 if the database is unavailable.
    pub async fn open(config: &mut Config) -> Result<Self, Exit> {
        let keys = config.sealing_keys.take();
        open_audit_trail(&config.database, keys).await
    }

    /// Opens the audit trail of a database whose sealing key is stored in it, as that of an
    /// embedded installation.
    ///
    /// # Errors
    /// As [`AuditReader::open`].
    pub async fn open_database(url: &str) -> Result<Self, Exit> {
        open_audit_trail(url, None).await
    }
}

async fn open_audit_trail(url: &str, keys: Option<KeyRing>) -> Result<AuditReader, Exit> {
    let database = Database::open(url, DatabaseOptions::for_command("postern-auth-cli")).await?;
    let store = AuthStore::open_migrated(database).await?;
    let key_ring = match keys {
        Some(key_ring) => key_ring,
        None => stored_key_ring(&store).await?,
    };
    Ok(AuditReader::new(store, Arc::new(key_ring)))
}

/// Checks that clients of HTTPS can be built; [`http_client`] would panic.
pub(crate) fn require_ca_certificates() -> Result<(), Exit> {
    reqwest::Client::builder().no_proxy().build().map(drop).map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Exit::unavailable(format!(
            "cannot build an HTTPS client: {reason}; install the system's CA certificates (package ca-certificates), or \
             name them in SSL_CERT_FILE or SSL_CERT_DIR"
        ))
    })
}

fn services(
    config: &Config,
    clock: &Clock,
    metrics: &Metrics,
) -> (Arc<ActorService>, Arc<AccountMessages>) {
    let dependencies = &metrics.dependencies;
    let tokens = ServiceTokens::new(&config.identity, clock.clone()).reported(dependencies);
    let client = ServiceClient::new(tokens, http_client());
    let endpoint = |name: &'static str, base: &Url, timeout| ServiceEndpoint {
        client: client.clone(),
        base: base.clone(),
        availability: dependencies.optional(name, origin(base)),
        timeout,
    };
    let url = &config.actor_service;
    let actors = ActorService(endpoint("actor_service", url, ActorService::TIMEOUT));
    let actors = Arc::new(actors);
    let url = &config.notification_service;
    let notifications = endpoint("notification_service", url, AccountMessages::TIMEOUT);
    let messages = Arc::new(AccountMessages {
        service: notifications,
        actor_service: Arc::clone(&actors),
        sends_notices: config.notices,
    });
    (actors, messages)
}

/// Returns the sealing key from the database, which is generated at the first start and shared by
/// all replicas.
async fn stored_key_ring(store: &AuthStore) -> Result<KeyRing, Exit> {
    let generated = STANDARD.encode(random::bytes::<32>());
    let stored = store.key_or_insert("sealing", &generated).await;
    let stored = stored
        .map_err(|error| Exit::unavailable(format!("cannot read the sealing key: {error}")))?;
    let key = SealingKey::parse(&stored)
        .map_err(|error| Exit::usage(format!("the stored sealing key {error}")))?;
    Ok(KeyRing::new(key, Vec::new()))
}
