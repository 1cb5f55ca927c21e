//! The metrics of what protects the service, its recipients and their addresses.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::{counters, register};

/// The metrics of quotas, webhooks, suppression lists and clocks.
#[derive(Clone, Debug)]
pub(super) struct SafeguardMetrics {
    pub(super) quota_exceeded: IntCounterVec,
    pub(super) webhook_rejections: IntCounterVec,
    pub(super) suppressions: IntCounter,
    pub(super) suppressed: IntGauge,
    pub(super) clock_skew: IntGauge,
}

// === impl SafeguardMetrics ===

impl SafeguardMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let suppressions = IntCounter::new(
            "postern_notify_suppressions_total",
            "Addresses suppressed because they are proven not to exist",
        );
        let suppressed = IntGauge::new(
            "postern_notify_suppressed_addresses",
            "Entries of the suppression lists in memory",
        );
        let clock_skew = IntGauge::new(
            "postern_notify_clock_skew_seconds",
            "Difference between the clocks of the machine and of the database",
        );
        Self {
            quota_exceeded: counters(
                registry,
                "postern_notify_quota_exceeded_total",
                "Requests rejected because the quota of the caller was exhausted",
                &["caller"],
            ),
            webhook_rejections: counters(
                registry,
                "postern_notify_webhook_rejections_total",
                "Webhook requests that were rejected",
                &["provider", "reason"],
            ),
            suppressions: register(registry, suppressions),
            suppressed: register(registry, suppressed),
            clock_skew: register(registry, clock_skew),
        }
    }
}
