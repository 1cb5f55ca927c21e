//! What is counted.

use std::time::Duration;

use postern_common::clock::Timestamp;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use crate::notification::{Channel, Lane, PerChannel, Priority};
use crate::store::{ResultKind, ResultRow};

/// The counters of this service; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct NotifyMetrics {
    registry: Registry,
    /// By channel and priority, looked up once.
    accepted: PerChannel<[IntCounter; Priority::ALL.len()]>,
    /// By priority.
    accept_seconds: [Histogram; Priority::ALL.len()],
    batch_rows: Histogram,
    attempts: IntCounterVec,
    delivery_seconds: [Histogram; Priority::ALL.len()],
    lease_lost: IntCounter,
    gate: IntGaugeVec,
    depth: IntGaugeVec,
    oldest: IntGaugeVec,
    kept_from: IntGaugeVec,
    receipts: IntCounterVec,
}

// === impl NotifyMetrics ===

impl NotifyMetrics {
    /// In a registry of their own.
    #[must_use]
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let rows = HistogramOpts::new("postern_notify_accept_batch_rows", "Rows of one commit")
            .buckets(prometheus::exponential_buckets(1.0, 2.0, 12).unwrap_or_default());
        let lost = IntCounter::new(
            "postern_notify_lease_lost_total",
            "Results refused: others had taken over",
        );
        Self {
            accepted: accepted(&registry),
            accept_seconds: by_priority(
                &registry,
                "postern_notify_accept_seconds",
                "From request to commit",
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
                "From acceptance to the provider's yes",
            ),
            lease_lost: register(&registry, lost),
            gate: gauges(
                &registry,
                "postern_notify_low_gate",
                "LOW: 0 open, 1 throttled, 2 paused",
                &["channel"],
            ),
            depth: gauges(
                &registry,
                "postern_notify_depth",
                "Rows that wait or are in hand",
                &["channel", "priority", "line"],
            ),
            oldest: gauges(
                &registry,
                "postern_notify_oldest_milliseconds",
                "How long the oldest has waited that is not in hand",
                &["channel", "priority", "line"],
            ),
            kept_from: gauges(
                &registry,
                "postern_notify_kept_from_timestamp_seconds",
                "What was accepted before is dropped",
                &[],
            ),
            receipts: counters(
                &registry,
                "postern_notify_receipts_total",
                "Reports of providers",
                &["provider", "outcome"],
            ),
            registry,
        }
    }

    /// For the admin address.
    #[must_use]
    pub(crate) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// What is older was dropped.
    pub(crate) fn kept_from(&self, at: Timestamp) {
        self.kept_from
            .with_label_values::<&str>(&[])
            .set(at.unix_seconds());
    }

    /// One more was accepted.
    pub(crate) fn accepted(&self, channel: Channel, priority: Priority, took: Duration) {
        self.accepted.get(channel)[priority.index()].inc();
        self.accept_seconds[priority.index()].observe(took.as_secs_f64());
    }

    /// A commit took so many rows.
    #[expect(clippy::cast_precision_loss, reason = "a batch has some hundred rows")]
    pub(crate) fn batch(&self, rows: usize) {
        self.batch_rows.observe(rows as f64);
    }

    /// Attempts are over and their results durable. Neighbours mostly end alike and are counted
    /// together.
    pub(crate) fn record_results<'a>(
        &self,
        ended: impl Iterator<Item = (Lane, &'a ResultRow, Duration)>,
    ) {
        let mut alike: Option<([&str; 4], u64)> = None;
        for (lane, result, age) in ended {
            let labels = attempt_labels(lane, result);
            match &mut alike {
                Some((known, count)) if *known == labels => *count += 1,
                _ => self.count_alike(alike.replace((labels, 1))),
            }
            if result.kind == ResultKind::Sent {
                self.delivery_seconds[lane.priority.index()].observe(age.as_secs_f64());
            }
        }
        self.count_alike(alike);
    }

    fn count_alike(&self, alike: Option<([&str; 4], u64)>) {
        if let Some((labels, count)) = alike {
            self.attempts.with_label_values(&labels).inc_by(count);
        }
    }

    /// Results were refused.
    pub(crate) fn lease_lost(&self, rows: usize) {
        self.lease_lost.inc_by(rows as u64);
    }

    /// The LOW gate of a channel.
    pub(crate) fn gate(&self, channel: Channel, level: u8) {
        self.gate
            .with_label_values(&[channel.as_str()])
            .set(level.into());
    }

    /// How many rows a lane has.
    pub(crate) fn depth(&self, lane: Lane, rows: i64) {
        let line = if lane.retry { "repeats" } else { "first" };
        self.depth
            .with_label_values(&[lane.channel.as_str(), lane.priority.as_str(), line])
            .set(rows);
    }

    /// How long the oldest of a lane has waited.
    pub(crate) fn oldest(&self, lane: Lane, age: Duration) {
        let line = if lane.retry { "repeats" } else { "first" };
        let millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        self.oldest
            .with_label_values(&[lane.channel.as_str(), lane.priority.as_str(), line])
            .set(millis);
    }

    /// Providers reported so many times.
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

/// Channel, provider, outcome, code.
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

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// From a millisecond to some minutes.
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
    let collector = made.expect("names and labels are constants that Prometheus takes");
    registry
        .register(Box::new(collector.clone()))
        .expect("each name is registered once");
    collector
}
