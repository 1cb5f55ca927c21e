//! A bounded rate for log events that requests cause, as while a store or the pool is unavailable.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The minimum time between two events of one kind: that of the cache in memory.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A limit on how often one kind of event is logged.
#[derive(Debug)]
pub(crate) struct LogLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    logged_at: Option<Instant>,
    suppressed: u64,
}

/// Logs an event as `tracing` does, with the number of `suppressed` ones, unless the call site has
/// logged one within
/// [`MIN_LOG_INTERVAL`].
macro_rules! log_limited {
    ($level:ident, $($event:tt)+) => {{
        static LIMIT: $crate::log_limit::LogLimit = $crate::log_limit::LogLimit::new();
        if let Some(suppressed) = LIMIT.admit() {
            tracing::$level!(suppressed, $($event)+);
        }
    }};
}

pub(crate) use log_limited;

// === impl LogLimit ===

impl LogLimit {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State {
            logged_at: None,
            suppressed: 0,
        }))
    }

    /// Returns how many events were suppressed since the last logged one, or `None` if this one is
    /// suppressed, too.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn event_within_the_interval_is_counted_and_not_logged() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        assert_eq!(limit.admit_at(start), Some(0));
        for _ in 0..7 {
            assert_eq!(limit.admit_at(start + MIN_LOG_INTERVAL / 2), None);
        }
        assert_eq!(limit.admit_at(start + MIN_LOG_INTERVAL), Some(7));
        assert_eq!(limit.admit_at(start + MIN_LOG_INTERVAL), None);
    }
}
