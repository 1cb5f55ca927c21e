//! Metrics of upstreams, by name.

metrics! {
    /// Metrics of upstreams, by name.
    pub(crate) struct UpstreamMetrics {
        pub(crate) latency: seconds("postern_upstream_seconds",
            "Time from the choice of an upstream address to the response head", "upstream"),
        pub(crate) attempts: counters("postern_proxy_upstream_attempts_total",
            "Attempts to forward a request, with retries", &["upstream"]),
        pub(crate) failures: counters("postern_proxy_upstream_failures_total",
            "Failed attempts, and requests without an available address, by cause", &["upstream", "cause"]),
        pub(crate) retries: counters("postern_retries_total", "Retries", &["upstream"]),
        pub(crate) retries_denied: counters("postern_retries_denied_total",
            "Retries denied by the retry budget", &["upstream"]),
        pub(crate) ejections: counters("postern_ejections_total",
            "Ejections of upstream addresses", &["upstream"]),
        pub(crate) endpoints: gauges("postern_endpoints",
            "Upstream addresses by state", &["upstream", "state"]),
        pub(crate) names: gauges("postern_upstream_names",
            "DNS names of upstreams by state of their look-ups", &["upstream", "state"]),
        pub(crate) in_flight: gauges("postern_proxy_upstream_requests_in_flight",
            "Requests that an upstream has not answered completely", &["upstream"]),
        pub(crate) idle_connections: gauges("postern_proxy_upstream_idle_connections",
            "Idle HTTP/1.1 connections to an upstream", &["upstream"]),
        pub(crate) retry_budget: gauges("postern_proxy_retry_budget_available",
            "Retries that the retry budget of an upstream allows now", &["upstream"]),
        pub(crate) panic_mode: gauges("postern_proxy_upstream_panic_mode",
            "1 while so many addresses are excluded that all are used", &["upstream"]),
    }
}
