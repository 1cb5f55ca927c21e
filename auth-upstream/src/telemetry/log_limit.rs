//! Rate limits for log events that requests can cause, such as those of an unavailable dependency.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum time between two events of one call site.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A rate limit for one kind of log event.
#[derive(Debug)]
pub(crate) struct LogLimit(Mutex<LimitState>);

#[derive(Debug)]
struct LimitState {
    logged_at: Option<Instant>,
    suppressed: u64,
}

/// Logs an event as `tracing` does, unless the call site has logged one within
/// [`MIN_LOG_INTERVAL`]. The field `suppressed` has the number of events left out since.
macro_rules! log_limited {
    ($level:ident, $($event:tt)+) => {{
        static LIMIT: $crate::telemetry::log_limit::LogLimit = $crate::telemetry::log_limit::LogLimit::new();
        if let Some(suppressed) = LIMIT.admit() {
            tracing::$level!(suppressed, $($event)+);
        }
    }};
}

pub(crate) use log_limited;

// === impl LogLimit ===

impl LogLimit {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(LimitState {
            logged_at: None,
            suppressed: 0,
        }))
    }

    /// Returns the number of events suppressed since the last logged one, or `None` if this one is
    /// to be suppressed as well.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state
            .logged_at
            .is_some_and(|logged_at| now < logged_at + MIN_LOG_INTERVAL)
        {
            state.suppressed += 1;
            return None;
        }
        state.logged_at = Some(now);
        Some(std::mem::take(&mut state.suppressed))
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
            assert_eq!(limit.admit_at(start + MIN_LOG_INTERVAL / 2), None);
        }
        assert_eq!(limit.admit_at(start + MIN_LOG_INTERVAL), Some(7));
        assert_eq!(limit.admit_at(start + MIN_LOG_INTERVAL), None);
    }
}
