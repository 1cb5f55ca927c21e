//! Metrics of checks in report-only mode.

metrics! {
    /// Requests and connections that a check in report-only mode would have rejected.
    pub(crate) struct ReportOnlyMetrics {
        pub(crate) access_list: counters("postern_proxy_access_list_report_only_total",
            "Requests that a report-only access list would have rejected", &["route"]),
        /// Connections, by the access lists of listeners.
        pub(crate) connections: counter("postern_proxy_connections_report_only_total",
            "Connections that a report-only access list of a listener would have closed"),
        pub(crate) external_authorization: counters("postern_proxy_external_authorization_report_only_total",
            "Requests forwarded by a report-only external authorization that did not allow them", &["route", "code"]),
        pub(crate) policy: counters("postern_proxy_policy_report_only_total",
            "Requests forwarded by a report-only policy that would have rejected them", &["route", "code"]),
        pub(crate) rate_limit: counters("postern_proxy_rate_limit_report_only_total",
            "Requests forwarded by a report-only rate limit that would have rejected them", &["route", "limit"]),
    }
}
