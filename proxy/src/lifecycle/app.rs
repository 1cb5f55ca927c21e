//! The gateway as a whole: built from a configuration, run on sockets that the caller bound.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

use ahash::RandomState;
use arc_swap::ArcSwap;
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::http_proxy;
use postern_common::Clock;
use postern_common::admin::{Check, Health};
use postern_common::config::Env;
use postern_common::exit::Exit;
use postern_common::supervisor::Supervisor;
use postern_common::token::{Verifier, VerifierOptions};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::config::{Config, Stop};
use crate::downstream::connection_limit::Places;
use crate::forwarding::streaming_path::Gateway;
use crate::lifecycle::background_tasks;
use crate::lifecycle::background_tasks::Keepers;
use crate::lifecycle::hot_restart::{Heir, Predecessor};
use crate::lifecycle::listeners::Listeners;
use crate::lifecycle::reload::{Reloader, Source};
use crate::lifecycle::startup_settings::Fixed;
use crate::rate_limiter::Limiter;
use crate::server::acceptor::{Acceptor, Protocol};
use crate::server::connections::Connections;
use crate::state::State;
use crate::state::config_status::ConfigStatus;
use crate::state::runtime_config::Live;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::ids::Ids;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans;
use crate::telemetry::spans::Exporter;
use crate::upstream::NO_ROOTS;

/// A gateway that is ready to run.
pub struct App {
    state: Arc<State>,
    connections: Arc<Connections>,
    protocols: Vec<Protocol>,
    health: Health,
    running: Check,
    fixed: Fixed,
    source: Option<Source>,
    handover: Option<PathBuf>,
    admin_hosts: Vec<String>,
    supervisor: Option<Supervisor>,
    exporter: Option<Exporter>,
}

/// Pingora's own bound on attempts; the upstream's `retries` is what counts.
const MOST_ATTEMPTS: usize = 8;

/// Idle connections that are kept to all upstreams together, for each worker.
const KEPT_CONNECTIONS: usize = 512;

impl App {
    /// Makes the gateway. Nothing is listened on, fetched or resolved before [`App::run`].
    ///
    /// # Errors
    /// Status 64 if a file that it names is not good, 69 if the access log cannot be written.
    pub fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let metrics =
            Metrics::new().map_err(|error| Exit::usage(format!("cannot count: {error}")))?;
        let metrics = Arc::new(metrics);
        let options = VerifierOptions {
            clock: clock.clone(),
            cache_bytes: config.tokens.cache_bytes,
            jwks_dir: config.tokens.jwks_dir.clone(),
            ..VerifierOptions::default()
        };
        let verifier = Verifier::new(config.issuers(&[]), options);
        let protocols = config
            .listen
            .iter()
            .map(Protocol::load)
            .collect::<Result<_, _>>()?;
        let (traces, exporter) = spans::open(config.traces.as_ref(), &metrics.spans_dropped);
        let access = AccessLog::open(&config.access_log, metrics.events_dropped.clone())?;
        let (fixed, handover) = (Fixed::of(&config), config.handover.clone());
        let admin_hosts = config.admin_hosts.clone();
        let (keys, connections) = (config.limits.keys, config.limits.connections);
        let pingora = Arc::new(pingora_settings(&config));
        let live = Live::new(config, None, &metrics, &clock)?;
        metrics.config_version.set(1);
        let status = ConfigStatus {
            version: 1,
            loaded_at: Some(clock.now()),
            ..ConfigStatus::default()
        };
        let state = Arc::new(State {
            live: ArcSwap::from_pointee(live),
            verifier,
            limiter: Limiter::new(keys),
            places: Arc::new(Places::new(connections)),
            response_buffers: Arc::default(),
            metrics,
            access,
            traces,
            ids: Ids::new(),
            clock,
            keys: RandomState::new(),
            born: Instant::now(),
            stopping: AtomicBool::new(false),
            config: Mutex::new(status),
        });
        let proxy = http_proxy(&pingora, Gateway::new(Arc::clone(&state)));
        let connections = Arc::new(Connections::new(proxy, Arc::clone(&state)));
        let health = Health::new();
        let running = health.check("gateway");
        Ok(Self {
            state,
            connections,
            protocols,
            health,
            running,
            fixed,
            source: None,
            handover,
            admin_hosts,
            supervisor: None,
            exporter,
        })
    }

    /// Follows this file while running: a change, or SIGHUP, is a new configuration. SIGUSR1
    /// reopens the access log.
    #[must_use]
    pub fn watch(mut self, path: PathBuf, env: Env) -> Self {
        self.source = Some(Source::new(path, env));
        self
    }

    /// Tells the service manager how this process is, from the moment on when it serves.
    #[must_use]
    pub fn supervised(mut self, supervisor: Option<Supervisor>) -> Self {
        self.supervisor = supervisor;
        self
    }

    /// Serves until the stop begins, and then until no request is in flight or the drain is over.
    pub async fn run(mut self, listeners: Listeners, shutdown: CancellationToken) {
        let background = CancellationToken::new();
        let keepers = self.keep(&background);
        self.serve(listeners, keepers, background, shutdown).await;
    }

    /// The same in the place of a predecessor, once this process is ready: until then the
    /// predecessor serves alone.
    ///
    /// # Errors
    /// Status 69 if it is not ready within 20 s, or told to stop before, or if the predecessor no
    /// longer waits for it; the predecessor then serves on.
    pub async fn take_over(
        mut self,
        listeners: Listeners,
        predecessor: Predecessor,
        shutdown: CancellationToken,
    ) -> Result<(), Exit> {
        let background = CancellationToken::new();
        let keepers = self.keep(&background);
        self.running.set_ok();
        let mut parts = self.health.watch();
        let ready = parts.wait_for(|parts| parts.values().all(Option::is_none));
        let is_ready = tokio::select! {
            () = shutdown.cancelled() => false,
            ready = tokio::time::timeout_at(predecessor.until.into(), ready) => ready.is_ok_and(|ready| ready.is_ok()),
        };
        if !is_ready {
            background.cancel();
            return Err(Exit::unavailable(format!(
                "does not take over: {}",
                self.health
            )));
        }
        // The manager must know its new main process before the old one ends, and only if it ends.
        let relieved = predecessor.relieve(|| {
            if let Some(supervisor) = &self.supervisor {
                supervisor.announce();
            }
        });
        if let Err(error) = relieved.await {
            background.cancel();
            return Err(Exit::unavailable(format!(
                "does not take over: the old process does not wait: {error}"
            )));
        }
        self.serve(listeners, keepers, background, shutdown).await;
        Ok(())
    }

    /// Starts what goes on beside the requests.
    fn keep(&mut self, background: &CancellationToken) -> Keepers {
        let keepers = background_tasks::start(&self.state, &self.health, background);
        let (places, stop) = (Arc::clone(&self.state.places), background.clone());
        keepers.spawn(async move { places.keep(stop).await });
        if let Some(exporter) = self.exporter.take() {
            keepers.spawn(exporter.run(background.clone()));
        }
        if let Some(source) = self.source.take() {
            let tls = self
                .protocols
                .iter()
                .filter_map(|protocol| protocol.tls.clone())
                .collect();
            let (state, pools) = (Arc::clone(&self.state), Arc::clone(&keepers.pools));
            let reloader = Reloader::new(source, state, pools, tls, self.fixed.clone());
            keepers.spawn(reloader.run(background.clone()));
        }
        keepers
    }

    async fn serve(
        self,
        listeners: Listeners,
        keepers: Keepers,
        background: CancellationToken,
        shutdown: CancellationToken,
    ) {
        let (accepting, leaving, taken_over) = (
            CancellationToken::new(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        if let Some(path) = &self.handover {
            match Heir::wait_at(path, &listeners) {
                Ok(heir) => drop(tokio::spawn(
                    heir.run(taken_over.clone(), accepting.clone()),
                )),
                Err(error) => {
                    tracing::error!(%error, path = %path.display(), "cannot be taken over")
                }
            }
        }
        let answering = background.child_token();
        let admin = listeners.admin.map(|listener| {
            let router = admin::router(&self.state, self.health.clone());
            tokio::spawn(admin::serve(
                listener,
                router,
                self.admin_hosts.clone(),
                answering.clone(),
            ))
        });
        let acceptor = Acceptor {
            connections: Arc::clone(&self.connections),
            places: Arc::clone(&self.state.places),
            by_address: Arc::default(),
            tasks: TaskTracker::new(),
            leaving: leaving.clone(),
        };
        let mut doors = JoinSet::new();
        for (listener, protocol) in listeners.public.into_iter().zip(self.protocols) {
            doors.spawn(acceptor.clone().run(listener, protocol, accepting.clone()));
        }
        self.running.set_ok();
        let following = self.supervisor.map(|supervisor| {
            tokio::spawn(supervisor.follow(self.health.clone(), shutdown.clone()))
        });
        tokio::select! {
            () = shutdown.cancelled() => {
                self.running.set_failed("stopping");
                let notice = self.state.live.load().stop.notice;
                if !notice.is_zero() {
                    let _for_no_longer = tokio::time::timeout(notice, taken_over.cancelled()).await;
                }
            }
            () = taken_over.cancelled() => {}
        }
        if taken_over.is_cancelled() {
            // The successor answers operators on the same socket: no probe may hear from us that we
            // stop.
            answering.cancel();
            // Nor is the manager told anything of a process that is not the main one of its unit
            // any more.
            if let Some(following) = following {
                following.abort();
            }
        }
        self.connections.stop_keeping();
        accepting.cancel();
        // What was accepted at the last moment is among the tasks only when its loop has ended.
        while doors.join_next().await.is_some() {}
        drain(&acceptor.tasks, self.state.live.load().stop, &leaving).await;
        background.cancel();
        keepers.finished().await;
        if let Some(admin) = admin {
            let _panicked = admin.await;
        }
    }
}

/// Waits until no connection is left: those that are idle have to leave after a while, the others
/// at last.
async fn drain(tasks: &TaskTracker, stop: Stop, leaving: &CancellationToken) {
    tasks.close();
    let empty = async {
        if tokio::time::timeout(stop.linger, tasks.wait())
            .await
            .is_err()
        {
            leaving.cancel();
            tasks.wait().await;
        }
    };
    if tokio::time::timeout(stop.drain, empty).await.is_err() {
        tracing::warn!(
            connections = tasks.len(),
            drain_s = stop.drain.as_secs(),
            "stopped with requests in flight"
        );
    }
}

fn pingora_settings(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.workers.unwrap_or(1),
        max_retries: MOST_ATTEMPTS,
        upstream_keepalive_pool_size: KEPT_CONNECTIONS,
        // An empty file, so that the authorities of the machine are read only where they are
        // needed.
        ca_file: (!config.needs_roots()).then(|| NO_ROOTS.to_owned()),
        ..ServerConf::default()
    }
}
