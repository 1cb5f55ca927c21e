//! Numbers that an operator asks for.

use std::time::Duration;

use postern_common::exit::Exit;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

use crate::abuse::Door;
use crate::audit::Act;

/// Counters of the journeys.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    journeys: IntCounterVec,
    held: IntCounterVec,
    pool_calls: HistogramVec,
    /// Registrations that began and did not end yet.
    pub(crate) pending_registrations: IntGauge,
    /// 1 while the database answers.
    pub(crate) database_up: IntGauge,
    /// 1 while the shared cache answers.
    pub(crate) cache_up: IntGauge,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new() -> Result<Self, Exit> {
        let broken = |error: prometheus::Error| Exit::unavailable(format!("metrics: {error}"));
        let opts = Opts::new(
            "postern_auth_journeys_total",
            "Journeys by what was done and how it ended.",
        );
        let journeys = IntCounterVec::new(opts, &["act", "outcome"]).map_err(broken)?;
        let pending_registrations = IntGauge::new(
            "postern_auth_pending_registrations",
            "Registrations that began and did not end.",
        )
        .map_err(broken)?;
        let database_up =
            IntGauge::new("postern_auth_database_up", "1 while the database answers.")
                .map_err(broken)?;
        let cache_up = IntGauge::new("postern_auth_cache_up", "1 while the shared cache answers.")
            .map_err(broken)?;
        let opts = Opts::new(
            "postern_auth_held_total",
            "Guesses that the limits did not let through.",
        );
        let held = IntCounterVec::new(opts, &["door"]).map_err(broken)?;
        let opts = HistogramOpts::new(
            "postern_auth_pool_call_seconds",
            "Calls to the actor pool by outcome.",
        )
        .buckets(vec![0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]);
        let pool_calls = HistogramVec::new(opts, &["outcome"]).map_err(broken)?;
        let registry = Registry::new();
        registry
            .register(Box::new(pool_calls.clone()))
            .map_err(broken)?;
        registry.register(Box::new(held.clone())).map_err(broken)?;
        registry
            .register(Box::new(database_up.clone()))
            .map_err(broken)?;
        registry
            .register(Box::new(cache_up.clone()))
            .map_err(broken)?;
        registry
            .register(Box::new(journeys.clone()))
            .map_err(broken)?;
        registry
            .register(Box::new(pending_registrations.clone()))
            .map_err(broken)?;
        Ok(Self {
            registry,
            journeys,
            held,
            pool_calls,
            pending_registrations,
            database_up,
            cache_up,
        })
    }

    /// The pool was asked, or was not because it had failed just before. `outcome` is `ok`,
    /// `refused` or `unavailable`.
    pub(crate) fn pool_call(&self, outcome: &str, took: Duration) {
        self.pool_calls
            .with_label_values(&[outcome])
            .observe(took.as_secs_f64());
    }

    /// A guess was not looked at.
    pub(crate) fn held(&self, door: Door) {
        self.held.with_label_values(&[door.name()]).inc();
    }

    /// One journey ended; `outcome` is `ok` or a problem's code.
    pub(crate) fn count(&self, act: Act, outcome: &str) {
        self.journeys
            .with_label_values(&[act.name(), outcome])
            .inc();
    }

    /// How many journeys ended so.
    #[cfg(test)]
    pub(crate) fn counted(&self, act: Act, outcome: &str) -> u64 {
        self.journeys
            .with_label_values(&[act.name(), outcome])
            .get()
    }
}
