//! The Prometheus metrics of the service.

use std::time::Duration;

use postern_core::dependency::Dependencies;
use postern_core::health::Health;
use postern_service::http::{HttpMetrics, LATENCY_BUCKETS_S};
use postern_store::database::{PoolMetrics, PoolUsage};
use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    exponential_buckets,
};
use serde_json::{Value, json};

use crate::notification::{Channel, Lane, Priority};
use crate::store::{ResultKind, ResultRow};

/// The names of `CallOutcome`, in the order of [`ProviderCallMetrics::calls`].
pub(crate) const CALL_OUTCOMES: [&str; 3] = ["ok", "refused", "failed"];

/// The metrics of this service. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct NotifyMetrics {
    pub(crate) registry: Registry,
    /// What happens to notifications, providers and addresses.
    pub(crate) events: EventMetrics,
    pub(crate) http: HttpMetrics,
    pools: PoolMetrics,
    /// The readiness of the service.
    pub(crate) health: Health,
    /// The systems that the service depends on.
    pub(crate) dependencies: Dependencies,
}

postern_core::metrics! {
    /// The metrics that only this service has.
    pub(crate) struct EventMetrics {
        /// Spans that did not fit into the queue or that no collector accepted.
        pub(crate) spans_dropped: IntCounter = "postern_spans_dropped_total" [];
        /// Notifications accepted.
        accepted: IntCounterVec = "postern_notify_accepted_total" ["channel", "priority"];
        /// Seconds from request to commit.
        accept_seconds: HistogramVec = "postern_notify_accept_seconds" ["priority"] in long_times();
        /// Rows per commit.
        pub(crate) batch_rows: Histogram = "postern_notify_accept_batch_rows" [] in exponential_buckets(1.0, 2.0, 12).unwrap_or_default();
        /// Attempts by provider and outcome.
        attempts: IntCounterVec = "postern_notify_attempts_total" ["channel", "provider", "outcome", "code"];
        /// Seconds from acceptance to the provider's acceptance.
        delivery_seconds: HistogramVec = "postern_notify_delivery_seconds" ["priority"] in long_times();
        /// Results discarded because another worker had taken the row over.
        pub(crate) lease_lost: IntCounter = "postern_notify_lease_lost_total" [];
        /// Throttling of LOW: 0 off, 1 reduced, 2 paused.
        pub(crate) low_throttle: IntGaugeVec = "postern_notify_low_throttle" ["channel"];
        /// Rows in the queue, waiting or in delivery.
        depth: IntGaugeVec = "postern_notify_queue_rows" ["channel", "priority", "lane"];
        /// Age of the oldest waiting row; NaN while it cannot be read.
        oldest: GaugeVec = "postern_notify_oldest_waiting_seconds" ["channel", "priority", "lane"];
        /// Time before which records have been deleted.
        pub(crate) retained_since: IntGauge = "postern_notify_retained_since_timestamp_seconds" [];
        /// 1, or 0 if the last change of the templates was rejected.
        pub(crate) template_reload_successful: IntGauge = "postern_notify_template_reload_successful" [];
        /// Delivery reports.
        pub(crate) receipts: IntCounterVec = "postern_notify_receipts_total" ["provider", "outcome"];
        /// 1 while the provider answers, 0 while calls fail because of it.
        provider_up: IntGaugeVec = "postern_notify_provider_up" ["channel", "provider"];
        /// Circuit breaker of the provider: 0 closed, 1 half-open, 2 open.
        breaker: IntGaugeVec = "postern_notify_circuit_breaker_state" ["channel", "provider"];
        /// 1 while an operator has paused the provider.
        provider_paused: IntGaugeVec = "postern_notify_provider_paused" ["channel", "provider"];
        /// Seconds of calls to providers by outcome.
        calls: HistogramVec = "postern_notify_provider_call_seconds" ["channel", "provider", "outcome"] in LATENCY_BUCKETS_S.to_vec();
        /// Requests rejected because the quota of the caller was exhausted.
        pub(crate) quota_exceeded: IntCounterVec = "postern_notify_quota_exceeded_total" ["caller"];
        /// Webhook requests that were rejected.
        pub(crate) webhook_rejections: IntCounterVec = "postern_notify_webhook_rejections_total" ["provider", "reason"];
        /// Difference between the clocks of the machine and of the database.
        pub(crate) clock_skew: IntGauge = "postern_notify_clock_skew_seconds" [];
    }
}

/// The metrics of one provider, resolved at start.
#[derive(Clone, Debug)]
pub(crate) struct ProviderCallMetrics {
    /// 1 while the provider answers.
    pub(crate) up: IntGauge,
    /// 0 closed, 1 half-open, 2 open.
    pub(crate) breaker: IntGauge,
    /// 1 while an operator has paused the provider.
    pub(crate) paused: IntGauge,
    /// The duration of calls that were accepted, refused, and failed because of the provider.
    pub(crate) calls: [Histogram; CALL_OUTCOMES.len()],
}

/// Returns the bounds of buckets from 1 ms to about 9 min.
fn long_times() -> Vec<f64> {
    exponential_buckets(0.001, 2.0, 20).unwrap_or_default()
}

// === impl NotifyMetrics ===

impl NotifyMetrics {
    /// Creates the metrics in a registry of their own.
    pub(crate) fn new() -> Self {
        Self::registered().expect("each metric is registered once, under a valid name")
    }

    fn registered() -> prometheus::Result<Self> {
        let (registry, health) = (Registry::new(), Health::new());
        let events = EventMetrics::new(&registry)?;
        // Counters exist from the start, so that a rate notices the first increment.
        for priority in Priority::ALL.map(Priority::as_str) {
            for channel in Channel::ALL.map(Channel::as_str) {
                events.accepted.with_label_values(&[channel, priority]);
            }
            events.accept_seconds.with_label_values(&[priority]);
            events.delivery_seconds.with_label_values(&[priority]);
        }
        Ok(Self {
            http: HttpMetrics::new(&registry)?,
            pools: PoolMetrics::new(&registry)?,
            dependencies: Dependencies::new(&health, &registry)?,
            events,
            health,
            registry,
        })
    }

    /// Records the use of the database connections: those of the queue, and all others.
    pub(crate) fn pool_usage(&self, queue: Option<PoolUsage>, main: Option<PoolUsage>) {
        self.pools.record("queue", queue);
        self.pools.record("main", main);
    }

    /// Returns the metrics of one provider.
    pub(crate) fn provider(&self, channel: Channel, name: &str) -> ProviderCallMetrics {
        let labels = [channel.as_str(), name];
        let events = &self.events;
        let up = events.provider_up.with_label_values(&labels);
        up.set(1);
        ProviderCallMetrics {
            up,
            breaker: events.breaker.with_label_values(&labels),
            paused: events.provider_paused.with_label_values(&labels),
            calls: CALL_OUTCOMES.map(|outcome| {
                let labels = [channel.as_str(), name, outcome];
                events.calls.with_label_values(&labels)
            }),
        }
    }

    /// Records an accepted notification.
    pub(crate) fn accepted(&self, lane: Lane, took: Duration) {
        let (channel, priority) = (lane.channel.as_str(), lane.priority.as_str());
        let accepted = self.events.accepted.with_label_values(&[channel, priority]);
        accepted.inc();
        let seconds = self.events.accept_seconds.with_label_values(&[priority]);
        seconds.observe(took.as_secs_f64());
    }

    /// Records a durable result of an attempt, at an age of the notification.
    pub(crate) fn record_result(&self, lane: Lane, result: &ResultRow, age: Duration) {
        let labels = attempt_labels(lane, result);
        self.events.attempts.with_label_values(&labels).inc();
        if result.kind == ResultKind::Sent {
            let labels = [lane.priority.as_str()];
            let seconds = self.events.delivery_seconds.with_label_values(&labels);
            seconds.observe(age.as_secs_f64());
        }
    }

    /// Records the number of rows in a lane.
    pub(crate) fn depth(&self, lane: Lane, rows: i64) {
        let depth = &self.events.depth;
        depth.with_label_values(&lane_labels(lane)).set(rows);
    }

    /// Records the age in seconds of the oldest waiting row of a lane; NaN while the lane cannot be
    /// read.
    pub(crate) fn oldest(&self, lane: Lane, age_s: f64) {
        let oldest = &self.events.oldest;
        oldest.with_label_values(&lane_labels(lane)).set(age_s);
    }
}

/// Returns the labels channel, priority and lane.
fn lane_labels(lane: Lane) -> [&'static str; 3] {
    let kind = if lane.retry { "retry" } else { "first" };
    [lane.channel.as_str(), lane.priority.as_str(), kind]
}

/// Returns the labels channel, provider, outcome and code.
fn attempt_labels(lane: Lane, result: &ResultRow) -> [&str; 4] {
    let outcome = match result.kind {
        ResultKind::Sent => "sent",
        ResultKind::Retrying => "retrying",
        ResultKind::Failed => "failed",
        ResultKind::Expired => "expired",
        ResultKind::Cancelled => "cancelled",
        ResultKind::Replayed => "replayed",
        ResultKind::Lost => "lost",
    };
    let provider = result.provider.as_deref().unwrap_or("none");
    let code = result.code.as_deref().unwrap_or("ok");
    [lane.channel.as_str(), provider, outcome, code]
}

// === impl ProviderCallMetrics ===

impl ProviderCallMetrics {
    /// Returns the numbers of calls since the start of this process, by outcome, and their mean
    /// duration.
    #[expect(clippy::cast_precision_loss, reason = "a mean is an estimate")]
    pub(crate) fn summary(&self) -> Value {
        let [ok, refused, failed] = self.calls.each_ref().map(Histogram::get_sample_count);
        let seconds: f64 = self.calls.iter().map(Histogram::get_sample_sum).sum();
        let count = ok + refused + failed;
        let mean_seconds = (count > 0).then(|| seconds / count as f64);
        json!({"ok": ok, "refused": refused, "failed": failed, "meanSeconds": mean_seconds})
    }
}
