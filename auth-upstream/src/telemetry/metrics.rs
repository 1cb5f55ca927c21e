//! Prometheus metrics of the authentication upstream.

use std::time::Duration;

use postern_core::dependency::Dependencies;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_service::http::{HttpMetrics, LATENCY_BUCKETS_S};
use postern_store::database::{PoolMetrics, PoolUsage};
use prometheus::{
    HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry,
    register_histogram_vec_with_registry, register_int_counter_vec_with_registry,
    register_int_counter_with_registry, register_int_gauge_with_registry,
};

use super::{AuditDropReason, Operation, PoolOperation};
use crate::protection::AttemptKind;

/// The metrics and the registry that exports them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    health: Health,
    dependencies: Dependencies,
    http: HttpMetrics,
    pools: PoolMetrics,
    /// Dropped spans.
    pub(crate) spans_dropped: IntCounter,
    operations: IntCounterVec,
    attempts_throttled: IntCounterVec,
    /// Right passwords and social identities that were accepted too often.
    pub(crate) sign_in_quota_exceeded: IntCounter,
    audit_dropped: IntCounterVec,
    pool_calls: HistogramVec,
    pending_registrations: IntGauge,
}

named! {
    /// The outcome of a call to the actor pool.
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
            operations: register_int_counter_vec_with_registry!(
                "postern_auth_operations_total",
                "Completed operations by outcome.",
                &["operation", "outcome"],
                registry
            )?,
            attempts_throttled: register_int_counter_vec_with_registry!(
                "postern_auth_attempts_throttled_total",
                "Attempts that the limits rejected without evaluating them.",
                &["kind"],
                registry
            )?,
            sign_in_quota_exceeded: register_int_counter_with_registry!(
                "postern_auth_sign_in_quota_exceeded_total",
                "Sign-ins rejected because one account or identity signs in too often.",
                registry
            )?,
            audit_dropped: register_int_counter_vec_with_registry!(
                "postern_auth_audit_events_dropped_total",
                "Audit events that were not stored.",
                &["reason"],
                registry
            )?,
            pool_calls: register_histogram_vec_with_registry!(
                "postern_auth_pool_call_seconds",
                "Duration of calls to the actor pool by operation and outcome.",
                &["operation", "outcome"],
                LATENCY_BUCKETS_S.to_vec(),
                registry
            )?,
            pending_registrations: register_int_gauge_with_registry!(
                "postern_auth_pending_registrations",
                "Registrations that are neither completed nor undone.",
                registry
            )?,
            dependencies: Dependencies::new(&health, &registry)?,
            http: HttpMetrics::new(&registry)?,
            pools: PoolMetrics::new(&registry)?,
            health,
            spans_dropped: register_int_counter_with_registry!(
                "postern_spans_dropped_total",
                "Spans that did not fit into the queue or that no collector accepted.",
                registry
            )?,
            registry,
        })
    }

    /// Returns the registry that exports these metrics.
    pub(crate) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Returns the readiness of the service.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the registry of the systems that the service depends on.
    pub(crate) fn dependencies(&self) -> &Dependencies {
        &self.dependencies
    }

    /// Records the use of the database connections.
    pub(crate) fn set_pool_usage(&self, usage: Option<PoolUsage>) {
        self.pools.record("main", usage);
    }

    /// Returns the metrics of the HTTP server.
    pub(crate) fn http(&self) -> HttpMetrics {
        self.http.clone()
    }

    /// Records the duration and the outcome of a call to the actor pool.
    pub(crate) fn observe_pool_call(
        &self,
        operation: PoolOperation,
        outcome: PoolCallOutcome,
        duration: Duration,
    ) {
        self.pool_calls
            .with_label_values(&[operation.name(), outcome.name()])
            .observe(duration.as_secs_f64());
    }

    /// Counts an attempt that was rejected without being evaluated.
    pub(crate) fn count_throttled(&self, kind: AttemptKind) {
        self.attempts_throttled
            .with_label_values(&[kind.name()])
            .inc();
    }

    /// Counts a completed operation. `outcome` is `ok` or the name of an error.
    pub(crate) fn count_operation(&self, operation: Operation, outcome: &str) {
        self.operations
            .with_label_values(&[operation.name(), outcome])
            .inc();
    }

    /// Counts audit events that were not stored.
    pub(crate) fn count_audit_drop(&self, reason: AuditDropReason, events: u64) {
        self.audit_dropped
            .with_label_values(&[reason.name()])
            .inc_by(events);
    }

    pub(crate) fn set_pending_registrations(&self, count: i64) {
        self.pending_registrations.set(count);
    }

    /// Returns how many audit events were dropped for a reason.
    #[cfg(test)]
    pub(crate) fn audit_drops(&self, reason: AuditDropReason) -> u64 {
        self.audit_dropped.with_label_values(&[reason.name()]).get()
    }

    /// Returns how many operations ended with this outcome.
    #[cfg(test)]
    pub(crate) fn operations(&self, operation: Operation, outcome: &str) -> u64 {
        self.operations
            .with_label_values(&[operation.name(), outcome])
            .get()
    }
}
