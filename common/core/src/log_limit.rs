//! Rate limits for log events that requests can cause, such as those of an unavailable dependency.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Length of an interval. A call site logs one event per interval, unless it has a larger burst.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

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

/// Logs a warning about a consequence of an outage, unless another one of the same cause was logged
/// within the last 10 s; then the event has the level DEBUG. The cause is the name of the dependency,
/// or of what fails otherwise, so that one line is logged for it and not one for each caller.
#[macro_export]
macro_rules! log_outage {
    ($cause:expr, $($event:tt)+) => {
        match $crate::log_limit::admit_cause($cause) {
            Some(suppressed) => tracing::warn!(suppressed, $($event)+),
            None => tracing::debug!($($event)+),
        }
    };
}

static CAUSES: Mutex<BTreeMap<&str, LogLimit>> = Mutex::new(BTreeMap::new());

/// Returns whether an event of this cause is logged now, as [`LogLimit::admit`]. For
/// [`log_outage!`](crate::log_outage).
pub fn admit_cause(cause: &'static str) -> Option<u64> {
    CAUSES.lock().entry(cause).or_default().admit()
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
        if state
            .began_at
            .is_none_or(|began_at| now >= began_at + LOG_INTERVAL)
        {
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
    fn event_within_the_interval_is_suppressed() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        assert_eq!(limit.admit_at(start), Some(0));
        for _ in 0..7 {
            assert_eq!(limit.admit_at(start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(limit.admit_at(start + LOG_INTERVAL), Some(7));
        assert_eq!(limit.admit_at(start + LOG_INTERVAL), None);
    }

    #[test]
    fn events_of_one_cause_share_a_limit() {
        let (log, _guard) = crate::testing::CapturedLog::start();
        for error in 0..3 {
            crate::log_outage!("test", error, "claim failed");
            crate::log_outage!("test", error, "insert failed");
        }
        crate::log_outage!("other", "insert failed");
        assert_eq!(log.with(&[" WARN "]), 2, "{}", log.text());
    }

    #[test]
    fn burst_admits_several_events_per_interval() {
        let (limit, start) = (LogLimit::with_burst(2), Instant::now());
        let admitted = [0, 1, 2, 10].map(|s| limit.admit_at(start + Duration::from_secs(s)));
        assert_eq!(admitted, [Some(0), Some(0), None, Some(1)]);
    }
}
