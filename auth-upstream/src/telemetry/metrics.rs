//! Prometheus metrics of the authentication upstream.

use std::time::Duration;

use postern_core::dependency::Dependencies;
use postern_core::exit::Exit;
use postern_core::health::Health;
use postern_service::http::{HttpMetrics, LATENCY_BUCKETS_S};
use postern_store::database::{PoolMetrics, PoolUsage};
use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
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
        let counter = |name, help, labels: &[&str]| {
            registered(
                &registry,
                IntCounterVec::new(Opts::new(name, help), labels)?,
            )
        };
        let pool_calls = HistogramOpts::new(
            "postern_auth_pool_call_seconds",
            "Duration of calls to the actor pool by operation and outcome.",
        )
        .buckets(LATENCY_BUCKETS_S.to_vec());
        Ok(Self {
            operations: counter(
                "postern_auth_operations_total",
                "Completed operations by outcome.",
                &["operation", "outcome"],
            )?,
            attempts_throttled: counter(
                "postern_auth_attempts_throttled_total",
                "Attempts that the limits rejected without evaluating them.",
                &["kind"],
            )?,
            sign_in_quota_exceeded: registered(
                &registry,
                IntCounter::new(
                    "postern_auth_sign_in_quota_exceeded_total",
                    "Sign-ins rejected because one account or identity signs in too often.",
                )?,
            )?,
            audit_dropped: counter(
                "postern_auth_audit_events_dropped_total",
                "Audit events that were not stored.",
                &["reason"],
            )?,
            pool_calls: registered(
                &registry,
                HistogramVec::new(pool_calls, &["operation", "outcome"])?,
            )?,
            pending_registrations: registered(
                &registry,
                IntGauge::new(
                    "postern_auth_pending_registrations",
                    "Registrations that are neither completed nor undone.",
                )?,
            )?,
            dependencies: Dependencies::new(&health, &registry)?,
            http: HttpMetrics::new(&registry)?,
            pools: PoolMetrics::new(&registry)?,
            health,
            spans_dropped: registered(
                &registry,
                IntCounter::new(
                    "postern_spans_dropped_total",
                    "Spans that did not fit into the queue or that no collector accepted.",
                )?,
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

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
