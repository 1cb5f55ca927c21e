//! The use of an address as an operator changes it: ejection for a time, and draining.
//!
//! Requests read nothing of it: an address that is draining has the weight 0, and an ejection is one
//! of outlier detection with another cause.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::upstream::UpstreamPool;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::selection::{count_excluded, exceeds_panic_percent};

/// The cause of an ejection by an operator.
const OPERATOR_CAUSE: &str = "operator";

// === impl Endpoint ===

impl Endpoint {
    /// Returns the milliseconds for which the address is still ejected, and the cause.
    pub(crate) fn ejection(&self, now_ms: u64) -> Option<(u64, &'static str)> {
        let until = self.ejected_until.load(Ordering::Relaxed);
        let remaining = until
            .checked_sub(now_ms)
            .filter(|remaining| *remaining > 0)?;
        Some((remaining, *self.ejection_cause.lock()))
    }

    /// Returns whether the address gets no new requests until it is restored.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Ejects the address for a time.
    pub(crate) fn eject(&self, now_ms: u64, duration: Duration) {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        *self.ejection_cause.lock() = OPERATOR_CAUSE;
        self.failures.store(0, Ordering::Relaxed);
        self.ejections.store(0, Ordering::Relaxed);
        self.ejected_at.store(now_ms, Ordering::Relaxed);
        let until = now_ms.saturating_add(duration_ms);
        self.ejected_until.store(until, Ordering::Relaxed);
        self.return_pending.store(true, Ordering::Relaxed);
    }

    /// Ends an ejection and draining. The result of health checks is not changed.
    pub(crate) fn restore(&self, now_ms: u64) {
        self.failures.store(0, Ordering::Relaxed);
        self.ejections.store(0, Ordering::Relaxed);
        self.ejected_until.fetch_min(now_ms, Ordering::Relaxed);
        self.set_draining(false);
    }

    /// Begins or ends draining: no new requests, while those in flight are completed.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        self.is_draining.store(is_draining, Ordering::Relaxed);
    }
}

// === impl UpstreamPool ===

impl UpstreamPool {
    /// Returns the retries that the budget allows now.
    pub(crate) fn available_retries(&self) -> i64 {
        self.retry_budget.available()
    }

    /// Returns whether so many addresses are excluded now that all are used.
    pub(crate) fn is_in_panic_now(&self) -> bool {
        let counts = count_excluded(&self.endpoints(), self.now_ms());
        exceeds_panic_percent(counts, self.config.outlier.panic_percent)
    }

    /// Returns whether every address is draining.
    pub(crate) fn is_drained(&self) -> bool {
        self.endpoints()
            .iter()
            .all(|endpoint| endpoint.is_draining())
    }
}
