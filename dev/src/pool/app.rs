//! Assembles and serves the server.

use std::sync::Arc;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_service::http::{AllowedHosts, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::pool::bootstrap::{self, ProvisionedPools};
use crate::pool::config::Config;
use crate::pool::context::PoolContext;
use crate::pool::error::ApiError;
use crate::pool::store::PoolStore;
use crate::pool::wire;
use crate::web::SERVER_LIMITS;

/// An identity pool that is ready to serve.
pub struct App {
    pub(super) context: PoolContext,
    pub(super) provisioned: ProvisionedPools,
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
    /// Loads the store and provisions what is missing.
    ///
    /// # Errors
    /// Exits with status 69 if the store is unavailable or the data folder is not writable.
    pub async fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let failed = |error: ApiError| {
            Exit::unavailable(format!("identity pool: cannot start: {}", error.message))
        };
        let store = PoolStore::load(&config.sqlite, clock.now()).await;
        let context = PoolContext {
            store: store.map_err(failed)?,
            clock,
            endpoint: config.issuer_base.as_str().trim_end_matches('/').to_owned(),
            social_proof_key: config.social_proof_key,
            user_access_token_s: config.access_token_lifetime.as_secs(),
        };
        let credentials = bootstrap::load_credentials(&config.data_dir)?;
        let provisioned = Box::pin(bootstrap::provision(&context, credentials)).await;
        Ok(Self {
            provisioned: provisioned.map_err(failed)?,
            context,
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
        let hosts = AllowedHosts::of(listener.local_addr().ok(), &[]);
        let router = wire::router(Arc::new(self), hosts);
        serve(listener, router, SERVER_LIMITS, shutdown).await;
    }
}
