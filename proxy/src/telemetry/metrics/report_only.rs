//! Metrics of checks in report-only mode.

use prometheus::IntCounterVec;

use super::MetricFactory;

/// Requests that a check in report-only mode would have rejected.
#[derive(Debug)]
pub(crate) struct ReportOnlyMetrics {
    pub(crate) policy: IntCounterVec,
    pub(crate) rate_limit: IntCounterVec,
}

impl ReportOnlyMetrics {
    pub(super) fn new(make: &MetricFactory) -> prometheus::Result<Self> {
        Ok(Self {
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
