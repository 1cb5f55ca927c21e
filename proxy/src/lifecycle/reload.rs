//! A new configuration while requests go on: read, tested, made ready, and only then swapped in,
//! all at once.
//!
//! A file that is not good changes nothing; that it is not good stays visible (log, metric,
//! `/config/status`).

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::config::{self, Env};
use postern_common::exit::Exit;
use postern_common::token::Issuer;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::downstream::tls::ReloadableTls;
use crate::lifecycle::background_tasks::PoolTasks;
use crate::lifecycle::idle_thread::IdlePriorityThread;
use crate::lifecycle::startup_settings::StartupOnlySettings;
use crate::state::GatewayState;
use crate::state::config_status::ConfigStatus;
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::metrics::GatewayMetrics;

/// How often the file is completed at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How far the thread that requests stands back behind those that serve, as nice(2) counts: a tenth of
/// what is theirs.
const RELOAD_THREAD_NICENESS: i32 = 10;
/// How long a file is left to [`IdlePriorityThread`]: several times what ten thousand routes take there while
/// cores are idle. Where none ever is, the thread that requests reads the file.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_millis(250);

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSource {
    path: PathBuf,
    env: Env,
    /// Of the text as it was when the process began.
    first: Option<u64>,
}

/// Swaps configurations.
pub(crate) struct ConfigReloader {
    source: Arc<ConfigSource>,
    state: Arc<GatewayState>,
    pools: Arc<PoolTasks>,
    tls: Vec<Arc<ReloadableTls>>,
    /// The configuration that the process began with.
    first: StartupOnlySettings,
    /// The text that was last_tried last.
    last_tried: Mutex<Option<u64>>,
    /// What was runtime_config and is still held by requests. Whoever lets go last takes it down, and ten
    /// thousand routes take milliseconds: that is no thread that serves.
    retired: Mutex<Vec<Arc<RuntimeConfig>>>,
}

/// A request at the file, maybe at one that has not changed.
struct ReloadRequest {
    forced: bool,
    done: oneshot::Sender<()>,
}

/// What there is to do about a file.
enum ReloadOutcome {
    /// It is as it was when it was last_tried last.
    Unchanged,
    /// It cannot be read.
    Unreadable(Exit),
    /// It is not good; the hash of its text.
    Invalid(u64, Exit),
    /// It can go runtime_config.
    Valid(u64, Box<PreparedConfig>),
}

/// A configuration that is made ready, and not runtime_config yet.
struct PreparedConfig {
    startup_settings: StartupOnlySettings,
    issuers: Vec<Issuer>,
    runtime_config: RuntimeConfig,
}

impl ReloadOutcome {
    /// What has become of a text. One that no reader survives is bad, and not last_tried every second.
    fn of(hash: u64, read: impl FnOnce() -> Result<PreparedConfig, Exit>) -> Self {
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(prepared)) => Self::Valid(hash, Box::new(prepared)),
            Ok(Err(exit)) => Self::Invalid(hash, exit),
            Err(_) => Self::Invalid(
                hash,
                Exit::usage("reading it panicked, which is a defect of the gateway"),
            ),
        }
    }
}

impl ConfigSource {
    pub(crate) fn new(path: PathBuf, env: Env) -> Self {
        let mut source = Self {
            path,
            env,
            first: None,
        };
        source.first = source.text().ok().map(|text| hash(&text));
        source
    }

    fn text(&self) -> Result<String, Exit> {
        std::fs::read_to_string(&self.path)
            .map_err(|error| Exit::usage(format!("{}: cannot read: {error}", self.path.display())))
    }

    /// Reads the file, and makes it ready if it is not `last_tried`. Changes nothing.
    fn check(
        &self,
        last_tried: Option<u64>,
        before: &RuntimeConfig,
        metrics: &GatewayMetrics,
        clock: &Clock,
    ) -> ReloadOutcome {
        let text = match self.text() {
            Ok(text) => text,
            Err(exit) => return ReloadOutcome::Unreadable(exit),
        };
        let hash = hash(&text);
        if last_tried == Some(hash) {
            return ReloadOutcome::Unchanged;
        }
        ReloadOutcome::of(hash, || self.prepare(&text, before, metrics, clock))
    }

    fn prepare(
        &self,
        text: &str,
        before: &RuntimeConfig,
        metrics: &GatewayMetrics,
        clock: &Clock,
    ) -> Result<PreparedConfig, Exit> {
        let name = self.path.display().to_string();
        let config = config::parse(&name, text, |root| Config::read(root, &self.env))?;
        let startup_settings = StartupOnlySettings::of(&config);
        let issuers = config.issuers(&before.route_table.routes);
        let runtime_config = RuntimeConfig::new(config, Some(before), metrics, clock)?;
        Ok(PreparedConfig {
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
        tls: Vec<Arc<ReloadableTls>>,
        first: StartupOnlySettings,
    ) -> Self {
        let last_tried = Mutex::new(source.first);
        let hash = source.first.map(|hash| format!("{hash:016x}"));
        state
            .config_status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hash = hash;
        Self {
            source: Arc::new(source),
            state,
            pools,
            tls,
            first,
            last_tried,
            retired: Mutex::default(),
        }
    }

    /// Follows the file, SIGHUP (configuration and certificates) and SIGUSR1 (access log) until the
    /// stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (Ok(mut hangup), Ok(mut user)) = (
            signal(SignalKind::hangup()),
            signal(SignalKind::user_defined1()),
        ) else {
            tracing::error!("cannot listen to SIGHUP and SIGUSR1");
            return;
        };
        let state = Arc::clone(&self.state);
        let (requests, ended) = match self.start_thread() {
            Ok(watching) => watching,
            Err(error) => {
                tracing::error!(%error, "no thread for reloads: configuration and access log stay as they are");
                return;
            }
        };
        loop {
            let forced = tokio::select! {
                () = stop.cancelled() => break,
                _ = user.recv() => {
                    state.access_log.reopen();
                    continue;
                }
                _ = hangup.recv() => true,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            let (request, completed) = ReloadRequest::new(forced);
            if requests.send(request).is_err() || completed.await.is_err() {
                tracing::error!("a reload panicked; what was runtime_config stays runtime_config");
            }
        }
        drop(requests);
        // It holds the access log too, whose last lines are written when nobody does any more.
        let _ = ended.await;
    }

    /// A thread that requests whenever it is asked to, until nobody can ask any more; the receiver
    /// hears when it has ended.
    fn start_thread(self) -> std::io::Result<(mpsc::Sender<ReloadRequest>, oneshot::Receiver<()>)> {
        let (requests, asked) = mpsc::channel::<ReloadRequest>();
        let (end, ended) = oneshot::channel();
        let (runtime, idle_thread) = (Handle::current(), IdlePriorityThread::start()?);
        thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || {
                let _runtime = runtime.enter();
                if let Err(error) = rustix::process::nice(RELOAD_THREAD_NICENESS) {
                    tracing::warn!(%error, "reloads do not stand back behind requests");
                }
                for ReloadRequest { forced, done } in asked {
                    // Whoever asked is told by `done`, which is dropped unsent.
                    if catch_unwind(AssertUnwindSafe(|| self.poll(forced, &idle_thread))).is_ok() {
                        let _ = done.send(());
                    }
                }
                drop(self);
                let _ = end.send(());
            })?;
        Ok((requests, ended))
    }

    /// Certificates, and the file if it, or a file that it names, has changed.
    fn poll(&self, forced: bool, idle_thread: &IdlePriorityThread) {
        self.reload_certificates(forced);
        let renewed = self
            .state
            .runtime_config
            .load()
            .pools
            .iter()
            .any(|pool| pool.has_changed_files());
        self.reload(forced || renewed, idle_thread);
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        for unused in
            retired.extract_if(.., |runtime_config| Arc::strong_count(runtime_config) == 1)
        {
            idle_thread.spawn(move || drop(unused));
        }
    }

    /// Loads the file if it has changed since it was last_tried last, or in any case.
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
                // Once it can be read again it is good again, changed or not.
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
                    Ok(restart_needed) => self.record_success(hash, &restart_needed),
                    Err(exit) => self.record_failure(exit.message()),
                }
            }
        }
    }

    fn activate(&self, prepared: PreparedConfig) -> Result<Vec<&'static str>, Exit> {
        let PreparedConfig {
            startup_settings,
            issuers,
            runtime_config,
        } = prepared;
        // This thread may wait: none serves on it. What it waits for is done by those of the
        // runtime, which start others, and a thread stands back as far as the one that has started
        // it.
        let (runtime, verifier) = (Handle::current(), Arc::clone(&self.state.verifier));
        let prepared =
            runtime.block_on(runtime.spawn(async move { verifier.prepare(issuers).await }));
        let trust = prepared
            .map_err(|error| Exit::unavailable(format!("the keys were not made ready: {error}")))?;
        self.pools.sync(&runtime_config.pools);
        self.state.limiter.set_capacity(runtime_config.limits.keys);
        self.state
            .connection_limit
            .resize(runtime_config.limits.connections);
        // First who is trusted: a request that begins under the new policies finds what they ask
        // for.
        self.state.verifier.adopt(trust);
        let before = self.state.runtime_config.swap(Arc::new(runtime_config));
        self.retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(before);
        Ok(self.first.differences(&startup_settings))
    }

    fn record_success(&self, hash: u64, restart_needed: &[&'static str]) {
        self.state.metrics.config_last_reload_successful.set(1);
        self.state.metrics.config_version.inc();
        let version = self.update_status(|status| {
            status.version += 1;
            status.hash = Some(format!("{hash:016x}"));
            status.loaded_at = Some(self.state.clock.now());
            status.last_error = None;
            status.restart_needed = restart_needed.to_vec();
            status.version
        });
        tracing::info!(version, ?restart_needed, "configuration runtime_config");
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
        self.state.metrics.config_last_reload_successful.set(0);
        self.state.metrics.config_refused.inc();
        for line in why.lines() {
            tracing::error!(
                reason = line,
                "configuration refused; what was runtime_config stays runtime_config"
            );
        }
    }

    fn reload_certificates(&self, forced: bool) {
        for files in &self.tls {
            if let Err(exit) = files.refresh(forced) {
                tracing::error!(
                    reason = exit.message(),
                    "certificate refused; what was runtime_config stays runtime_config"
                );
            }
        }
    }

    fn last_tried(&self) -> MutexGuard<'_, Option<u64>> {
        self.last_tried
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn update_status<T>(&self, change: impl FnOnce(&mut ConfigStatus) -> T) -> T {
        change(
            &mut self
                .state
                .config_status
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_no_reader_survives_is_bad_and_remembered() {
        let ReloadOutcome::Invalid(7, exit) = ReloadOutcome::of(7, || panic!("as a test wants it"))
        else {
            panic!("it is not bad");
        };
        assert!(
            exit.message().contains("defect of the gateway"),
            "{}",
            exit.message()
        );
    }
}
