//! Configuration reload: a new configuration is read, tested and prepared, and then activated
//! atomically.
//!
//! An invalid file changes nothing. The error is reported in the log, the metrics and
//! `/config/status`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use parking_lot::{Mutex, MutexGuard};
use postern_common::Clock;
use postern_common::config::{ConfigFiles, Env, IncludeCache};
use postern_common::exit::Exit;
use postern_common::token::Issuer;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::certificates::ServerTls;
use crate::config::{Config, read_files};
use crate::config_editor::{CheckRules, ConfigEditor, ReloadRequests};
use crate::lifecycle::background_tasks::PoolTasks;
use crate::lifecycle::file_checks::check_files;
use crate::lifecycle::idle_priority_thread::IdlePriorityThread;
use crate::lifecycle::startup_settings::StartupOnlySettings;
use crate::state::GatewayState;
use crate::state::config_status::ConfigStatus;
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::metrics::GatewayMetrics;

/// Interval at which the file is checked for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Niceness of the reload thread, which gives it about a tenth of the CPU share of a worker.
const RELOAD_THREAD_NICENESS: i32 = 10;
/// Time for which preparation is left to the [`IdlePriorityThread`]: several times the time that
/// ten thousand routes take on an idle core. After it, the reload thread prepares the
/// configuration.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_millis(250);

/// Maximum mistakes of a rejected file that are logged.
const MAX_LOGGED_MISTAKES: usize = 20;

/// The configuration file, with the files that it includes, and the environment.
#[derive(Debug)]
pub(crate) struct ConfigSource {
    path: PathBuf,
    env: Env,
    includes: Mutex<IncludeCache>,
    /// The files at startup.
    initial: Option<ConfigFiles>,
}

/// Watches the configuration files and activates changes.
pub(crate) struct ConfigReloader {
    source: Arc<ConfigSource>,
    state: Arc<GatewayState>,
    pools: Arc<PoolTasks>,
    tls: Vec<Arc<ServerTls>>,
    /// The startup-only settings with which the process started.
    startup_settings: StartupOnlySettings,
    /// Hash of the files that were tried last.
    last_tried: Mutex<Option<u64>>,
    /// Previous configurations that requests still use. They are dropped on the idle thread,
    /// because dropping ten thousand routes takes milliseconds.
    retired: Mutex<Vec<Arc<RuntimeConfig>>>,
    /// The editor of the admin listener, which records what becomes active.
    editor: Option<Arc<ConfigEditor>>,
}

/// A request to check the file.
struct ReloadRequest {
    forced: bool,
    done: oneshot::Sender<()>,
}

/// The result of checking the file.
enum ReloadOutcome {
    /// The text is the one that was tried last.
    Unchanged,
    /// The file cannot be read.
    Unreadable(Exit),
    /// The configuration is invalid. Contains the hash of the text.
    Invalid(u64, Exit),
    /// The configuration can be activated. Contains the hash of the text.
    Valid(u64, Box<PreparedConfig>),
}

/// A configuration that is ready to be activated.
struct PreparedConfig {
    files: ConfigFiles,
    startup_settings: StartupOnlySettings,
    issuers: Vec<Issuer>,
    runtime_config: RuntimeConfig,
}

impl ReloadOutcome {
    /// Reads a configuration. A panic makes it invalid, so that it is not tried again every second.
    fn of(hash: u64, read: impl FnOnce() -> Result<PreparedConfig, Exit>) -> Self {
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(prepared)) => Self::Valid(hash, Box::new(prepared)),
            Ok(Err(exit)) => Self::Invalid(hash, exit),
            Err(_) => Self::Invalid(
                hash,
                Exit::usage("reading the configuration panicked, which is a defect of the gateway"),
            ),
        }
    }
}

impl ConfigSource {
    pub(crate) fn new(path: PathBuf, env: Env) -> Self {
        let mut source = Self {
            path,
            env,
            includes: Mutex::default(),
            initial: None,
        };
        source.initial = source.files().ok();
        source
    }

    /// Creates the editor of these files.
    pub(crate) fn editor(
        &self,
        startup_settings: &StartupOnlySettings,
        state: &Arc<GatewayState>,
    ) -> Option<(ConfigEditor, ReloadRequests)> {
        let history = startup_settings.config_history();
        let startup_settings = startup_settings.clone();
        let rules = CheckRules {
            env: self.env.clone(),
            check_files,
            restart_needed: Arc::new(move |config: &Config| {
                startup_settings.differences(&StartupOnlySettings::of(config))
            }),
        };
        let files = self.initial.clone()?;
        let (path, state) = (self.path.clone(), Arc::clone(state));
        Some(ConfigEditor::new(path, history, rules, files, state))
    }

    fn files(&self) -> Result<ConfigFiles, Exit> {
        read_files(&self.path, &mut self.includes.lock())
    }

    /// Reads the files and prepares the configuration, unless their hash is `last_tried`. Has no side
    /// effects.
    fn check(
        &self,
        last_tried: Option<u64>,
        before: &RuntimeConfig,
        metrics: &GatewayMetrics,
        clock: &Clock,
    ) -> ReloadOutcome {
        let files = match self.files() {
            Ok(files) => files,
            Err(exit) => return ReloadOutcome::Unreadable(exit),
        };
        let hash = files.hash();
        if last_tried == Some(hash) {
            return ReloadOutcome::Unchanged;
        }
        ReloadOutcome::of(hash, || self.prepare(files, before, metrics, clock))
    }

    fn prepare(
        &self,
        files: ConfigFiles,
        before: &RuntimeConfig,
        metrics: &GatewayMetrics,
        clock: &Clock,
    ) -> Result<PreparedConfig, Exit> {
        let config = files.decode(|root| Config::read(root, &self.env))?;
        let startup_settings = StartupOnlySettings::of(&config);
        let issuers = config.issuers(&before.route_table.routes);
        let runtime_config = RuntimeConfig::new(config, Some(before), metrics, clock)?;
        Ok(PreparedConfig {
            files,
            startup_settings,
            issuers,
            runtime_config,
        })
    }
}

impl ReloadRequest {
    fn new(forced: bool) -> (Self, oneshot::Receiver<()>) {
        let (done, completed) = oneshot::channel();
        (Self { forced, done }, completed)
    }
}

impl ConfigReloader {
    pub(crate) fn new(
        source: ConfigSource,
        state: Arc<GatewayState>,
        pools: Arc<PoolTasks>,
        tls: Vec<Arc<ServerTls>>,
        startup_settings: StartupOnlySettings,
    ) -> Self {
        let initial = source.initial.as_ref();
        let last_tried = initial.map(ConfigFiles::hash);
        let hash = last_tried.map(|hash| format!("{hash:016x}"));
        let included = initial.into_iter().flat_map(ConfigFiles::included);
        let included: Vec<String> = included.map(str::to_owned).collect();
        if let Some(hash) = &hash {
            state.metrics.config.set_hash(hash);
        }
        let mut status = state.config_status.lock();
        status.file = Some(source.path.display().to_string());
        status.hash = hash;
        status.included_files = included;
        drop(status);
        Self {
            source: Arc::new(source),
            state,
            pools,
            tls,
            startup_settings,
            last_tried: Mutex::new(last_tried),
            retired: Mutex::default(),
            editor: None,
        }
    }

    /// Records what becomes active in the history of an editor.
    pub(crate) fn recorded_by(mut self, editor: Option<Arc<ConfigEditor>>) -> Self {
        self.editor = editor;
        self
    }

    /// Follows the file, SIGHUP (configuration and certificates), SIGUSR1 (access log) and the
    /// requests of an editor until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken, mut edited: ReloadRequests) {
        let (Ok(mut hangup), Ok(mut user)) = (
            signal(SignalKind::hangup()),
            signal(SignalKind::user_defined1()),
        ) else {
            tracing::error!("signal handler registration failed, configuration reload disabled");
            return;
        };
        let state = Arc::clone(&self.state);
        let (requests, ended) = match self.start_thread() {
            Ok(watching) => watching,
            Err(error) => {
                tracing::error!(%error, "reload thread start failed, configuration reload disabled");
                return;
            }
        };
        loop {
            let mut requester = None;
            let forced = tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = edited.recv() => {
                    requester = Some(done);
                    false
                }
                _ = user.recv() => {
                    state.access_log.reopen();
                    continue;
                }
                _ = hangup.recv() => true,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            let (request, completed) = ReloadRequest::new(forced);
            if requests.send(request).is_err() || completed.await.is_err() {
                tracing::error!("configuration reload panicked");
            }
            if let Some(done) = requester {
                let _gone = done.send(());
            }
        }
        drop(requests);
        // The thread holds the access log, whose last lines are written when it is dropped.
        let _ = ended.await;
    }

    /// Starts the reload thread, which ends when the sender is dropped. The receiver is notified
    /// when it has ended.
    fn start_thread(self) -> std::io::Result<(mpsc::Sender<ReloadRequest>, oneshot::Receiver<()>)> {
        let (requests, received) = mpsc::channel::<ReloadRequest>();
        let (end, ended) = oneshot::channel();
        let (runtime, idle_thread) = (Handle::current(), IdlePriorityThread::start()?);
        thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || {
                let _runtime = runtime.enter();
                if let Err(error) = rustix::process::nice(RELOAD_THREAD_NICENESS) {
                    tracing::warn!(%error, "reload thread priority not lowered");
                }
                if let Some(editor) = &self.editor {
                    editor.record_start();
                }
                for ReloadRequest { forced, done } in received {
                    // On a panic, the requester is notified by its dropped channel.
                    if catch_unwind(AssertUnwindSafe(|| self.poll(forced, &idle_thread))).is_ok() {
                        let _ = done.send(());
                    }
                }
                drop(self);
                let _ = end.send(());
            })?;
        Ok((requests, ended))
    }

    /// Reloads the certificates and API keys, and the configuration if its file or a file that it names has
    /// changed.
    fn poll(&self, forced: bool, idle_thread: &IdlePriorityThread) {
        self.reload_certificates(forced);
        self.reload_api_keys();
        let current = self.state.runtime_config.load_full();
        let renewed = current.has_changed_files()
            || current.pools.iter().any(|pool| pool.has_changed_files());
        drop(current);
        self.reload(forced || renewed, idle_thread);
        let mut retired = self.retired.lock();
        for unused in
            retired.extract_if(.., |runtime_config| Arc::strong_count(runtime_config) == 1)
        {
            idle_thread.spawn(move || drop(unused));
        }
    }

    /// Loads the file if it has changed since the last attempt, or if `forced`.
    fn reload(&self, forced: bool, idle_thread: &IdlePriorityThread) {
        let last_tried = if forced { None } else { *self.last_tried() };
        let (source, before) = (
            Arc::clone(&self.source),
            self.state.runtime_config.load_full(),
        );
        let (metrics, clock) = (Arc::clone(&self.state.metrics), self.state.clock.clone());
        match idle_thread.run(IDLE_THREAD_TIMEOUT, move || {
            source.check(last_tried, &before, &metrics, &clock)
        }) {
            ReloadOutcome::Unchanged => {}
            ReloadOutcome::Unreadable(exit) => {
                // A readable file is tried again, even if it has not changed.
                *self.last_tried() = None;
                self.record_failure(exit.message());
            }
            ReloadOutcome::Invalid(hash, exit) => {
                *self.last_tried() = Some(hash);
                self.record_failure(exit.message());
            }
            ReloadOutcome::Valid(hash, prepared) => {
                *self.last_tried() = Some(hash);
                match self.activate(*prepared) {
                    Ok((restart_needed, files)) => {
                        self.record_success(hash, &restart_needed);
                        if let Some(editor) = &self.editor {
                            editor.record(files);
                        }
                    }
                    Err(exit) => self.record_failure(exit.message()),
                }
            }
        }
    }

    fn activate(&self, prepared: PreparedConfig) -> Result<(Vec<&'static str>, ConfigFiles), Exit> {
        let PreparedConfig {
            files,
            startup_settings,
            issuers,
            runtime_config,
        } = prepared;
        // Blocking is allowed on this thread. The verifier runs on the runtime, because threads
        // that it starts would inherit the niceness of this one.
        let (runtime, verifier) = (Handle::current(), Arc::clone(&self.state.verifier));
        let prepared =
            runtime.block_on(runtime.spawn(async move { verifier.prepare(issuers).await }));
        let trust = prepared.map_err(|error| {
            Exit::unavailable(format!("cannot prepare the token keys: {error}"))
        })?;
        self.pools.sync(&runtime_config.pools);
        self.state.limiter.set_capacity(runtime_config.limits.keys);
        self.state
            .connection_limit
            .resize(runtime_config.limits.connections);
        // Trust is updated first, so that requests under the new policies find the claims that
        // these evaluate.
        self.state.verifier.adopt(trust);
        let before = self.state.runtime_config.swap(Arc::new(runtime_config));
        self.state.runtime_config.load().drain_replaced(&before);
        self.retired.lock().push(before);
        let included = files.included().map(str::to_owned).collect();
        self.update_status(|status| status.included_files = included);
        let restart_needed = self.startup_settings.differences(&startup_settings);
        Ok((restart_needed, files))
    }

    fn record_success(&self, hash: u64, restart_needed: &[&'static str]) {
        self.state.metrics.config.last_reload_successful.set(1);
        self.state.metrics.config.version.inc();
        let version = self.update_status(|status| {
            status.version += 1;
            status.hash = Some(format!("{hash:016x}"));
            status.loaded_at = Some(self.state.clock.now());
            status.last_error = None;
            status.restart_needed = restart_needed.to_vec();
            status.version
        });
        let hash = format!("{hash:016x}");
        self.state.metrics.config.set_hash(&hash);
        tracing::info!(version, hash, "configuration reloaded");
        if !restart_needed.is_empty() {
            tracing::warn!(
                version,
                settings = restart_needed.join(", "),
                "configuration change needs a restart"
            );
        }
    }

    fn record_failure(&self, why: &str) {
        let known = self.update_status(|status| {
            status
                .last_error
                .replace(why.to_owned())
                .is_some_and(|last| last == why)
        });
        if known {
            return;
        }
        self.state.metrics.config.last_reload_successful.set(0);
        self.state.metrics.config.rejected_reloads.inc();
        let (file, errors) = (self.source.path.display(), one_line(why));
        tracing::error!(%file, errors, "configuration reload rejected");
    }

    fn reload_certificates(&self, forced: bool) {
        for files in &self.tls {
            if let Err(exit) = files.refresh(forced) {
                tracing::error!(error = exit.message(), "certificate reload rejected");
            }
        }
    }

    fn reload_api_keys(&self) {
        let config = self.state.runtime_config.load();
        let Some(file) = &config.api_keys else {
            return;
        };
        let reload_successful = &self.state.metrics.credentials.api_key_reload_successful;
        match file.refresh() {
            Ok(None) => {}
            Ok(Some(keys)) => {
                reload_successful.set(1);
                tracing::info!(keys, "API keys reloaded");
            }
            Err(exit) => {
                reload_successful.set(0);
                let errors = one_line(exit.message());
                tracing::error!(errors, "API key reload rejected");
            }
        }
    }

    fn last_tried(&self) -> MutexGuard<'_, Option<u64>> {
        self.last_tried.lock()
    }

    fn update_status<T>(&self, change: impl FnOnce(&mut ConfigStatus) -> T) -> T {
        change(&mut self.state.config_status.lock())
    }
}

/// Joins the mistakes of a file, one per line, to the value of one field. Of more than
/// [`MAX_LOGGED_MISTAKES`] the rest is counted; `check` prints all.
fn one_line(mistakes: &str) -> String {
    let count = mistakes.lines().count();
    let logged = mistakes.lines().take(MAX_LOGGED_MISTAKES);
    let mut text = logged.collect::<Vec<_>>().join("; ");
    if count > MAX_LOGGED_MISTAKES {
        text.push_str(&format!("; and {} more", count - MAX_LOGGED_MISTAKES));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_while_reading_makes_the_text_invalid() {
        let ReloadOutcome::Invalid(7, exit) = ReloadOutcome::of(7, || panic!("as a test wants it"))
        else {
            panic!("expected an invalid configuration");
        };
        assert!(
            exit.message().contains("defect of the gateway"),
            "{}",
            exit.message()
        );
    }
}
