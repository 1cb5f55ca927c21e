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
use postern_store::cache::{self, Cache};
use postern_store::database::{Database, DatabaseOptions};

use crate::account_messages::AccountMessages;
use crate::actor_service::ActorService;
use crate::audit_trail::{AuditReader, AuditRetention, AuditTrail};
use crate::config::Config;
use crate::crypto::{KeyRing, SealingKey, random};
use crate::flows::{AccountCodes, AttemptGuard, FlowParts, Flows, TokenIssuer, UserLocks};
use crate::pool::client::pool_client;
use crate::pool::{PoolClients, PoolSettings, UserPool};
use crate::protection::AttemptLimiter;
use crate::store::AuthStore;
use crate::telemetry::Metrics;

/// Size of the token cache of `GET /auth/me`. Small, because the gateway has verified the tokens.
const VERIFIER_CACHE_BYTES: usize = 8 << 20;

/// The flows of the service, and what background tasks, checks and shutdown use.
#[derive(Debug)]
pub(crate) struct AuthService {
    pub(crate) flows: Arc<Flows>,
    parts: Arc<FlowParts>,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) audit_trail: AuditTrail,
}

// === impl AuthService ===

impl AuthService {
    /// Opens the stores and builds the service.
    ///
    /// # Errors
    /// Status 64 for an invalid stored key or cache URL, 69 if the database or the CA certificates
    /// are unavailable.
    pub(crate) async fn build(mut config: Config, machine: Clock) -> Result<Self, Exit> {
        require_ca_certificates()?;
        let database = Database::open(&config.database, config.database_options()).await?;
        let store = AuthStore::new(database).await?;
        // What replicas share has the time of the database, what others sign that of the machine.
        let clock = store.database().clock(&machine).await?;
        let cache = open_cache(&config, &machine)?;
        let key_ring = Arc::new(match config.sealing_keys.take() {
            Some(key_ring) => key_ring,
            None => stored_key_ring(&store).await?,
        });
        let store = store.with_keys(Arc::clone(&key_ring));
        let metrics = Metrics::new()?;
        let retention = AuditRetention::new(&store, &clock, config.audit_retention);
        let (audit, audit_trail) = AuditTrail::open(retention, Arc::clone(&key_ring), &metrics);
        let pool = Arc::new(Box::pin(user_pool(&mut config, &machine, &metrics)).await);
        let tokens = ServiceTokens::new(&config.identity, machine.clone());
        let tokens = tokens.reported(metrics.dependencies());
        let services = ServiceClient::new(tokens, http_client());
        let actor_service = Arc::new(actor_service(&config, &services, &metrics));
        let messages = account_messages(&config, services, &actor_service, &metrics);
        let limiter = AttemptLimiter::new(cache.clone(), clock.clone(), config.attempt_limits);
        let issuer = TokenIssuer::new(Arc::clone(&pool), Arc::clone(&key_ring), clock.clone());
        let codes = AccountCodes {
            cache: cache.clone(),
            key_ring: Arc::clone(&key_ring),
            messages: messages.clone(),
            clock: clock.clone(),
        };
        let guard = AttemptGuard::new(limiter, issuer.clone(), messages, metrics.clone());
        let parts = Arc::new(FlowParts {
            pool,
            actor_service,
            store,
            locks: UserLocks::new(cache.clone()),
            cache,
            key_ring,
            verifier: verifier(&config, &machine),
            actor_issuer: config.identity.actor.issuer.as_str().into(),
            guard,
            issuer,
            codes,
            makes_codes: config.own_codes,
            confirmation: config.confirmation,
            audit,
            metrics,
            clock,
        });
        Ok(Self {
            flows: Arc::new(Flows::new(&parts, config.social)),
            parts,
            trusted_proxies: config.trusted_proxies,
            audit_trail,
        })
    }
}

impl Deref for AuthService {
    type Target = FlowParts;

    fn deref(&self) -> &FlowParts {
        &self.parts
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

fn open_cache(config: &Config, clock: &Clock) -> Result<Cache, Exit> {
    let options = cache::CacheOptions {
        clock: clock.clone(),
        ..cache::CacheOptions::default()
    };
    Cache::open_with(&config.cache, &options)
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

/// Fails if no HTTPS client can be built, as without CA certificates. [`http_client`] would panic.
/// Checks that clients of HTTPS can be built.
///
/// # Errors
/// Status 69 if the system has no CA certificates.
pub(crate) fn require_ca_certificates() -> Result<(), Exit> {
    reqwest::Client::builder().no_proxy().build().map(drop).map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Exit::unavailable(format!(
            "cannot build an HTTPS client: {reason}; install the system's CA certificates (package ca-certificates), or \
             name them in SSL_CERT_FILE or SSL_CERT_DIR"
        ))
    })
}

async fn user_pool(config: &mut Config, clock: &Clock, metrics: &Metrics) -> UserPool {
    let deadline = config.pool_deadline;
    let signed = match config.aws.take() {
        Some(credentials) => Some(pool_client(&config.identity, Some(credentials), deadline).await),
        None => None,
    };
    let clients = PoolClients {
        anonymous: pool_client(&config.identity, None, deadline).await,
        signed,
    };
    let settings = PoolSettings {
        pool: config.identity.actor.clone(),
        social_proof_key: config.social_proof_key.take(),
    };
    UserPool::new(clients, settings, clock, metrics)
}

fn actor_service(config: &Config, services: &ServiceClient, metrics: &Metrics) -> ActorService {
    let url = config.actor_service.clone();
    let dependency = metrics.dependencies();
    let dependency = dependency.optional("actor_service", origin(&url));
    ActorService::new(services.clone(), url, dependency)
}

fn account_messages(
    config: &Config,
    services: ServiceClient,
    actor_service: &Arc<ActorService>,
    metrics: &Metrics,
) -> AccountMessages {
    let url = config.notification_service.clone();
    let dependency = metrics.dependencies();
    let dependency = dependency.optional("notification_service", origin(&url));
    let actor_service = Arc::clone(actor_service);
    AccountMessages::new(services, url, dependency, actor_service, config.notices)
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
