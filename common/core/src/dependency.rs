//! Availability of the systems that a process depends on: one log event when a system fails and one
//! when it answers again, a gauge, and readiness.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use prometheus::{IntGauge, IntGaugeVec, Registry};
use tokio::time::Instant;

use crate::health::{Check, Degradation, Health};
use crate::log_limit::LogLimit;
use crate::metrics;

/// Maximum length of a reason in log events and readiness, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The dependencies of a process, exported as `postern_dependency_up{dependency}`.
#[derive(Clone, Debug)]
pub struct Dependencies {
    health: Health,
    up: IntGaugeVec,
}

/// The availability of one dependency, as its callers observe it.
#[derive(Debug)]
pub struct Dependency {
    name: Cow<'static, str>,
    /// The cause with which its events share their limit, see
    /// [`log_outage!`](crate::log_outage).
    cause: Cow<'static, str>,
    address: String,
    up: IntGauge,
    readiness: Readiness,
    /// Makes [`Dependency::record_success`] cheap while there is no outage.
    is_up: AtomicBool,
    outage: Mutex<Option<Outage>>,
    /// `None` without log events.
    limit: Option<LogLimit>,
}

/// Whether something that a process needs accepts connections, as one attempt shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It accepts connections.
    Available,
    /// It is unreachable, overloaded or starting, for this reason. A later attempt may
    /// succeed.
    Unavailable(String),
}

/// The effect of an outage on `/readyz`.
#[derive(Debug)]
enum Readiness {
    /// 503.
    NotReady(Check),
    /// 200 with the name in `degraded`.
    Degraded(Degradation),
}

/// The failures of a system since its last answer.
#[derive(Debug)]
pub struct Outage {
    /// The time of the first failure.
    pub since: Instant,
    /// The number of failures.
    pub failures: u64,
    /// Whether the outage was logged.
    pub is_logged: bool,
}

// === impl Dependencies ===

impl Dependencies {
    /// Registers the gauge in `registry`.
    pub fn new(health: &Health, registry: &Registry) -> prometheus::Result<Self> {
        let help = "1 while a system that the process depends on answers, 0 while it fails.";
        let options = metrics::options("postern_dependency_up", help);
        let up = metrics::register(registry, options, &["dependency"])?;
        Ok(Self {
            health: health.clone(),
            up,
        })
    }

    /// Adds a dependency without which the process is not ready. It counts as unavailable until the
    /// first success. `address` has no password.
    #[must_use]
    pub fn required(&self, name: &'static str, address: impl Into<String>) -> Dependency {
        let readiness = Readiness::NotReady(self.health.check(name));
        self.add(name.into(), address.into(), readiness, false)
    }

    /// Adds a dependency whose outage degrades the process. It counts as available until the first
    /// failure. `address` has no password.
    #[must_use]
    pub fn optional(
        &self,
        name: impl Into<Cow<'static, str>>,
        address: impl Into<String>,
    ) -> Dependency {
        let name = name.into();
        let degradation = self.health.degradation(name.clone());
        self.add(name, address.into(), Readiness::Degraded(degradation), true)
    }

    fn add(
        &self,
        name: Cow<'static, str>,
        address: String,
        readiness: Readiness,
        is_up: bool,
    ) -> Dependency {
        let up = self.up.with_label_values(&[&*name]);
        up.set(i64::from(is_up));
        Dependency {
            cause: name.clone(),
            name,
            address,
            up,
            readiness,
            is_up: AtomicBool::new(is_up),
            outage: Mutex::new(None),
            limit: Some(LogLimit::new()),
        }
    }
}

// === impl Dependency ===

impl Dependency {
    /// Disables the log events, for a dependency whose client logs its outages itself.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.limit = None;
        self
    }

    /// Makes its events those of another dependency, a part of which it is.
    #[must_use]
    pub fn of_cause(mut self, cause: &'static str) -> Self {
        self.cause = cause.into();
        self
    }

    /// Returns whether the dependency answered when it was last asked.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Records an answer. Ends an outage, if there is one.
    pub fn record_success(&self) {
        if self.is_up.load(Ordering::Relaxed) {
            return;
        }
        let mut outage = self.outage.lock();
        self.is_up.store(true, Ordering::Relaxed);
        self.up.set(1);
        match &self.readiness {
            Readiness::NotReady(check) => check.set_ok(),
            Readiness::Degraded(degradation) => degradation.clear(),
        }
        if let Some(ended) = outage.take()
            && ended.is_logged
        {
            let (dependency, address) = (&*self.name, &*self.address);
            let (outage_s, failures) = (ended.since.elapsed().as_secs(), ended.failures);
            tracing::info!(
                dependency,
                address,
                outage_s,
                failures,
                "dependency available again"
            );
        }
    }

    /// Records a call that failed, or was not answered, because of the dependency. Logs the first
    /// failure of an outage; outages that follow one another quickly are not logged.
    pub fn record_failure(&self, error: impl Display) {
        let reason = one_line(&error.to_string());
        let mut outage = self.outage.lock();
        self.is_up.store(false, Ordering::Relaxed);
        self.up.set(0);
        match &self.readiness {
            Readiness::NotReady(check) => check.set_failed(reason.as_str()),
            Readiness::Degraded(degradation) => degradation.set(reason.as_str()),
        }
        if Outage::count_failure(&mut outage, self.limit.as_ref()) {
            crate::log_outage_state!(
                self.cause.clone(),
                dependency = &*self.name,
                address = self.address,
                error = reason,
                "dependency unavailable"
            );
        }
    }

    /// Records the result of a call.
    pub fn record<T, E: Display>(&self, result: &Result<T, E>) {
        match result {
            Ok(_) => self.record_success(),
            Err(error) => self.record_failure(error),
        }
    }
}

// === impl Outage ===

impl Outage {
    /// Counts a failure, the first of which begins an outage. Returns whether to log it: once for an
    /// outage, unless another one was logged within the last 10 s.
    pub fn count_failure(current: &mut Option<Self>, limit: Option<&LogLimit>) -> bool {
        let outage = current.get_or_insert_with(|| Self {
            since: Instant::now(),
            failures: 0,
            is_logged: false,
        });
        outage.failures += 1;
        if outage.is_logged || limit.is_none_or(|limit| limit.admit().is_none()) {
            return false;
        }
        outage.is_logged = true;
        true
    }
}

/// Returns the innermost cause of an error, which says what happened, as in `Connection refused (os
/// error 111)`. Outer errors of HTTP clients repeat the URL.
#[must_use]
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.last().unwrap_or(error).to_string()
}

/// Returns scheme, host and port of a URL, for log events: paths and user information may be secret.
#[must_use]
pub fn origin(url: &url::Url) -> String {
    url.origin().ascii_serialization()
}

fn one_line(text: &str) -> String {
    let text = text.chars().take(MAX_REASON_CHARS);
    text.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CapturedLog;

    #[test]
    fn outage_is_logged_once_in_each_direction() {
        let (log, _guard) = CapturedLog::start();
        let (health, registry) = (Health::new(), Registry::new());
        let dependencies = Dependencies::new(&health, &registry).expect("registered");
        let pool = dependencies.optional("identity_pool", "idp.test:443");
        pool.record_success();
        assert_eq!(log.lines(), 0, "nothing has changed");
        for _ in 0..5 {
            pool.record_failure("connection\nrefused");
        }
        assert!(health.is_ready());
        assert_eq!(health.degraded()["identity_pool"], "connection refused");
        assert_eq!(pool.up.get(), 0);
        let failed = log.with(&["WARN", "dependency unavailable", "idp.test:443"]);
        assert_eq!((failed, log.lines()), (1, 1));
        pool.record_success();
        pool.record_success();
        assert!(health.degraded().is_empty());
        assert_eq!(pool.up.get(), 1);
        let again = log.with(&["INFO", "dependency available again", "failures=5"]);
        assert_eq!((again, log.lines()), (1, 2));
        // A second outage within the interval is neither logged as begun nor as ended.
        pool.record_failure("refused");
        pool.record_success();
        assert_eq!(log.lines(), 2);
    }

    #[test]
    fn required_dependency_decides_about_readiness() {
        let (health, registry) = (Health::new(), Registry::new());
        let dependencies = Dependencies::new(&health, &registry).expect("registered");
        let database = dependencies.required("database", "db.test:5432");
        assert!(!health.is_ready(), "unknown at start");
        database.record_success();
        assert!(health.is_ready());
        database.record::<(), _>(&Err("refused"));
        assert_eq!(health.parts()["database"].as_deref(), Some("refused"));
        assert!(health.degraded().is_empty());
    }
}
