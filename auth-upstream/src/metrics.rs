//! Numbers that an operator asks for.

use postern_common::exit::Exit;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use crate::abuse::Door;
use crate::audit::Act;

/// Counters of the journeys.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    journeys: IntCounterVec,
    held: IntCounterVec,
    /// Registrations that began and did not end yet.
    pub(crate) pending_registrations: IntGauge,
    /// 1 while the shared cache answers.
    pub(crate) cache_up: IntGauge,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new() -> Result<Self, Exit> {
        let broken = |error: prometheus::Error| Exit::unavailable(format!("metrics: {error}"));
        let opts = Opts::new("postern_auth_journeys_total", "Journeys by what was done and how it ended.");
        let journeys = IntCounterVec::new(opts, &["act", "outcome"]).map_err(broken)?;
        let pending_registrations =
            IntGauge::new("postern_auth_pending_registrations", "Registrations that began and did not end.")
                .map_err(broken)?;
        let cache_up =
            IntGauge::new("postern_auth_cache_up", "1 while the shared cache answers.").map_err(broken)?;
        let opts = Opts::new("postern_auth_held_total", "Guesses that the limits did not let through.");
        let held = IntCounterVec::new(opts, &["door"]).map_err(broken)?;
        let registry = Registry::new();
        registry.register(Box::new(held.clone())).map_err(broken)?;
        registry.register(Box::new(cache_up.clone())).map_err(broken)?;
        registry.register(Box::new(journeys.clone())).map_err(broken)?;
        registry.register(Box::new(pending_registrations.clone())).map_err(broken)?;
        Ok(Self { registry, journeys, held, pending_registrations, cache_up })
    }

    /// A guess was not looked at.
    pub(crate) fn held(&self, door: Door) {
        self.held.with_label_values(&[door.name()]).inc();
    }

    /// One journey ended; `outcome` is `ok` or a problem's code.
    pub(crate) fn count(&self, act: Act, outcome: &str) {
        self.journeys.with_label_values(&[act.name(), outcome]).inc();
    }
}
