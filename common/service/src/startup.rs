//! Start of a service process. While the database is unavailable, the process waits, answers 503
//! and is not ready.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use axum::routing::any;
use prometheus::Registry;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::admin;
use crate::http::{Limits, bind, serve};
use crate::process_metrics::register_info;
use crate::service_manager::ServiceManager;
use postern_core::backoff::Backoff;
use postern_core::config::Env;
use postern_core::dependency::Availability;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_core::problem::{Code, Problem};

/// Delays between attempts to connect to the database.
const CONNECT_RETRY_DELAYS: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// The sockets on which a service listens.
#[derive(Debug)]
pub struct Listeners {
    /// For requests of the gateway and of services.
    pub public: TcpListener,
    /// For `/livez`, `/readyz` and `/metrics`; `None` if the caller serves them.
    pub admin: Option<TcpListener>,
}

/// The configuration of a process, as far as replicas and operators compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigOrigin {
    /// The configuration file, or the name of the built-in one.
    pub file: String,
    /// The first 16 hexadecimal digits of the SHA-256 digest of the file; empty if it cannot be
    /// read. Replicas with equal files have equal hashes.
    pub hash: String,
}

/// A service process that has bound its sockets and reached its database.
#[derive(Debug)]
pub struct ServiceProcess {
    listeners: Listeners,
    shutdown: CancellationToken,
    service_manager: Option<ServiceManager>,
}

// === impl ConfigOrigin ===

impl ConfigOrigin {
    /// Describes a file.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        let text = std::fs::read(path).ok();
        Self {
            file: path.display().to_string(),
            hash: text.map_or_else(String::new, |text| short_digest(&text)),
        }
    }

    /// Exports `postern_config_info`, whose label is the hash, so that replicas can be compared.
    pub fn export(&self, registry: &Registry) {
        let help = "1, labelled with the hash of the configuration file.";
        let about = ["postern_config_info", help];
        if let Err(error) = register_info(registry, about, "hash", &self.hash) {
            tracing::debug!(%error, "configuration hash not exported");
        }
    }

    /// Logs each SIGHUP of a program that reads its configuration at the start only, and whether
    /// the file has changed since. What can be reloaded, such as templates, waits for the signal
    /// itself.
    pub fn log_hangups(self) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            return;
        };
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                let file = &*self.file;
                match Self::of_file(file.as_ref()).hash == self.hash {
                    true => tracing::info!(file, "configuration unchanged"),
                    false => tracing::warn!(file, "configuration change needs a restart"),
                }
            }
        });
    }

    /// Describes a configuration that is part of the program.
    #[must_use]
    pub fn built_in(name: &str, text: &str) -> Self {
        Self {
            file: format!("{name} (built in)"),
            hash: short_digest(text.as_bytes()),
        }
    }
}

fn short_digest(text: &[u8]) -> String {
    hex::encode(&Sha256::digest(text)[..8])
}

// === impl ServiceProcess ===

impl ServiceProcess {
    /// Binds the public and the admin socket, and waits for the database, which `probe` calls once.
    /// Returns `None` if `shutdown`, see [`crate::signals::install`], is cancelled first.
    ///
    /// # Errors
    /// Those of `probe`; status 69 if a socket cannot be bound.
    pub async fn start(
        probe: impl AsyncFn() -> Result<Availability, Exit>,
        [public, admin]: [SocketAddr; 2],
        env: &Env,
        shutdown: CancellationToken,
    ) -> Result<Option<Self>, Exit> {
        let (public, admin) = (bind(public).await?, bind(admin).await?);
        let service_manager = ServiceManager::from_env(env);
        let manager = service_manager.as_ref();
        let is_available = wait_for_database(&probe, &public, &admin, manager, &shutdown).await?;
        let admin = Some(admin);
        Ok(is_available.then_some(Self {
            listeners: Listeners { public, admin },
            shutdown,
            service_manager,
        }))
    }

    /// Logs that the service listens, and reports its health to the service manager from now on.
    /// Returns the sockets, and the token that a termination signal cancels.
    #[must_use]
    pub fn run_with(self, health: Health, config: &ConfigOrigin) -> (Listeners, CancellationToken) {
        self.log_listening(config);
        config.clone().log_hangups();
        tokio::spawn(log_shutdown(self.shutdown.clone()));
        if let Some(manager) = self.service_manager {
            tokio::spawn(manager.report_health(health, self.shutdown.clone()));
        }
        (self.listeners, self.shutdown)
    }

    /// Logs the addresses, the version and the configuration.
    fn log_listening(&self, config: &ConfigOrigin) {
        let address = |listener: &TcpListener| {
            let address = listener.local_addr();
            address.map_or_else(|_| String::new(), |address| address.to_string())
        };
        tracing::info!(
            address = address(&self.listeners.public),
            admin = self.listeners.admin.as_ref().map(address),
            version = env!("CARGO_PKG_VERSION"),
            config_file = config.file,
            config_hash = config.hash,
            "listening"
        );
    }
}

async fn log_shutdown(shutdown: CancellationToken) {
    shutdown.cancelled().await;
    tracing::info!("shutdown started, no new requests accepted");
}

/// Waits until the database accepts connections. Returns `false` if `stop` is cancelled first.
///
/// While it waits, `public` answers every request with 503 `unavailable`, and `/readyz` on `admin`
/// reports the reason.
///
/// # Errors
/// Those of `probe`: waiting would not help if the database rejects the connection. Status 69 if a
/// socket cannot be duplicated.
async fn wait_for_database(
    probe: &impl AsyncFn() -> Result<Availability, Exit>,
    public: &TcpListener,
    admin: &TcpListener,
    service_manager: Option<&ServiceManager>,
    stop: &CancellationToken,
) -> Result<bool, Exit> {
    let Availability::Unavailable(reason) = probe().await? else {
        return Ok(true);
    };
    postern_core::log_outage!("database", %reason, "database unavailable, waiting");
    if let Some(service_manager) = service_manager {
        service_manager.notify_ready();
    }
    let health = Health::new();
    let check = health.check("database");
    check.set_failed(reason);
    let (waiting, mut servers) = (stop.child_token(), JoinSet::new());
    let unavailable = || any(|| async { Problem::new(Code::Unavailable).retry_after(1) });
    let unavailable = Router::new()
        .route("/", unavailable())
        .route("/{*path}", unavailable());
    let admin_router = admin::router(health, Registry::new());
    for (listener, router) in [(public, unavailable), (admin, admin_router)] {
        let listener = duplicate_listener(listener)?;
        servers.spawn(serve(listener, router, Limits::default(), waiting.clone()));
    }
    let (mut is_available, mut delays) = (false, CONNECT_RETRY_DELAYS.delays());
    while !is_available && delays.wait(stop).await {
        let attempt = delays.failures();
        match probe().await? {
            Availability::Available => {
                tracing::info!(attempt, "database available");
                is_available = true;
            }
            Availability::Unavailable(reason) => {
                postern_core::log_outage!("database", %reason, attempt, "database still unavailable");
                check.set_failed(reason);
            }
        }
    }
    waiting.cancel();
    servers.join_all().await;
    Ok(is_available)
}

/// Duplicates the file descriptor, so that the caller's listener stays open.
fn duplicate_listener(listener: &TcpListener) -> Result<TcpListener, Exit> {
    let copy = listener.as_fd().try_clone_to_owned();
    let copy = copy.and_then(|copy| TcpListener::from_std(copy.into()));
    copy.map_err(|error| Exit::unavailable(format!("cannot duplicate a listening socket: {error}")))
}
