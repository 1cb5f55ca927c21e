//! When an upstream hedges requests, and how many.

use std::time::Duration;

use prometheus::IntCounterVec;

use crate::config::{HedgeConfig, HedgeDelay};
use crate::telemetry::metrics::HedgeResult;
use crate::upstream::UpstreamPool;
use crate::upstream::latency::LatencyPercentiles;
use crate::upstream::retry_budget::RetryBudget;

/// The hedging state of an upstream.
#[derive(Debug)]
pub(super) struct Hedging {
    after: HedgeDelay,
    budget: RetryBudget,
    latency: LatencyPercentiles,
    results: IntCounterVec,
}

// === impl Hedging ===

impl Hedging {
    pub(super) fn new(config: HedgeConfig, results: IntCounterVec) -> Self {
        Self {
            after: config.after,
            budget: RetryBudget::new(config.budget),
            latency: LatencyPercentiles::default(),
            results,
        }
    }

    /// Records an answered request.
    pub(super) fn note_response(&self, micros: u64) {
        self.budget.deposit();
        self.latency.record(micros);
    }

    fn delay(&self) -> Option<Duration> {
        match self.after {
            HedgeDelay::Fixed(delay) => Some(delay),
            HedgeDelay::Percentile(percent) => self.latency.percentile(percent),
        }
    }
}

impl UpstreamPool {
    /// Returns the time after which a request is hedged; `None` without hedging, and until the
    /// percentile is known.
    pub(crate) fn hedge_delay(&self) -> Option<Duration> {
        self.hedging.as_deref().and_then(Hedging::delay)
    }

    /// Takes a second attempt from the budget. Returns whether it may be made.
    pub(crate) fn try_hedge(&self) -> bool {
        let hedging = self.hedging.as_ref();
        hedging.is_some_and(|hedging| hedging.budget.try_withdraw())
    }

    /// Counts the result of a second attempt.
    pub(crate) fn count_hedge(&self, result: HedgeResult) {
        if let Some(hedging) = &self.hedging {
            let labels = [self.config.name.as_str(), result.as_str()];
            hedging.results.with_label_values(&labels).inc();
        }
    }

    /// Records the time after which an attempt was abandoned for a faster one.
    pub(crate) fn note_overtaken(&self, after: Duration) {
        if let Some(hedging) = &self.hedging {
            let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
            hedging.latency.record(micros);
        }
    }
}
