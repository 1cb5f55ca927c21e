//! Configuration reload: a new configuration is read, tested and prepared, and then activated
//! atomically.
//!
//! An invalid file changes nothing. The error is reported in the log, the metrics and
//! `/config/status`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use parking_lot::Mutex;
use postern_core::config::{ConfigFile, Env};
use postern_core::exit::Exit;
use postern_core::health::Degradation;
use postern_core::token::Issuer;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;

use crate::certificates::ServerTls;
use crate::config::{Config, check_callers};
use crate::config_editor::{CheckPermit, CheckRules, ConfigEditor, ReloadRequests, hash_text};
use crate::lifecycle::background_tasks::PoolTasks;
use crate::lifecycle::file_checks::check_files;
use crate::lifecycle::startup_settings::StartupOnlySettings;
use crate::state::GatewayState;
use crate::state::runtime_config::RuntimeConfig;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_LOGGED_MISTAKES: usize = 20;

#[derive(Debug)]
pub(crate) struct ConfigSource {
    path: PathBuf,
    env: Env,
    initial: Option<ConfigFile>,
    permit: CheckPermit,
}

/// Watches the configuration files and activates changes.
pub(crate) struct ConfigReloader {
    source: ConfigSource,
    state: Arc<GatewayState>,
    pools: Arc<PoolTasks>,
    tls: Vec<Arc<ServerTls>>,
    startup_settings: StartupOnlySettings,
    /// Hash of the files that were tried last.
    last_tried: Mutex<Option<u64>>,
    /// Previous configurations that requests still use. They are dropped by a later check and not
    /// by a request, because dropping ten thousand routes takes milliseconds.
    retired: Mutex<Vec<Arc<RuntimeConfig>>>,
    /// The editor of the admin listener, which records what becomes active.
    pub(crate) editor: Option<Arc<ConfigEditor>>,
    /// Why the last file was rejected, for readiness.
    rejection: Degradation,
}

/// The hash of a file, unless it cannot be read, and the configuration that is in it.
type ReloadOutcome = (Option<u64>, Result<PreparedConfig, Exit>);

struct PreparedConfig {
    file: ConfigFile,
    startup_settings: StartupOnlySettings,
    issuers: Vec<Issuer>,
    runtime_config: RuntimeConfig,
}

/// Reads a configuration. A panic makes it invalid, so that it is not tried again every second.
fn catching_panics<T>(read: impl FnOnce() -> Result<T, Exit>) -> Result<T, Exit> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let defect = "reading the configuration panicked, which is a defect of the gateway";
        Err(Exit::usage(defect))
    })
}

impl ConfigSource {
    pub(crate) fn new(path: PathBuf, env: Env) -> Self {
        Self {
            initial: ConfigFile::read(&path).ok(),
            path,
            env,
            permit: CheckPermit::default(),
        }
    }

    pub(crate) fn editor(
        &self,
        startup_settings: &StartupOnlySettings,
        state: &Arc<GatewayState>,
    ) -> Option<(ConfigEditor, ReloadRequests)> {
        let history = startup_settings.config_history.clone();
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
        let permit = Arc::clone(&self.permit);
        Some(ConfigEditor::new(
            path, history, rules, files, state, permit,
        ))
    }

    /// Reads the file and prepares the configuration, unless its hash is `last_tried`. Has no side
    /// effects.
    fn check(&self, last_tried: Option<u64>, state: &GatewayState) -> Option<ReloadOutcome> {
        let file = match ConfigFile::read(&self.path) {
            Ok(file) => file,
            Err(exit) => return Some((None, Err(exit))),
        };
        let hash = Some(file.hash());
        (hash != last_tried).then(|| (hash, catching_panics(|| self.prepare(file, state))))
    }

    fn prepare(&self, file: ConfigFile, state: &GatewayState) -> Result<PreparedConfig, Exit> {
        let before = state.runtime_config.load_full();
        let config = file.decode(|root| {
            let config = Config::read(root, &self.env)?;
            check_callers(root, &config);
            Some(config)
        })?;
        let startup_settings = StartupOnlySettings::of(&config);
        let issuers = config.issuers(&before.route_table.routes);
        let runtime_config = RuntimeConfig::new(config, Some(&before), &state.metrics)?;
        Ok(PreparedConfig {
            file,
            startup_settings,
            issuers,
            runtime_config,
        })
    }
}

impl ConfigReloader {
    pub(crate) fn new(
        source: ConfigSource,
        state: Arc<GatewayState>,
        pools: Arc<PoolTasks>,
        tls: Vec<Arc<ServerTls>>,
        startup_settings: StartupOnlySettings,
        rejection: Degradation,
    ) -> Self {
        let initial = source.initial.as_ref();
        let last_tried = initial.map(ConfigFile::hash);
        let hash = last_tried.map(hash_text);
        if let Some(hash) = &hash {
            state.metrics.config.set_hash(hash);
        }
        let mut status = state.config_status.lock();
        status.file = Some(source.path.display().to_string());
        status.hash = hash;
        drop(status);
        Self {
            source,
            state,
            pools,
            tls,
            startup_settings,
            last_tried: Mutex::new(last_tried),
            retired: Mutex::default(),
            editor: None,
            rejection,
        }
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
        let this = Arc::new(self);
        if let Some(editor) = this.editor.clone() {
            let _panicked = spawn_blocking(move || editor.record_start()).await;
        }
        loop {
            let mut requester = None;
            let forced = tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = edited.recv() => {
                    requester = Some(done);
                    false
                }
                _ = user.recv() => {
                    this.state.access_log.reopen();
                    continue;
                }
                _ = hangup.recv() => true,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            let permit = Arc::clone(&this.source.permit).lock_owned().await;
            let reloader = Arc::clone(&this);
            let polled = spawn_blocking(move || reloader.poll(forced, permit));
            if polled.await.is_err() {
                tracing::error!("configuration reload panicked");
            }
            if let Some(done) = requester {
                let _gone = done.send(());
            }
        }
    }

    /// Reloads the certificates and API keys, and the configuration if its file or a file that it
    /// names has changed. Blocks.
    fn poll(&self, forced: bool, permit: OwnedMutexGuard<()>) {
        self.reload_certificates(forced);
        self.reload_api_keys();
        let current = self.state.runtime_config.load_full();
        let renewed = current.pools.iter().any(|pool| pool.has_changed_files());
        drop(current);
        self.reload(forced || renewed, permit);
        self.retired
            .lock()
            .retain(|runtime_config| Arc::strong_count(runtime_config) > 1);
    }

    /// Loads the file if it has changed since the last attempt, or if `forced`.
    fn reload(&self, forced: bool, permit: OwnedMutexGuard<()>) {
        let last_tried = self.last_tried.lock().filter(|_| !forced);
        let outcome = self.source.check(last_tried, &self.state);
        // Activation may wait for the keys of new issuers.
        drop(permit);
        let Some((hash, prepared)) = outcome else {
            return;
        };
        // A file that could not be read is tried again, even if it has not changed.
        *self.last_tried.lock() = hash;
        match prepared {
            Err(exit) => self.record_failure(exit.message()),
            Ok(prepared) => {
                let (restart_needed, file) = self.activate(prepared);
                self.record_success(file.hash(), &restart_needed);
                if let Some(editor) = &self.editor {
                    editor.record(file);
                }
            }
        }
    }

    fn activate(&self, prepared: PreparedConfig) -> (Vec<&'static str>, ConfigFile) {
        let PreparedConfig {
            file,
            startup_settings,
            issuers,
            runtime_config,
        } = prepared;
        let trust = Handle::current().block_on(self.state.verifier.prepare(issuers));
        self.pools.sync(&runtime_config.pools);
        // Trust is updated first, so that requests under the new policies find the claims that
        // these evaluate.
        self.state.verifier.adopt(trust);
        let before = self.state.runtime_config.swap(Arc::new(runtime_config));
        self.state.runtime_config.load().drain_replaced(&before);
        self.retired.lock().push(before);
        let restart_needed = self.startup_settings.differences(&startup_settings);
        (restart_needed, file)
    }

    fn record_success(&self, hash: u64, restart_needed: &[&'static str]) {
        self.state.metrics.config.last_reload_successful.set(1);
        self.rejection.clear();
        self.state.metrics.config.version.inc();
        let hash = hash_text(hash);
        self.state.metrics.config.set_hash(&hash);
        let version = {
            let mut status = self.state.config_status.lock();
            status.version += 1;
            status.hash = Some(hash.clone());
            status.loaded_at = Some(self.state.clock.now());
            status.last_error = None;
            status.restart_needed = restart_needed.to_vec();
            status.version
        };
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
        let mut status = self.state.config_status.lock();
        let known = status.last_error.replace(why.to_owned());
        drop(status);
        if known.is_some_and(|last| last == why) {
            return;
        }
        self.state.metrics.config.last_reload_successful.set(0);
        self.state.metrics.config.rejected_reloads.inc();
        let (file, errors) = (self.source.path.display(), one_line(why));
        self.rejection.set(errors.as_str());
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
        let read = catching_panics::<()>(|| panic!("as a test wants it"));
        let said = read.expect_err("an invalid configuration").to_string();
        assert!(said.contains("defect of the gateway"), "{said}");
    }
}
