//! Rate limits for log events that requests can cause, such as those of an unavailable dependency.
//!
//! An outage shows in many places. At most one of their events in 10 s is a warning:
//! [`log_outage!`](crate::log_outage) and [`log_outage_state!`](crate::log_outage_state) are for events
//! that name the dependency, [`log_consequence!`](crate::log_consequence) for those that do not.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Length of an interval. A call site logs one event per interval, unless it has a larger burst.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Time in which the cause of a failure is logged: longer than the timeouts of statements.
const EXPLANATION_TIME: Duration = Duration::from_secs(5);

/// A rate limit for one kind of log event.
#[derive(Debug)]
pub struct LogLimit {
    /// Maximum number of events per interval.
    burst: u32,
    state: Mutex<LimitState>,
}

#[derive(Debug)]
struct LimitState {
    began_at: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

/// Logs an event as `tracing` does, unless the call site has logged one within the last 10 s. The
/// field `suppressed` has the number of events left out since.
#[macro_export]
macro_rules! log_limited {
    ($level:ident, $($event:tt)+) => {{
        static LIMIT: $crate::log_limit::LogLimit = $crate::log_limit::LogLimit::new();
        if let Some(suppressed) = LIMIT.admit() {
            tracing::$level!(suppressed, $($event)+);
        }
    }};
}

/// Logs a warning about an operation that failed in an outage, unless a warning of the same cause was
/// logged within the last 10 s; then the event has the level DEBUG. The cause is the name of the
/// dependency, so that one line is logged for it and not one for each caller.
#[macro_export]
macro_rules! log_outage {
    ($cause:expr, $($event:tt)+) => {
        match $crate::log_limit::admit_cause($cause) {
            Some(suppressed) => tracing::warn!(suppressed, $($event)+),
            None => tracing::debug!($($event)+),
        }
    };
}

/// As [`log_outage!`](crate::log_outage), for a change of state, which has the level INFO instead of
/// DEBUG.
#[macro_export]
macro_rules! log_outage_state {
    ($cause:expr, $($event:tt)+) => {
        match $crate::log_limit::admit_cause($cause) {
            Some(suppressed) => tracing::warn!(suppressed, $($event)+),
            None => tracing::info!($($event)+),
        }
    };
}

/// Logs a warning about something that fails because of a dependency which the call site does not
/// know, such as a request that is answered with 503. Has the level DEBUG if a warning of any cause
/// was logged within the last 20 s, or may still be: a cause often shows by a timeout that is longer
/// than the request's.
#[macro_export]
macro_rules! log_consequence {
    ($($event:tt)+) => {
        match $crate::log_limit::admit_consequence() {
            Some(suppressed) => tracing::warn!(suppressed, $($event)+),
            None => tracing::debug!($($event)+),
        }
    };
}

#[derive(Debug)]
struct CauseLimits {
    by_cause: BTreeMap<Cow<'static, str>, LogLimit>,
    /// When the last event of any cause was admitted.
    last: Option<Instant>,
    consequences_suppressed: u64,
    /// When something failed for which no cause has been logged yet.
    unexplained_since: Option<Instant>,
}

static CAUSES: Mutex<CauseLimits> = Mutex::new(CauseLimits::new());

thread_local! {
    /// The limits of a test that captures the events of its thread.
    static CAUSES_OF_TEST: RefCell<Option<CauseLimits>> = const { RefCell::new(None) };
}

/// Returns whether an event of this cause is a warning now, as [`LogLimit::admit`]. For
/// [`log_outage!`](crate::log_outage).
pub fn admit_cause(cause: impl Into<Cow<'static, str>>) -> Option<u64> {
    with_causes(|causes| causes.admit(cause.into(), Instant::now()))
}

/// Returns whether an event without a known cause is a warning now. For
/// [`log_consequence!`](crate::log_consequence).
pub fn admit_consequence() -> Option<u64> {
    with_causes(|causes| causes.admit_consequence(Instant::now()))
}

/// Gives the current thread limits of its own, for a test.
pub(crate) fn isolate_causes_of_thread() {
    CAUSES_OF_TEST.replace(Some(CauseLimits::new()));
}

fn with_causes<T>(apply: impl FnOnce(&mut CauseLimits) -> T) -> T {
    CAUSES_OF_TEST.with_borrow_mut(|of_test| match of_test {
        Some(causes) => apply(causes),
        None => apply(&mut CAUSES.lock()),
    })
}

// === impl CauseLimits ===

impl CauseLimits {
    const fn new() -> Self {
        Self {
            by_cause: BTreeMap::new(),
            last: None,
            consequences_suppressed: 0,
            unexplained_since: None,
        }
    }

    fn admit(&mut self, cause: Cow<'static, str>, now: Instant) -> Option<u64> {
        let limit = self.by_cause.entry(cause).or_default();
        let admitted = limit.admit_at(now)?;
        self.last = Some(now);
        self.unexplained_since = None;
        Some(admitted)
    }

    fn admit_consequence(&mut self, now: Instant) -> Option<u64> {
        // The next event of the cause itself comes first.
        let is_quiet = self.last.is_none_or(|last| now >= last + 2 * LOG_INTERVAL);
        let unexplained = is_quiet.then(|| *self.unexplained_since.get_or_insert(now));
        if unexplained.is_none_or(|since| now < since + EXPLANATION_TIME) {
            self.consequences_suppressed += 1;
            return None;
        }
        (self.last, self.unexplained_since) = (Some(now), None);
        Some(std::mem::take(&mut self.consequences_suppressed))
    }
}

// === impl LogLimit ===

impl LogLimit {
    /// Creates a limit of one event per 10 s.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_burst(1)
    }

    /// Creates a limit of `burst` events per 10 s.
    #[must_use]
    pub const fn with_burst(burst: u32) -> Self {
        Self {
            burst,
            state: Mutex::new(LimitState {
                began_at: None,
                logged: 0,
                suppressed: 0,
            }),
        }
    }

    /// Returns the number of events suppressed since the last logged one, or `None` if this one is
    /// to be suppressed as well.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let is_over = |began_at| now >= began_at + LOG_INTERVAL;
        if state.began_at.is_none_or(is_over) {
            state.began_at = Some(now);
            state.logged = 0;
        }
        if state.logged >= self.burst {
            state.suppressed += 1;
            return None;
        }
        state.logged += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_burst_of_an_interval_are_suppressed() {
        let start = Instant::now();
        for (burst, expected) in [
            (1, [Some(0), None, None, Some(2), None]),
            (2, [Some(0), Some(0), None, Some(1), Some(0)]),
        ] {
            let limit = LogLimit::with_burst(burst);
            let at = [0, 1, 2, 10, 10].map(|s| start + Duration::from_secs(s));
            assert_eq!(at.map(|now| limit.admit_at(now)), expected);
        }
    }

    #[test]
    fn events_of_one_cause_share_a_limit() {
        let (log, _guard) = crate::testing::CapturedLog::start();
        for error in 0..3 {
            crate::log_outage!("test", error, "claim failed");
            crate::log_outage!("test", error, "insert failed");
        }
        crate::log_outage!("other", "insert failed");
        crate::log_outage_state!("test", "breaker opened");
        assert_eq!(log.with(&[" WARN "]), 2, "{}", log.text());
        assert_eq!(log.with(&[" INFO ", "breaker opened"]), 1);
    }

    #[test]
    fn consequence_is_a_warning_if_nothing_else_was() {
        let (mut causes, start) = (CauseLimits::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(causes.admit_consequence(at(0)), None, "a cause may follow");
        assert_eq!(causes.admit("test".into(), at(4)), Some(0));
        assert_eq!(causes.admit_consequence(at(23)), None);
        assert_eq!(causes.admit_consequence(at(24)), None);
        assert_eq!(causes.admit_consequence(at(29)), Some(3));
        assert_eq!(causes.admit_consequence(at(49)), None, "another one");
        assert_eq!(causes.admit_consequence(at(54)), Some(1));
    }
}
