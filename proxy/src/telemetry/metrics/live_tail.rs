//! Metrics of the live tail.

metrics! {
    /// Metrics of the live tail.
    #[derive(Clone)]
    pub(crate) struct LiveTailMetrics {
        pub(crate) tails: gauge("postern_proxy_live_tails", "Readers of GET /admin/requests"),
        pub(crate) dropped: counter("postern_proxy_live_tail_events_dropped_total",
            "Events that readers of GET /admin/requests were too slow for"),
    }
}
