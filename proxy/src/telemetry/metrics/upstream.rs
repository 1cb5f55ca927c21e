//! Metrics of upstreams, by name.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::MetricFactory;

/// Metrics of upstreams, by name.
#[derive(Debug)]
pub(crate) struct UpstreamMetrics {
    pub(crate) latency: HistogramVec,
    pub(crate) attempts: IntCounterVec,
    pub(crate) failures: IntCounterVec,
    pub(crate) retries: IntCounterVec,
    pub(crate) retries_denied: IntCounterVec,
    pub(crate) ejections: IntCounterVec,
    pub(crate) endpoints: IntGaugeVec,
    pub(crate) names: IntGaugeVec,
    pub(crate) gauges: UpstreamGauges,
}

/// Gauges of upstreams, by name.
#[derive(Debug)]
pub(crate) struct UpstreamGauges {
    pub(crate) in_flight: IntGaugeVec,
    pub(crate) idle_connections: IntGaugeVec,
    pub(crate) retry_budget: IntGaugeVec,
    pub(crate) panic_mode: IntGaugeVec,
}

// === impl UpstreamMetrics ===

impl UpstreamMetrics {
    pub(super) fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        let by_upstream = &["upstream"];
        Ok(Self {
            latency: make.seconds(
                "postern_upstream_seconds",
                "Time from the choice of an upstream address to the response head",
                "upstream",
            )?,
            attempts: make.counters(
                "postern_proxy_upstream_attempts_total",
                "Attempts to forward a request, with retries",
                by_upstream,
            )?,
            failures: make.counters(
                "postern_proxy_upstream_failures_total",
                "Failed attempts, and requests without an available address, by cause",
                &["upstream", "cause"],
            )?,
            retries: make.counters("postern_retries_total", "Retries", by_upstream)?,
            retries_denied: make.counters(
                "postern_retries_denied_total",
                "Retries denied by the retry budget",
                by_upstream,
            )?,
            ejections: make.counters(
                "postern_ejections_total",
                "Ejections of upstream addresses",
                by_upstream,
            )?,
            endpoints: make.gauges(
                "postern_endpoints",
                "Upstream addresses by state",
                &["upstream", "state"],
            )?,
            names: make.gauges(
                "postern_upstream_names",
                "DNS names of upstreams by state of their look-ups",
                &["upstream", "state"],
            )?,
            gauges: UpstreamGauges::new(make)?,
        })
    }
}

// === impl UpstreamGauges ===

impl UpstreamGauges {
    fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        let by_upstream = &["upstream"];
        Ok(Self {
            in_flight: make.gauges(
                "postern_proxy_upstream_requests_in_flight",
                "Requests that an upstream has not answered completely",
                by_upstream,
            )?,
            idle_connections: make.gauges(
                "postern_proxy_upstream_idle_connections",
                "Idle HTTP/1.1 connections to an upstream",
                by_upstream,
            )?,
            retry_budget: make.gauges(
                "postern_proxy_retry_budget_available",
                "Retries that the retry budget of an upstream allows now",
                by_upstream,
            )?,
            panic_mode: make.gauges(
                "postern_proxy_upstream_panic_mode",
                "1 while so many addresses are excluded that all are used",
                by_upstream,
            )?,
        })
    }

    /// Removes the gauges of an upstream that is no longer configured.
    pub(crate) fn forget(&self, upstream: &str) {
        let Self {
            in_flight,
            idle_connections,
            retry_budget,
            panic_mode,
        } = self;
        for gauge in [in_flight, idle_connections, retry_budget, panic_mode] {
            // It may never have been set.
            let _absent = gauge.remove_label_values(&[upstream]);
        }
    }
}
