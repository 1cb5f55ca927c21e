//! The use of an address as an operator changes it: ejection for a time, and draining.
//!
//! Requests read nothing of it: an address that is draining has the weight 0, and an ejection is one
//! of outlier detection with another cause.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::upstream::UpstreamPool;
use crate::upstream::endpoint::{Availability, Endpoint};
use crate::upstream::selection::{Candidates, exceeds_panic_percent};

/// The cause of an ejection by an operator.
const OPERATOR_CAUSE: &str = "operator";

/// What an operator has changed at an address.
#[derive(Debug)]
pub(super) struct OperatorControl {
    /// The weight of the address while it is not draining.
    configured_weight: AtomicU32,
    /// Guards the change of the weight together with this flag.
    is_draining: Mutex<bool>,
    /// The cause of the last ejection.
    ejection_cause: Mutex<&'static str>,
}

// === impl OperatorControl ===

impl Default for OperatorControl {
    fn default() -> Self {
        Self {
            configured_weight: AtomicU32::new(1),
            is_draining: Mutex::new(false),
            ejection_cause: Mutex::new(""),
        }
    }
}

impl OperatorControl {
    /// Stores the configured weight. Returns the weight to use.
    pub(super) fn effective_weight(&self, configured: u32) -> u32 {
        let is_draining = self.is_draining.lock();
        self.configured_weight.store(configured, Ordering::Relaxed);
        if *is_draining { 0 } else { configured }
    }

    /// Stores the cause of an ejection.
    pub(super) fn set_ejection_cause(&self, cause: &'static str) {
        *self.ejection_cause.lock() = cause;
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the milliseconds for which the address is still ejected, and the cause.
    pub(crate) fn ejection(&self, now_ms: u64) -> Option<(u64, &'static str)> {
        let until = self.ejected_until.load(Ordering::Relaxed);
        let remaining = until
            .checked_sub(now_ms)
            .filter(|remaining| *remaining > 0)?;
        Some((remaining, *self.operator.ejection_cause.lock()))
    }

    /// Returns whether the address gets no new requests until it is restored.
    pub(crate) fn is_draining(&self) -> bool {
        *self.operator.is_draining.lock()
    }

    /// Returns the weight of the address while it is not draining.
    pub(crate) fn configured_weight(&self) -> u32 {
        self.operator.configured_weight.load(Ordering::Relaxed)
    }

    /// Ejects the address for a time. Successful responses do not end this ejection early.
    pub(crate) fn eject(&self, now_ms: u64, duration: Duration) {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.operator.set_ejection_cause(OPERATOR_CAUSE);
        self.failures.store(0, Ordering::Relaxed);
        // Without consecutive ejections, a success does not end the ejection.
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
        let mut draining = self.operator.is_draining.lock();
        let weight = if is_draining {
            0
        } else {
            self.configured_weight()
        };
        self.weight.store(weight, Ordering::Relaxed);
        *draining = is_draining;
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
        let (endpoints, now_ms) = (self.endpoints(), self.now_ms());
        let priority = Candidates::priority(&endpoints, now_ms);
        let used = endpoints
            .iter()
            .filter(|endpoint| endpoint.weight() > 0 && Some(endpoint.priority()) == priority);
        let (total, excluded) = used.fold((0, 0), |(total, excluded), endpoint| {
            let is_excluded = endpoint.availability(now_ms) != Availability::Available;
            (total + 1, excluded + usize::from(is_excluded))
        });
        exceeds_panic_percent(excluded, total, self.config.outlier.panic_percent)
    }

    /// Returns whether every address is draining.
    pub(crate) fn is_drained(&self) -> bool {
        self.endpoints()
            .iter()
            .all(|endpoint| endpoint.is_draining())
    }
}
