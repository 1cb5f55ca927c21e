//! Metrics of rate limits.

use prometheus::{IntCounter, IntCounterVec, IntGauge};

use super::MetricFactory;

/// Metrics of rate limits and of their store.
#[derive(Debug)]
pub(crate) struct RateLimitMetrics {
    pub(crate) keys: IntGauge,
    rejected: IntCounterVec,
    store_up: IntGauge,
    store_fallbacks: IntCounter,
}

// === impl RateLimitMetrics ===

impl RateLimitMetrics {
    pub(super) fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        let metrics = Self {
            keys: make.gauge("postern_limiter_keys", "Keys tracked by the rate limiter")?,
            rejected: make.counters(
                "postern_proxy_rate_limited_requests_total",
                "Requests rejected by a rate limit (address, principal, route)",
                &["route", "limit"],
            )?,
            store_up: make.gauge(
                "postern_proxy_limits_store_up",
                "0 if the last use of the limits store failed, otherwise 1",
            )?,
            store_fallbacks: make.counter(
                "postern_proxy_limits_store_fallbacks_total",
                "Requests counted locally because the limits store was unavailable",
            )?,
        };
        metrics.store_up.set(1);
        Ok(metrics)
    }

    /// Counts a request that a limit has rejected.
    pub(crate) fn count_rejected(&self, route: &str, limit: &str) {
        self.rejected.with_label_values(&[route, limit]).inc();
    }

    /// Records whether the limits store has counted a request.
    pub(crate) fn note_store(&self, is_up: bool) {
        self.store_up.set(i64::from(is_up));
        if !is_up {
            self.store_fallbacks.inc();
        }
    }
}
