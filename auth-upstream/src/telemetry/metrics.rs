//! Prometheus metrics of the authentication upstream.

use std::time::Duration;

use postern_core::dependency::Dependencies;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_service::http::{HttpMetrics, LATENCY_BUCKETS_S};
use postern_store::database::PoolMetrics;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

use super::{AuditDropReason, PoolOperation};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) health: Health,
    pub(crate) dependencies: Dependencies,
    pub(crate) http: HttpMetrics,
    pub(crate) pools: PoolMetrics,
    pub(crate) own: OwnMetrics,
}

postern_core::metrics! {
    pub(crate) struct OwnMetrics {
        /// Spans that did not fit into the queue or that no collector accepted.
        pub(crate) spans_dropped: IntCounter = "postern_spans_dropped_total" [];
        /// Completed operations by outcome.
        pub(crate) operations: IntCounterVec = "postern_auth_operations_total" ["operation", "outcome"];
        /// Attempts that the limits rejected without evaluating them.
        pub(crate) attempts_throttled: IntCounterVec = "postern_auth_attempts_throttled_total" ["kind"];
        /// Sign-ins rejected because one account or identity signs in too often.
        pub(crate) sign_in_quota_exceeded: IntCounter = "postern_auth_sign_in_quota_exceeded_total" [];
        /// Audit events that were not stored.
        audit_dropped: IntCounterVec = "postern_auth_audit_events_dropped_total" ["reason"];
        /// Duration of calls to the actor pool by operation and outcome.
        pool_calls: HistogramVec = "postern_auth_pool_call_seconds" ["operation", "outcome"]
            in LATENCY_BUCKETS_S.to_vec();
        /// Registrations that are neither completed nor undone.
        pub(crate) pending_registrations: IntGauge = "postern_auth_pending_registrations" [];
    }
}

named! {
    PoolCallOutcome {
        Ok = "ok",
        /// The pool answered with an error that is not a failure of its own.
        Refused = "refused",
        /// The pool failed or did not answer, or the circuit breaker is open.
        Unavailable = "unavailable",
        /// The pool rejected the call because of its request quota.
        Throttled = "throttled",
        /// The pool rejected the app client, its secret, its flows or the AWS credentials.
        Misconfigured = "misconfigured",
    }
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new() -> Result<Self, Exit> {
        Self::register().map_err(|error| Exit::unavailable(format!("metrics: {error}")))
    }

    fn register() -> prometheus::Result<Self> {
        let (registry, health) = (Registry::new(), Health::new());
        Ok(Self {
            dependencies: Dependencies::new(&health, &registry)?,
            http: HttpMetrics::new(&registry)?,
            pools: PoolMetrics::new(&registry)?,
            own: OwnMetrics::new(&registry)?,
            health,
            registry,
        })
    }

    pub(crate) fn observe_pool_call(
        &self,
        operation: PoolOperation,
        outcome: PoolCallOutcome,
        duration: Duration,
    ) {
        self.own
            .pool_calls
            .with_label_values(&[operation.name(), outcome.name()])
            .observe(duration.as_secs_f64());
    }

    pub(crate) fn count_audit_drop(&self, reason: AuditDropReason, events: u64) {
        self.own
            .audit_dropped
            .with_label_values(&[reason.name()])
            .inc_by(events);
    }

    #[cfg(test)]
    pub(crate) fn audit_drops(&self, reason: AuditDropReason) -> u64 {
        self.own
            .audit_dropped
            .with_label_values(&[reason.name()])
            .get()
    }

    #[cfg(test)]
    pub(crate) fn operations(&self, operation: super::Operation, outcome: &str) -> u64 {
        self.own
            .operations
            .with_label_values(&[operation.name(), outcome])
            .get()
    }
}
