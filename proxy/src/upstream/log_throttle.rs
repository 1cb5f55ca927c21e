//! Rate limiting of repeated warnings.

use std::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds between two warnings about the same object.
const WARNING_INTERVAL_MS: u64 = 10_000;

/// A rate limiter for warnings, so that an outage does not flood the log. Counts suppressed
/// warnings.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// Earliest time of the next warning, in milliseconds of the pool's clock.
    next_ms: AtomicU64,
    suppressed: AtomicU64,
}

impl LogThrottle {
    /// Returns the number of warnings suppressed since the last one, if a warning may be logged
    /// now.
    pub(crate) fn take(&self, now_ms: u64) -> Option<u64> {
        let next = self.next_ms.load(Ordering::Relaxed);
        let claimed = next <= now_ms
            && self
                .next_ms
                .compare_exchange(
                    next,
                    now_ms + WARNING_INTERVAL_MS,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if claimed {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_per_interval_counts_the_others() {
        let throttle = LogThrottle::default();
        let taken = [0, 1, 9_999, 10_000, 10_001, 20_000].map(|now| throttle.take(now));
        assert_eq!(taken, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
