//! The server as a whole.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_common::database::{Database, DatabaseOptions};
use postern_common::exit::Exit;
use postern_common::http::{AllowedHosts, Limits};
use postern_common::{Clock, admin};
#[cfg(test)]
use prometheus::IntCounter;
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::net::TcpListener;

use crate::bootstrap::{self, Provisioned};
use crate::config::Config;
use crate::directory::Directory;
use crate::fault::Fault;
use crate::hasher::Hasher;
use crate::server::Server;
use crate::signing::Keys;
use crate::store::Store;
use crate::wire::{self, Wire};

/// How often keys are looked after and what has expired is taken out.
const ROUND: Duration = Duration::from_secs(60);

/// How long a stop waits for calls in flight.
const DRAIN: Duration = Duration::from_secs(1);

/// The sockets that the server listens on; the caller owns them.
#[derive(Debug)]
pub struct Listeners {
    /// The API, the keys and discovery.
    pub public: TcpListener,
    /// Liveness, readiness and metrics.
    pub admin: Option<TcpListener>,
}

/// The identity pool, ready to run.
pub struct App {
    server: Arc<Server>,
    provisioned: Provisioned,
    key_max_age: Duration,
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
    /// Opens the store and makes what the first start makes.
    ///
    /// # Errors
    /// Status 64 for a database URL that names no store; 69 when the store is away or the data
    /// folder cannot be written.
    pub async fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let database = Database::open(
            &config.database,
            DatabaseOptions::new("postern-identity-pool"),
        )
        .await?;
        let store = Store::open(database).await?;
        let server = Box::pin(assemble(&config, clock, store))
            .await
            .map_err(|fault| refuse(&fault))?;
        let provisioned = bootstrap::run(&server, &config).await?;
        let server = Arc::new(server);
        tokio::spawn(first_turn(Arc::clone(&server)));
        Ok(Self {
            server,
            provisioned,
            key_max_age: config.key_max_age,
        })
    }

    /// Ids, secrets and addresses that the other processes need.
    #[must_use]
    pub fn provisioned(&self) -> &Provisioned {
        &self.provisioned
    }

    /// How many passwords were hashed.
    #[cfg(test)]
    pub(crate) fn hashes(&self) -> IntCounter {
        self.server.hasher.hashes().clone()
    }

    /// Returns when every pool has its keys: at once, but at the first start, which makes them
    /// meanwhile.
    ///
    /// # Errors
    /// 69 if that takes longer than ten seconds; the log tells why.
    pub fn keys_are_made(&self) -> impl Future<Output = Result<(), Exit>> + Send + 'static {
        let server = Arc::clone(&self.server);
        async move { server.keys.wait().await.map_err(|fault| refuse(&fault)) }
    }

    /// Serves until the stop begins and the requests in flight are answered.
    pub async fn run(self, listeners: Listeners, shutdown: CancellationToken) {
        let (registry, calls) = metrics(&self.server);
        let limits = Limits {
            linger: Duration::ZERO,
            drain: DRAIN,
            ..Limits::default()
        };
        let wire = Wire {
            server: Arc::clone(&self.server),
            access_key: bootstrap::access_key(&self.provisioned),
            max_age_s: self.key_max_age.as_secs(),
            default_pool: self.provisioned.actor.pool_id.clone(),
            calls: calls.clone(),
        };
        let health = admin::Health::new();
        let database = health.check("database");
        database.set_ok();
        let admin = listeners.admin.map(|listener| {
            let router = admin::router(health, registry);
            let stop = shutdown.clone();
            tokio::spawn(async move { admin::serve(listener, router, limits, &[], stop).await })
        });
        let rounds = tokio::spawn(look_after(
            Arc::clone(&self.server),
            database,
            shutdown.clone(),
        ));
        let names: Vec<String> = self
            .server
            .issuer_base
            .host_str()
            .map(str::to_owned)
            .into_iter()
            .collect();
        let hosts = AllowedHosts::of(listeners.public.local_addr().ok(), &names);
        let router = wire::router(wire, hosts);
        postern_common::http::serve(listeners.public, router, limits, shutdown).await;
        for task in [Some(rounds), admin].into_iter().flatten() {
            // A task that panicked has told so already; there is nothing left to stop.
            let _ = task.await;
        }
        self.server.store.database().close().await;
    }
}

/// The registry of this server and the counter of its calls.
fn metrics(server: &Server) -> (Registry, IntCounterVec) {
    let options = Opts::new(
        "postern_identity_pool_calls_total",
        "Calls by operation and outcome.",
    );
    let calls = IntCounterVec::new(options, &["operation", "outcome"])
        .expect("the name and labels are valid");
    let registry = Registry::new();
    registry
        .register(Box::new(calls.clone()))
        .expect("the registry is new");
    registry
        .register(Box::new(server.hasher.hashes().clone()))
        .expect("no other has this name");
    (registry, calls)
}

async fn assemble(config: &Config, clock: Clock, store: Store) -> Result<Server, Fault> {
    Ok(Server {
        clock,
        directory: Directory::load(&store).await?,
        keys: Keys::load(&store, config.key_period).await?,
        store,
        hasher: Hasher::start(config.hashing)?,
        delivery: config.code_delivery.clone(),
        issuer_base: config.issuer_base.clone(),
        region: config.region.clone(),
    })
}

fn refuse(fault: &Fault) -> Exit {
    Exit::unavailable(format!("identity pool: cannot start: {}", fault.message()))
}

/// Makes the keys of a first start, which takes a while, and those whose turn came while the server
/// was down. Whoever needs a key waits for it; the rest of the process goes on.
async fn first_turn(server: Arc<Server>) {
    if let Err(fault) = turn(&server).await {
        tracing::error!(
            cause = fault.message(),
            "the identity pool could not make its keys"
        );
    }
}

async fn turn(server: &Server) -> Result<(), Fault> {
    server
        .keys
        .turn(
            &server.store,
            &server.directory.pool_ids(),
            server.clock.now(),
        )
        .await
}

/// Turns keys and sweeps until the stop begins. What fails is tried again a minute later.
async fn look_after(server: Arc<Server>, database: admin::Check, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(ROUND) => {}
        }
        match round(&server).await {
            Ok(()) => database.set_ok(),
            Err(fault) => {
                database.set_failed(fault.message());
                tracing::warn!(
                    cause = fault.message(),
                    "the identity pool could not look after its keys"
                );
            }
        }
    }
}

async fn round(server: &Server) -> Result<(), Fault> {
    turn(server).await?;
    let swept = server.store.sweep(server.clock.now()).await?;
    tracing::debug!(swept, "expired rows taken out");
    Ok(())
}
