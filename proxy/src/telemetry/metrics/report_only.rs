//! Metrics of checks in report-only mode.

use prometheus::{IntCounter, IntCounterVec};

use super::MetricFactory;

/// Requests and connections that a check in report-only mode would have rejected.
#[derive(Debug)]
pub(crate) struct ReportOnlyMetrics {
    pub(crate) access_list: IntCounterVec,
    /// Connections, by the access lists of listeners.
    pub(crate) connections: IntCounter,
    pub(crate) external_authorization: IntCounterVec,
    pub(crate) policy: IntCounterVec,
    pub(crate) rate_limit: IntCounterVec,
}

impl ReportOnlyMetrics {
    pub(super) fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        Ok(Self {
            access_list: make.counters(
                "postern_proxy_access_list_report_only_total",
                "Requests that a report-only access list would have rejected",
                &["route"],
            )?,
            connections: make.counter(
                "postern_proxy_connections_report_only_total",
                "Connections that a report-only access list of a listener would have closed",
            )?,
            external_authorization: make.counters(
                "postern_proxy_external_authorization_report_only_total",
                "Requests forwarded by a report-only external authorization that did not allow them",
                &["route", "code"],
            )?,
            policy: make.counters(
                "postern_proxy_policy_report_only_total",
                "Requests forwarded by a report-only policy that would have rejected them",
                &["route", "code"],
            )?,
            rate_limit: make.counters(
                "postern_proxy_rate_limit_report_only_total",
                "Requests forwarded by a report-only rate limit that would have rejected them",
                &["route", "limit"],
            )?,
        })
    }
}
