//! The assembled gateway: built from a configuration and run on bound sockets.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

use ahash::RandomState;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pingora::server::configuration::ServerConf;
use pingora_proxy::http_proxy;
use postern_core::Clock;
use postern_core::config::Env;
use postern_core::exit::Exit;
use postern_core::health::{Check, Health};
use postern_core::secret::Secret;
use postern_core::token::{Verifier, VerifierOptions};
use postern_http::client_shares::SharedBudget;
use postern_http::compression::MAX_ENCODER_BYTES;
use postern_http::upstream::NO_ROOTS;
use postern_service::service_manager::ServiceManager;
use postern_service::trace::{self, SpanExportTask};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::certificates::{AcmeRenewal, HostGuard};
use crate::config::{Config, ShutdownConfig};
use crate::config_editor::ConfigEditor;
use crate::forwarding::pipeline::GatewayProxy;
use crate::lifecycle::background_tasks;
use crate::lifecycle::background_tasks::BackgroundTasks;
use crate::lifecycle::hot_restart::{ListenerHandoff, PreviousProcess};
use crate::lifecycle::listener_tls;
use crate::lifecycle::reload::{ConfigReloader, ConfigSource};
use crate::lifecycle::socket_activation::Listeners;
use crate::lifecycle::startup_settings::StartupOnlySettings;
use crate::rate_limiter::RateLimiter;
use crate::server::acceptor::{ConnectionAcceptor, ListenerProtocol};
use crate::server::connection_handler::ConnectionHandler;
use crate::state::GatewayState;
use crate::state::config_status::ConfigStatus;
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::ids::IdGenerator;
use crate::telemetry::live_tail::LiveTail;
use crate::telemetry::metrics::GatewayMetrics;

/// Maximum keys that the rate limiter tracks, 16 to 40 bytes each.
const MAX_LIMITED_KEYS: usize = 200_000;

/// A gateway that is ready to run.
pub struct App {
    state: Arc<GatewayState>,
    connections: Arc<ConnectionHandler>,
    protocols: Vec<ListenerProtocol>,
    health: Health,
    running: Check,
    startup_settings: StartupOnlySettings,
    source: Option<ConfigSource>,
    handover: Option<PathBuf>,
    admin_hosts: Vec<String>,
    admin_token: Option<Secret>,
    /// The editor of the configuration file; `None` without a file or without `admin_token`.
    editor: Option<Arc<ConfigEditor>>,
    service_manager: Option<ServiceManager>,
    exporter: Option<SpanExportTask>,
    renewal: Option<AcmeRenewal>,
}

impl App {
    /// Builds the gateway. Sockets, DNS and key requests are not used before [`App::run`].
    ///
    /// # Errors
    /// Status 64 if a file that the configuration names is invalid, 69 if the access log cannot be
    /// opened.
    pub fn build(config: Config, clock: Clock) -> Result<Self, Exit> {
        let metrics = GatewayMetrics::new()
            .map_err(|error| Exit::usage(format!("cannot register metrics: {error}")))?;
        let metrics = Arc::new(metrics);
        let options = VerifierOptions {
            clock: clock.clone(),
            cache_bytes: config.tokens.cache_bytes,
            jwks_dir: config.tokens.jwks_dir.clone(),
            limits: config.identity.token_limits,
            ..VerifierOptions::default()
        };
        let verifier = Verifier::new(config.issuers(&[]), options);
        let protocols = listener_tls::load(&config, &metrics, &clock)?;
        let host_guard = HostGuard::new(listener_tls::of(&protocols));
        let renewal = listener_tls::prepare_acme(&config, &protocols, &metrics, &clock)?;
        let (tracing, dropped) = (config.tracing.as_ref(), &metrics.spans_dropped);
        let (tracer, exporter) = trace::tracer(tracing, "postern-proxy", &clock, dropped)?;
        let access_log = AccessLog::open(&config.access_log, metrics.events_dropped.clone())?;
        let (startup_settings, handover) =
            (StartupOnlySettings::of(&config), config.handover.clone());
        let (admin_hosts, admin_token) = admin_access(&config);
        let connections = config.limits.connections;
        let response_buffer_bytes = config.limits.http.response_buffer_bytes;
        let pingora = Arc::new(pingora_settings(&config));
        let runtime_config = RuntimeConfig::new(config, None, &metrics)?;
        metrics.config.version.set(1);
        metrics.config.last_reload_successful.set(1);
        let status = ConfigStatus {
            version: 1,
            loaded_at: Some(clock.now()),
            ..ConfigStatus::default()
        };
        let state = Arc::new(GatewayState {
            runtime_config: ArcSwap::from_pointee(runtime_config),
            verifier,
            limiter: RateLimiter::new(MAX_LIMITED_KEYS),
            connection_limit: Arc::new(Semaphore::new(connections)),
            response_buffers: SharedBudget::new(response_buffer_bytes),
            encoders: SharedBudget::new(MAX_ENCODER_BYTES),
            live_tail: LiveTail::new(metrics.live_tail.clone()),
            metrics,
            access_log,
            tracer,
            ids: IdGenerator::default(),
            clock,
            key_seed: RandomState::new(),
            started_at: Instant::now(),
            is_draining: AtomicBool::new(false),
            config_status: Mutex::new(status),
            host_guard,
        });
        let proxy = http_proxy(&pingora, GatewayProxy::new(Arc::clone(&state)));
        let connections = Arc::new(ConnectionHandler::new(proxy, Arc::clone(&state)));
        let health = Health::new();
        let running = health.check("gateway");
        Ok(Self {
            state,
            connections,
            protocols,
            health,
            running,
            startup_settings,
            source: None,
            handover,
            admin_hosts,
            admin_token,
            editor: None,
            service_manager: None,
            exporter,
            renewal,
        })
    }

    /// Follows the configuration file: a modification, or SIGHUP, triggers a reload. SIGUSR1
    /// reopens the access log.
    #[must_use]
    pub fn watch(mut self, path: PathBuf, env: Env) -> Self {
        self.source = Some(ConfigSource::new(path, env));
        self
    }

    /// Reports the state to the service manager once the gateway serves.
    #[must_use]
    pub fn supervised(mut self, service_manager: Option<ServiceManager>) -> Self {
        self.service_manager = service_manager;
        self
    }

    /// Serves until `shutdown`, then until no request is in flight or the drain time is over.
    pub async fn run(mut self, listeners: Listeners, shutdown: CancellationToken) {
        let background = CancellationToken::new();
        let tasks = self.start_background(&background);
        self.serve(listeners, tasks, background, shutdown).await;
    }

    /// Serves in place of a previous process, which serves alone until this one is ready.
    ///
    /// # Errors
    /// Status 69 if this process is not ready within 20 s or is stopped before, or if the previous
    /// process no longer waits for it. The previous process then continues to serve.
    pub async fn take_over(
        mut self,
        listeners: Listeners,
        previous: PreviousProcess,
        shutdown: CancellationToken,
    ) -> Result<(), Exit> {
        let background = CancellationToken::new();
        let tasks = self.start_background(&background);
        self.running.set_ok();
        let mut parts = self.health.watch();
        let ready = parts.wait_for(|parts| parts.values().all(Option::is_none));
        let is_ready = tokio::select! {
            () = shutdown.cancelled() => false,
            ready = tokio::time::timeout_at(previous.ready_deadline.into(), ready) => ready.is_ok_and(|ready| ready.is_ok()),
        };
        if !is_ready {
            background.cancel();
            return Err(Exit::unavailable(format!(
                "hot restart aborted, not ready: {}",
                self.health
            )));
        }
        // The manager must learn of its new main process before the previous one exits, and only if
        // it does.
        tracing::info!("hot restart: ready, taking over");
        let committed = previous.commit(|| {
            if let Some(service_manager) = &self.service_manager {
                service_manager.notify_ready();
            }
        });
        if let Err(error) = committed.await {
            background.cancel();
            return Err(Exit::unavailable(format!("hot restart aborted: {error}")));
        }
        tracing::info!("hot restart: took over");
        self.serve(listeners, tasks, background, shutdown).await;
        Ok(())
    }

    fn start_background(&mut self, background: &CancellationToken) -> BackgroundTasks {
        let tasks = background_tasks::start(&self.state, &self.health, background);
        if let Some(exporter) = self.exporter.take() {
            tasks.spawn(exporter.run(background.clone()));
        }
        listener_tls::start(self.renewal.take(), &tasks, background);
        if let Some(source) = self.source.take() {
            let tls = listener_tls::of(&self.protocols);
            let (state, pools) = (Arc::clone(&self.state), Arc::clone(&tasks.pools));
            let settings = &self.startup_settings;
            let editor = self.admin_token.as_ref();
            let editor = editor.and_then(|_| source.editor(settings, &state));
            let (editor, edited) = editor.unzip();
            self.editor = editor.map(Arc::new);
            let edited = edited.unwrap_or_else(|| mpsc::channel(1).1);
            let (settings, rejection) =
                (settings.clone(), self.health.degradation("configuration"));
            let mut reloader = ConfigReloader::new(source, state, pools, tls, settings, rejection);
            reloader.editor = self.editor.clone();
            tasks.spawn(reloader.run(background.clone(), edited));
        }
        tasks
    }

    /// Listens for a process that takes the sockets over, if a hot restart socket is configured.
    fn offer_sockets(
        &self,
        listeners: &Listeners,
        handed_over: &CancellationToken,
        stop_accepting: &CancellationToken,
    ) {
        let Some(path) = &self.handover else { return };
        match ListenerHandoff::listen(path, listeners) {
            Ok(handoff) => drop(tokio::spawn(
                handoff.run(handed_over.clone(), stop_accepting.clone()),
            )),
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "hot restart socket unavailable");
            }
        }
    }

    async fn serve(
        self,
        listeners: Listeners,
        tasks: BackgroundTasks,
        background: CancellationToken,
        shutdown: CancellationToken,
    ) {
        let [stop_accepting, close_idle, handed_over] = <[CancellationToken; 3]>::default();
        self.offer_sockets(&listeners, &handed_over, &stop_accepting);
        log_listening(&self.state, &listeners, &self.protocols);
        let admin_stop = background.child_token();
        let admin = listeners.admin.map(|listener| {
            let token = self.admin_token.as_ref();
            let editor = self.editor.as_ref();
            let router = admin::router(&self.state, &self.health, editor, token, &admin_stop);
            let hosts = self.admin_hosts.clone();
            tokio::spawn(admin::serve(listener, router, hosts, admin_stop.clone()))
        });
        let acceptor = ConnectionAcceptor {
            connections: Arc::clone(&self.connections),
            connection_limit: Arc::clone(&self.state.connection_limit),
            connections_by_address: Arc::default(),
            tasks: TaskTracker::new(),
            close_idle: close_idle.clone(),
        };
        let mut accept_loops = JoinSet::new();
        for (listener, protocol) in listeners.public.into_iter().zip(self.protocols) {
            let acceptor = acceptor.clone();
            accept_loops.spawn(acceptor.run(listener, protocol, stop_accepting.clone()));
        }
        self.running.set_ok();
        let supervisor_task = self.service_manager.map(|service_manager| {
            tokio::spawn(service_manager.report_health(self.health.clone(), shutdown.clone()))
        });
        wait_for_stop(&self.state, &self.running, &shutdown, &handed_over).await;
        if handed_over.is_cancelled() {
            // The new process serves the same admin socket: probes must not be told by this one
            // that it is stopping.
            admin_stop.cancel();
            // This process is no longer the main process of its unit and must not notify the
            // manager.
            if let Some(supervisor_task) = supervisor_task {
                supervisor_task.abort();
            }
        }
        let stopping_since = Instant::now();
        self.connections.disable_keep_alive();
        stop_accepting.cancel();
        // Connections accepted last are tracked only after their accept loop has ended.
        while accept_loops.join_next().await.is_some() {}
        tracing::info!(
            connections = acceptor.tasks.len(),
            handed_over = handed_over.is_cancelled(),
            "stopped accepting connections, draining"
        );
        let stop = self.state.runtime_config.load().shutdown;
        drain(&acceptor.tasks, stop, &close_idle).await;
        background.cancel();
        tasks.wait().await;
        if let Some(admin) = admin {
            let _panicked = admin.await;
        }
        let elapsed_ms = stopping_since.elapsed().as_millis();
        tracing::info!(elapsed_ms, "shutdown completed");
    }
}

/// Logs the version and the configuration with each address that the gateway listens on.
fn log_listening(state: &GatewayState, listeners: &Listeners, protocols: &[ListenerProtocol]) {
    let status = state.config_status.lock().clone();
    let config_file = status.file.as_deref().unwrap_or_default();
    let config_hash = status.hash.as_deref().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let public = listeners.public.iter().zip(protocols);
    let name = |protocol: &ListenerProtocol| protocol.tls.as_ref().map_or("http", |_| "https");
    let public = public.map(|(listener, protocol)| (listener, name(protocol)));
    let admin = listeners.admin.iter().map(|listener| (listener, "admin"));
    for (listener, protocol) in public.chain(admin) {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, protocol, version, config_file, config_hash, "listening");
        }
    }
}

/// Waits for the shutdown and its notice period, or until another process has taken over.
async fn wait_for_stop(
    state: &GatewayState,
    running: &Check,
    shutdown: &CancellationToken,
    handed_over: &CancellationToken,
) {
    tokio::select! {
        () = shutdown.cancelled() => {
            running.set_failed("stopping");
            let ShutdownConfig { notice, drain, .. } = state.runtime_config.load().shutdown;
            let (notice_s, drain_s) = (notice.as_secs_f64(), drain.as_secs_f64());
            tracing::info!(notice_s, drain_s, "shutdown started");
            if !notice.is_zero() {
                let _taken_over = tokio::time::timeout(notice, handed_over.cancelled()).await;
            }
        }
        () = handed_over.cancelled() => {}
    }
}

/// Waits until no connection is open. Idle connections are closed after `linger`; waiting ends
/// after `drain`.
async fn drain(tasks: &TaskTracker, stop: ShutdownConfig, close_idle: &CancellationToken) {
    tasks.close();
    let empty = async {
        let lingering = tokio::time::timeout(stop.linger, tasks.wait()).await;
        if lingering.is_err() {
            close_idle.cancel();
            tasks.wait().await;
        }
    };
    if tokio::time::timeout(stop.drain, empty).await.is_err() {
        tracing::warn!(
            connections = tasks.len(),
            drain_s = stop.drain.as_secs(),
            "drain timeout exceeded, closing connections"
        );
    }
}

fn admin_access(config: &Config) -> (Vec<String>, Option<Secret>) {
    match &config.admin {
        Some(admin) => (admin.hosts.clone(), admin.token.clone()),
        None => (Vec::new(), None),
    }
}

fn pingora_settings(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.workers.unwrap_or(1),
        // Pingora's own connector is not used, so that it need not read the system's.
        ca_file: Some(NO_ROOTS.to_owned()),
        ..ServerConf::default()
    }
}
