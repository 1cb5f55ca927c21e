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
use crate::downstream::tls::TlsFiles;
use crate::lifecycle::background_tasks::PoolKeepers;
use crate::lifecycle::idle_thread::Spare;
use crate::lifecycle::startup_settings::Fixed;
use crate::state::State;
use crate::state::config_status::ConfigStatus;
use crate::state::runtime_config::Live;
use crate::telemetry::metrics::Metrics;

/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How far the thread that looks stands back behind those that serve, as nice(2) counts: a tenth of
/// what is theirs.
const NICE: i32 = 10;
/// How long a file is left to [`Spare`]: several times what ten thousand routes take there while
/// cores are idle. Where none ever is, the thread that looks reads the file.
const PATIENCE: Duration = Duration::from_millis(250);

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: PathBuf,
    env: Env,
    /// Of the text as it was when the process began.
    first: Option<u64>,
}

/// Swaps configurations.
pub(crate) struct Reloader {
    source: Arc<Source>,
    state: Arc<State>,
    pools: Arc<PoolKeepers>,
    tls: Vec<Arc<TlsFiles>>,
    /// The configuration that the process began with.
    first: Fixed,
    /// The text that was tried last.
    tried: Mutex<Option<u64>>,
    /// What was live and is still held by requests. Whoever lets go last takes it down, and ten
    /// thousand routes take milliseconds: that is no thread that serves.
    retired: Mutex<Vec<Arc<Live>>>,
}

/// A look at the file, maybe at one that has not changed.
struct Look {
    forced: bool,
    done: oneshot::Sender<()>,
}

/// What there is to do about a file.
enum Found {
    /// It is as it was when it was tried last.
    Same,
    /// It cannot be read.
    Nothing(Exit),
    /// It is not good; the hash of its text.
    Bad(u64, Exit),
    /// It can go live.
    Good(u64, Box<Draft>),
}

/// A configuration that is made ready, and not live yet.
struct Draft {
    fixed: Fixed,
    issuers: Vec<Issuer>,
    live: Live,
}

impl Found {
    /// What has become of a text. One that no reader survives is bad, and not tried every second.
    fn of(hash: u64, read: impl FnOnce() -> Result<Draft, Exit>) -> Self {
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(draft)) => Self::Good(hash, Box::new(draft)),
            Ok(Err(exit)) => Self::Bad(hash, exit),
            Err(_) => Self::Bad(
                hash,
                Exit::usage("reading it panicked, which is a defect of the gateway"),
            ),
        }
    }
}

impl Source {
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

    /// Reads the file, and makes it ready if it is not `tried`. Changes nothing.
    fn find(&self, tried: Option<u64>, before: &Live, metrics: &Metrics, clock: &Clock) -> Found {
        let text = match self.text() {
            Ok(text) => text,
            Err(exit) => return Found::Nothing(exit),
        };
        let hash = hash(&text);
        if tried == Some(hash) {
            return Found::Same;
        }
        Found::of(hash, || self.draft(&text, before, metrics, clock))
    }

    fn draft(
        &self,
        text: &str,
        before: &Live,
        metrics: &Metrics,
        clock: &Clock,
    ) -> Result<Draft, Exit> {
        let name = self.path.display().to_string();
        let config = config::parse(&name, text, |root| Config::read(root, &self.env))?;
        let fixed = Fixed::of(&config);
        let issuers = config.issuers(&before.table.routes);
        let live = Live::new(config, Some(before), metrics, clock)?;
        Ok(Draft {
            fixed,
            issuers,
            live,
        })
    }
}

impl Look {
    fn new(forced: bool) -> (Self, oneshot::Receiver<()>) {
        let (done, looked) = oneshot::channel();
        (Self { forced, done }, looked)
    }
}

impl Reloader {
    pub(crate) fn new(
        source: Source,
        state: Arc<State>,
        pools: Arc<PoolKeepers>,
        tls: Vec<Arc<TlsFiles>>,
        first: Fixed,
    ) -> Self {
        let tried = Mutex::new(source.first);
        let hash = source.first.map(|hash| format!("{hash:016x}"));
        state
            .config
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hash = hash;
        Self {
            source: Arc::new(source),
            state,
            pools,
            tls,
            first,
            tried,
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
        let (looks, ended) = match self.watch() {
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
                    state.access.reopen();
                    continue;
                }
                _ = hangup.recv() => true,
                () = tokio::time::sleep(INTERVAL) => false,
            };
            let (look, looked) = Look::new(forced);
            if looks.send(look).is_err() || looked.await.is_err() {
                tracing::error!("a reload panicked; what was live stays live");
            }
        }
        drop(looks);
        // It holds the access log too, whose last lines are written when nobody does any more.
        let _ = ended.await;
    }

    /// A thread that looks whenever it is asked to, until nobody can ask any more; the receiver
    /// hears when it has ended.
    fn watch(self) -> std::io::Result<(mpsc::Sender<Look>, oneshot::Receiver<()>)> {
        let (looks, asked) = mpsc::channel::<Look>();
        let (end, ended) = oneshot::channel();
        let (runtime, spare) = (Handle::current(), Spare::start()?);
        thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || {
                let _runtime = runtime.enter();
                if let Err(error) = rustix::process::nice(NICE) {
                    tracing::warn!(%error, "reloads do not stand back behind requests");
                }
                for Look { forced, done } in asked {
                    // Whoever asked is told by `done`, which is dropped unsent.
                    if catch_unwind(AssertUnwindSafe(|| self.look(forced, &spare))).is_ok() {
                        let _ = done.send(());
                    }
                }
                drop(self);
                let _ = end.send(());
            })?;
        Ok((looks, ended))
    }

    /// Certificates, and the file if it, or a file that it names, has changed.
    fn look(&self, forced: bool, spare: &Spare) {
        self.reload_certificates(forced);
        let renewed = self
            .state
            .live
            .load()
            .pools
            .iter()
            .any(|pool| pool.has_new_files());
        self.reload(forced || renewed, spare);
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        for unused in retired.extract_if(.., |live| Arc::strong_count(live) == 1) {
            spare.leave(move || drop(unused));
        }
    }

    /// Loads the file if it has changed since it was tried last, or in any case.
    fn reload(&self, forced: bool, spare: &Spare) {
        let tried = if forced { None } else { *self.tried() };
        let (source, before) = (Arc::clone(&self.source), self.state.live.load_full());
        let (metrics, clock) = (Arc::clone(&self.state.metrics), self.state.clock.clone());
        match spare.run(PATIENCE, move || {
            source.find(tried, &before, &metrics, &clock)
        }) {
            Found::Same => {}
            Found::Nothing(exit) => {
                // Once it can be read again it is good again, changed or not.
                *self.tried() = None;
                self.refuse(exit.message());
            }
            Found::Bad(hash, exit) => {
                *self.tried() = Some(hash);
                self.refuse(exit.message());
            }
            Found::Good(hash, draft) => {
                *self.tried() = Some(hash);
                match self.adopt(*draft) {
                    Ok(restart_needed) => self.accept(hash, &restart_needed),
                    Err(exit) => self.refuse(exit.message()),
                }
            }
        }
    }

    fn adopt(&self, draft: Draft) -> Result<Vec<&'static str>, Exit> {
        let Draft {
            fixed,
            issuers,
            live,
        } = draft;
        // This thread may wait: none serves on it. What it waits for is done by those of the
        // runtime, which start others, and a thread stands back as far as the one that has started
        // it.
        let (runtime, verifier) = (Handle::current(), Arc::clone(&self.state.verifier));
        let prepared =
            runtime.block_on(runtime.spawn(async move { verifier.prepare(issuers).await }));
        let trust = prepared
            .map_err(|error| Exit::unavailable(format!("the keys were not made ready: {error}")))?;
        self.pools.sync(&live.pools);
        self.state.limiter.set_keys(live.limits.keys);
        self.state.places.set(live.limits.connections);
        // First who is trusted: a request that begins under the new policies finds what they ask
        // for.
        self.state.verifier.adopt(trust);
        let before = self.state.live.swap(Arc::new(live));
        self.retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(before);
        Ok(self.first.differences(&fixed))
    }

    fn accept(&self, hash: u64, restart_needed: &[&'static str]) {
        self.state.metrics.config_bad.set(0);
        self.state.metrics.config_version.inc();
        let version = self.status(|status| {
            status.version += 1;
            status.hash = Some(format!("{hash:016x}"));
            status.loaded_at = Some(self.state.clock.now());
            status.last_error = None;
            status.restart_needed = restart_needed.to_vec();
            status.version
        });
        tracing::info!(version, ?restart_needed, "configuration live");
    }

    fn refuse(&self, why: &str) {
        let known = self.status(|status| {
            status
                .last_error
                .replace(why.to_owned())
                .is_some_and(|last| last == why)
        });
        if known {
            return;
        }
        self.state.metrics.config_bad.set(1);
        self.state.metrics.config_refused.inc();
        for line in why.lines() {
            tracing::error!(
                reason = line,
                "configuration refused; what was live stays live"
            );
        }
    }

    fn reload_certificates(&self, forced: bool) {
        for files in &self.tls {
            if let Err(exit) = files.refresh(forced) {
                tracing::error!(
                    reason = exit.message(),
                    "certificate refused; what was live stays live"
                );
            }
        }
    }

    fn tried(&self) -> MutexGuard<'_, Option<u64>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status<T>(&self, change: impl FnOnce(&mut ConfigStatus) -> T) -> T {
        change(
            &mut self
                .state
                .config
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
        let Found::Bad(7, exit) = Found::of(7, || panic!("as a test wants it")) else {
            panic!("it is not bad");
        };
        assert!(
            exit.message().contains("defect of the gateway"),
            "{}",
            exit.message()
        );
    }
}
