//! Metrics of rate limits.

metrics! {
    /// Metrics of rate limits and of their store.
    pub(crate) struct RateLimitMetrics {
        pub(crate) keys: gauge("postern_limiter_keys", "Keys tracked by the rate limiter"),
        rejected: counters("postern_proxy_rate_limited_requests_total",
            "Requests rejected by a rate limit (address, principal, route)", &["route", "limit"]),
        store_up: flag("postern_proxy_limits_store_up",
            "0 if the last use of the limits store failed, otherwise 1"),
        store_fallbacks: counter("postern_proxy_limits_store_fallbacks_total",
            "Requests counted locally because the limits store was unavailable"),
    }
}

// === impl RateLimitMetrics ===

impl RateLimitMetrics {
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
