//! The metrics of providers.

use postern_service::http::LATENCY_BUCKETS_S;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

use serde::Serialize;

use super::{counters, gauges, register};
use crate::notification::Channel;

/// The outcomes of calls, in the order of [`ProviderCallMetrics::calls`].
pub(crate) const OUTCOMES: [&str; 3] = ["ok", "refused", "failed"];

/// The metrics of all providers.
#[derive(Clone, Debug)]
pub(super) struct ProviderMetrics {
    up: IntGaugeVec,
    breaker: IntGaugeVec,
    paused: IntGaugeVec,
    calls: HistogramVec,
    pub(super) dead_letters: IntCounterVec,
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
    pub(crate) calls: [Histogram; OUTCOMES.len()],
}

/// The calls of a provider since the start of this process.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallSummary {
    ok: u64,
    refused: u64,
    failed: u64,
    /// The mean duration; `None` before the first call.
    mean_seconds: Option<f64>,
}

// === impl ProviderCallMetrics ===

impl ProviderCallMetrics {
    /// Returns the numbers of calls by outcome and their mean duration.
    #[expect(clippy::cast_precision_loss, reason = "a mean is an estimate")]
    pub(crate) fn summary(&self) -> CallSummary {
        let [ok, refused, failed] = self.calls.each_ref().map(Histogram::get_sample_count);
        let seconds: f64 = self.calls.iter().map(Histogram::get_sample_sum).sum();
        let count = ok + refused + failed;
        CallSummary {
            ok,
            refused,
            failed,
            mean_seconds: (count > 0).then(|| seconds / count as f64),
        }
    }
}

// === impl ProviderMetrics ===

impl ProviderMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let labels = ["channel", "provider"];
        let calls = HistogramOpts::new(
            "postern_notify_provider_call_seconds",
            "Seconds of calls to providers by outcome",
        )
        .buckets(LATENCY_BUCKETS_S.to_vec());
        Self {
            up: gauges(
                registry,
                "postern_notify_provider_up",
                "1 while the provider answers, 0 while calls fail because of it",
                &labels,
            ),
            breaker: gauges(
                registry,
                "postern_notify_circuit_breaker_state",
                "Circuit breaker of the provider: 0 closed, 1 half-open, 2 open",
                &labels,
            ),
            paused: gauges(
                registry,
                "postern_notify_provider_paused",
                "1 while an operator has paused the provider",
                &labels,
            ),
            calls: register(
                registry,
                HistogramVec::new(calls, &["channel", "provider", "outcome"]),
            ),
            dead_letters: counters(
                registry,
                "postern_notify_dead_letters_total",
                "Notifications that failed finally",
                &labels,
            ),
        }
    }

    pub(super) fn of(&self, channel: Channel, provider: &str) -> ProviderCallMetrics {
        let labels = [channel.as_str(), provider];
        let up = self.up.with_label_values(&labels);
        up.set(1);
        // Counters exist from the start, so that a rate notices the first increment.
        let _dead_letters = self.dead_letters.with_label_values(&labels);
        ProviderCallMetrics {
            up,
            breaker: self.breaker.with_label_values(&labels),
            paused: self.paused.with_label_values(&labels),
            calls: OUTCOMES.map(|outcome| {
                self.calls
                    .with_label_values(&[channel.as_str(), provider, outcome])
            }),
        }
    }
}
