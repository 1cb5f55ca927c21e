//! The Prometheus metrics of the service.

use std::time::Duration;

mod provider;
mod safeguards;

use postern_core::clock::Timestamp;
use postern_core::dependency::Dependencies;
use postern_core::health::Health;
use postern_service::http::HttpMetrics;
use postern_store::database::{PoolMetrics, PoolUsage};
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use crate::notification::{Channel, Lane, PerChannel, Priority};
use crate::store::{ResultKind, ResultRow};

use provider::ProviderMetrics;
pub(crate) use provider::{CallSummary, OUTCOMES as CALL_OUTCOMES, ProviderCallMetrics};
use safeguards::SafeguardMetrics;

/// The metrics of this service. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct NotifyMetrics {
    registry: Registry,
    /// Dropped spans.
    pub(crate) spans_dropped: IntCounter,
    /// Counters by channel and priority, resolved at start.
    accepted: PerChannel<[IntCounter; Priority::ALL.len()]>,
    /// Histograms by priority.
    accept_seconds: [Histogram; Priority::ALL.len()],
    batch_rows: Histogram,
    attempts: IntCounterVec,
    delivery_seconds: [Histogram; Priority::ALL.len()],
    lease_lost: IntCounter,
    low_throttle: IntGaugeVec,
    depth: IntGaugeVec,
    oldest: GaugeVec,
    retained_since: IntGauge,
    /// 1, or 0 if the last change of the templates was rejected.
    pub(crate) template_reload_successful: IntGauge,
    receipts: IntCounterVec,
    providers: ProviderMetrics,
    safeguards: SafeguardMetrics,
    http: HttpMetrics,
    pools: PoolMetrics,
    health: Health,
    dependencies: Dependencies,
}

// === impl NotifyMetrics ===

impl NotifyMetrics {
    /// Creates the metrics in a registry of their own.
    pub(crate) fn new() -> Self {
        let (registry, health) = (Registry::new(), Health::new());
        let rows = HistogramOpts::new("postern_notify_accept_batch_rows", "Rows per commit")
            .buckets(prometheus::exponential_buckets(1.0, 2.0, 12).unwrap_or_default());
        Self {
            spans_dropped: spans_dropped(&registry),
            accepted: accepted(&registry),
            accept_seconds: by_priority(
                &registry,
                "postern_notify_accept_seconds",
                "Seconds from request to commit",
            ),
            batch_rows: register(&registry, Histogram::with_opts(rows)),
            attempts: counters(
                &registry,
                "postern_notify_attempts_total",
                "Attempts by provider and outcome",
                &["channel", "provider", "outcome", "code"],
            ),
            delivery_seconds: by_priority(
                &registry,
                "postern_notify_delivery_seconds",
                "Seconds from acceptance to the provider's acceptance",
            ),
            lease_lost: lease_lost(&registry),
            low_throttle: gauges(
                &registry,
                "postern_notify_low_throttle",
                "Throttling of LOW: 0 off, 1 reduced, 2 paused",
                &["channel"],
            ),
            depth: gauges(
                &registry,
                "postern_notify_queue_rows",
                "Rows in the queue, waiting or in delivery",
                &["channel", "priority", "lane"],
            ),
            oldest: Self::oldest_waiting(&registry),
            retained_since: register(
                &registry,
                IntGauge::new(
                    "postern_notify_retained_since_timestamp_seconds",
                    "Time before which records have been deleted",
                ),
            ),
            template_reload_successful: register(
                &registry,
                IntGauge::new(
                    "postern_notify_template_reload_successful",
                    "1, or 0 if the last change of the templates was rejected",
                ),
            ),
            receipts: counters(
                &registry,
                "postern_notify_receipts_total",
                "Delivery reports",
                &["provider", "outcome"],
            ),
            providers: ProviderMetrics::new(&registry),
            safeguards: SafeguardMetrics::new(&registry),
            http: HttpMetrics::new(&registry).expect("each metric is registered once"),
            pools: PoolMetrics::new(&registry).expect("each metric is registered once"),
            dependencies: Dependencies::new(&health, &registry)
                .expect("each metric is registered once"),
            health,
            registry,
        }
    }

    /// Returns the registry, for the admin listener.
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

    /// Records the use of the database connections: those of the queue, and all others.
    pub(crate) fn pool_usage(&self, queue: Option<PoolUsage>, main: Option<PoolUsage>) {
        self.pools.record("queue", queue);
        self.pools.record("main", main);
    }

    /// Returns the metrics of the HTTP server.
    pub(crate) fn http(&self) -> HttpMetrics {
        self.http.clone()
    }

    /// Returns the metrics of one provider.
    pub(crate) fn provider(&self, channel: Channel, name: &str) -> ProviderCallMetrics {
        self.providers.of(channel, name)
    }

    /// Records a notification that failed finally. `provider` is the one of the last attempt.
    pub(crate) fn dead_letter(&self, channel: Channel, provider: &str) {
        self.providers
            .dead_letters
            .with_label_values(&[channel.as_str(), provider])
            .inc();
    }

    /// Records a request rejected by the quota. `caller` is `user` or `service`.
    pub(crate) fn quota_exceeded(&self, caller: &str) {
        self.safeguards
            .quota_exceeded
            .with_label_values(&[caller])
            .inc();
    }

    /// Records a rejected webhook request.
    pub(crate) fn webhook_rejected(&self, provider: &str, reason: &str) {
        self.safeguards
            .webhook_rejections
            .with_label_values(&[provider, reason])
            .inc();
    }

    /// Records addresses added to the suppression lists, and the number of cached entries.
    pub(crate) fn suppressions(&self, added: u64, cached: usize) {
        self.safeguards.suppressions.inc_by(added);
        self.safeguards
            .suppressed
            .set(i64::try_from(cached).unwrap_or(i64::MAX));
    }

    /// Records the difference between the clocks of the machine and of the database.
    pub(crate) fn clock_skew(&self, skew_ms: i64) {
        self.safeguards.clock_skew.set(skew_ms.abs() / 1000);
    }

    /// Records the time before which records have been deleted.
    pub(crate) fn retained_since(&self, at: Timestamp) {
        self.retained_since.set(at.unix_seconds());
    }

    /// Records an accepted notification.
    pub(crate) fn accepted(&self, channel: Channel, priority: Priority, took: Duration) {
        self.accepted.get(channel)[priority.index()].inc();
        self.accept_seconds[priority.index()].observe(took.as_secs_f64());
    }

    /// Records the number of rows of one commit.
    #[expect(clippy::cast_precision_loss, reason = "a batch has some hundred rows")]
    pub(crate) fn batch(&self, rows: usize) {
        self.batch_rows.observe(rows as f64);
    }

    /// Records durable results of attempts. Adjacent results mostly have equal labels and are
    /// counted together.
    pub(crate) fn record_results<'a>(
        &self,
        ended: impl Iterator<Item = (Lane, &'a ResultRow, Duration)>,
    ) {
        let mut pending: Option<([&str; 4], u64)> = None;
        for (lane, result, age) in ended {
            let labels = attempt_labels(lane, result);
            match &mut pending {
                Some((known, count)) if *known == labels => *count += 1,
                _ => self.count_equal(pending.replace((labels, 1))),
            }
            if result.kind == ResultKind::Sent {
                self.delivery_seconds[lane.priority.index()].observe(age.as_secs_f64());
            }
        }
        self.count_equal(pending);
    }

    fn count_equal(&self, pending: Option<([&str; 4], u64)>) {
        if let Some((labels, count)) = pending {
            self.attempts.with_label_values(&labels).inc_by(count);
        }
    }

    fn oldest_waiting(registry: &Registry) -> GaugeVec {
        let opts = Opts::new(
            "postern_notify_oldest_waiting_seconds",
            "Age of the oldest waiting row; NaN while it cannot be read",
        );
        let labels = ["channel", "priority", "lane"];
        register(registry, GaugeVec::new(opts, &labels))
    }

    /// Records results that were discarded because the lease was lost.
    pub(crate) fn lease_lost(&self, rows: usize) {
        self.lease_lost.inc_by(rows as u64);
    }

    /// Records the throttling of LOW on a channel.
    pub(crate) fn low_throttle(&self, channel: Channel, level: u8) {
        self.low_throttle
            .with_label_values(&[channel.as_str()])
            .set(level.into());
    }

    fn lane_labels(&self, lane: Lane) -> [&'static str; 3] {
        let kind = if lane.retry { "retry" } else { "first" };
        let (channel, priority) = (lane.channel.as_str(), lane.priority.as_str());
        [channel, priority, kind]
    }

    /// Records the number of rows in a lane.
    pub(crate) fn depth(&self, lane: Lane, rows: i64) {
        self.depth
            .with_label_values(&self.lane_labels(lane))
            .set(rows);
    }

    /// Records the age of the oldest waiting row of a lane.
    pub(crate) fn oldest(&self, lane: Lane, age: Duration) {
        self.oldest
            .with_label_values(&self.lane_labels(lane))
            .set(age.as_secs_f64());
    }

    /// Records that the lanes of a channel cannot be read, until a scan succeeds.
    pub(crate) fn oldest_unknown(&self, channel: Channel) {
        for lane in Lane::of(channel) {
            self.oldest
                .with_label_values(&self.lane_labels(lane))
                .set(f64::NAN);
        }
    }

    /// Records delivery reports.
    pub(crate) fn receipts(&self, provider: &str, outcome: &str, count: u64) {
        self.receipts
            .with_label_values(&[provider, outcome])
            .inc_by(count);
    }
}

impl Default for NotifyMetrics {
    fn default() -> Self {
        Self::new()
    }
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
    [
        lane.channel.as_str(),
        provider,
        outcome,
        result.code.as_deref().unwrap_or("ok"),
    ]
}

fn accepted(registry: &Registry) -> PerChannel<[IntCounter; Priority::ALL.len()]> {
    let labels = ["channel", "priority"];
    let counters = counters(
        registry,
        "postern_notify_accepted_total",
        "Notifications accepted",
        &labels,
    );
    let of = |channel: Channel, priority: Priority| {
        counters.with_label_values(&[channel.as_str(), priority.as_str()])
    };
    PerChannel::from_fn(|channel| Priority::ALL.map(|priority| of(channel, priority)))
}

fn spans_dropped(registry: &Registry) -> IntCounter {
    let dropped = IntCounter::new(
        "postern_spans_dropped_total",
        "Spans that did not fit into the queue or that no collector accepted",
    );
    register(registry, dropped)
}

fn lease_lost(registry: &Registry) -> IntCounter {
    let counter = IntCounter::new(
        "postern_notify_lease_lost_total",
        "Results discarded because another worker had taken the row over",
    );
    register(registry, counter)
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// Registers a histogram with buckets from 1 ms to about 9 min.
fn by_priority(registry: &Registry, name: &str, help: &str) -> [Histogram; Priority::ALL.len()] {
    let buckets = prometheus::exponential_buckets(0.001, 2.0, 20).unwrap_or_default();
    let options = HistogramOpts::new(name, help).buckets(buckets);
    let histograms = register(registry, HistogramVec::new(options, &["priority"]));
    Priority::ALL.map(|priority| histograms.with_label_values(&[priority.as_str()]))
}

fn register<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> C {
    let collector = made.expect("metric names and labels are valid constants");
    registry
        .register(Box::new(collector.clone()))
        .expect("each metric is registered once");
    collector
}
