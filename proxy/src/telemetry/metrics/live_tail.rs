//! Metrics of the live tail.

use prometheus::{IntCounter, IntGauge};

use super::MetricFactory;

/// Metrics of the live tail.
#[derive(Clone, Debug)]
pub(crate) struct LiveTailMetrics {
    pub(crate) tails: IntGauge,
    pub(crate) dropped: IntCounter,
}

impl LiveTailMetrics {
    pub(super) fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        Ok(Self {
            tails: make.gauge("postern_proxy_live_tails", "Readers of GET /admin/requests")?,
            dropped: make.counter(
                "postern_proxy_live_tail_events_dropped_total",
                "Events that readers of GET /admin/requests were too slow for",
            )?,
        })
    }
}
