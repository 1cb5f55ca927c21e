//! Metrics of rate limits.

metrics! {
    /// Metrics of rate limits.
    pub(crate) struct RateLimitMetrics {
        pub(crate) keys: gauge("postern_limiter_keys", "Keys tracked by the rate limiter"),
        rejected: counters("postern_proxy_rate_limited_requests_total",
            "Requests rejected by a rate limit (address, principal, route)", &["route", "limit"]),
    }
}

// === impl RateLimitMetrics ===

impl RateLimitMetrics {
    /// Counts a request that a limit has rejected.
    pub(crate) fn count_rejected(&self, route: &str, limit: &str) {
        self.rejected.with_label_values(&[route, limit]).inc();
    }
}
