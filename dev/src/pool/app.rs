//! Assembles and serves the server.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_service::http::{AllowedHosts, Limits};
use postern_store::database::{Database, DatabaseOptions};
use tokio::net::TcpListener;

use crate::pool::bootstrap::{self, ProvisionedPools};
use crate::pool::config::Config;
use crate::pool::context::PoolContext;
use crate::pool::crypto::SigningKeys;
use crate::pool::error::ApiResult;
use crate::pool::store::PoolStore;
use crate::pool::wire::{self, WireState};

/// Time for which a shutdown waits for calls in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// An identity pool that is ready to serve.
pub struct App {
    context: Arc<PoolContext>,
    provisioned: ProvisionedPools,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("provisioned", &self.provisioned)
            .finish_non_exhaustive()
    }
}

// === impl App ===

impl App {
    /// Opens the store and provisions what is missing.
    ///
    /// # Errors
    /// Exits with status 64 for a database URL of an unsupported scheme, and with 69 if the store
    /// is unavailable or the data folder is not writable.
    pub async fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let database = Database::open(
            &config.database,
            DatabaseOptions::new("postern-identity-pool"),
        )
        .await?;
        let store = PoolStore::open(database, clock.now()).await?;
        let context = build_context(&config, clock, store).map_err(|error| {
            Exit::unavailable(format!("identity pool: cannot start: {}", error.message()))
        })?;
        let provisioned = bootstrap::run(&context, &config).await?;
        let context = Arc::new(context);
        Ok(Self {
            context,
            provisioned,
        })
    }

    /// Returns the ids, secrets, and addresses that other processes need.
    #[must_use]
    pub fn provisioned(&self) -> &ProvisionedPools {
        &self.provisioned
    }

    /// Serves the API, the JWK sets, and OpenID Connect discovery until `shutdown` is cancelled and
    /// the requests in flight are answered.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) {
        let limits = Limits {
            linger: Duration::ZERO,
            drain: DRAIN_TIMEOUT,
            ..Limits::default()
        };
        let wire = WireState {
            context: Arc::clone(&self.context),
            access_key_id: self.provisioned.access_key_id.clone(),
            default_pool: self.provisioned.actor.pool_id.clone(),
        };
        let host = self.context.issuer_base.host_str().map(str::to_owned);
        let names: Vec<String> = host.into_iter().collect();
        let hosts = AllowedHosts::of(listener.local_addr().ok(), &names);
        let router = wire::router(wire, hosts);
        postern_service::http::serve(listener, router, limits, shutdown).await;
        self.context.store.close().await;
    }
}

fn build_context(config: &Config, clock: Clock, store: PoolStore) -> ApiResult<PoolContext> {
    let keys = SigningKeys::default();
    for pool in store.pools.all() {
        keys.add_pool(&pool)?;
    }
    Ok(PoolContext {
        clock,
        keys,
        store,
        issuer_base: config.issuer_base.clone(),
        social_proof_key: config.social_proof_key.clone(),
    })
}
