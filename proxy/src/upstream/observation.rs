//! The periodic observation of an upstream: the values of its gauges, and log events of changes that
//! no request reports.

use std::sync::atomic::Ordering;

use postern_core::log_outage_state;

use crate::upstream::UpstreamPool;
use crate::upstream::selection::{count_excluded, exceeds_panic_percent};

/// The state of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolObservation {
    /// Addresses that are neither unhealthy nor ejected.
    pub(crate) healthy: usize,
    pub(crate) unhealthy: usize,
    pub(crate) ejected: usize,
    /// Requests in flight to all addresses.
    pub(crate) in_flight: usize,
    /// Idle HTTP/1.1 connections.
    pub(crate) idle_connections: usize,
    /// Retries that the budget allows now.
    pub(crate) retry_budget: i64,
    /// Whether so many addresses are excluded that all are used.
    pub(crate) is_in_panic: bool,
}

// === impl UpstreamPool ===

impl UpstreamPool {
    /// Observes the pool, and logs which ejections have ended and whether the panic mode has begun or
    /// ended.
    pub(crate) fn observe(&self) -> PoolObservation {
        let (endpoints, now_ms) = (self.endpoints(), self.now_ms());
        let upstream = &self.config.name;
        let mut observed = PoolObservation {
            retry_budget: self.retry_budget.available(),
            ..PoolObservation::default()
        };
        for endpoint in endpoints.iter() {
            let status = endpoint.status(now_ms);
            observed.healthy += usize::from(status.healthy && !status.ejected);
            observed.unhealthy += usize::from(!status.healthy);
            observed.ejected += usize::from(status.ejected);
            observed.in_flight += status.in_flight;
            observed.idle_connections += endpoint.idle.count();
            if let Some(elapsed_s) = endpoint.take_return(now_ms) {
                let address = &endpoint.address;
                tracing::info!(%upstream, %address, elapsed_s, "upstream address no longer ejected");
            }
        }
        let panic_percent = self.config.outlier.panic_percent;
        let (total, excluded) = count_excluded(&endpoints, now_ms);
        observed.is_in_panic = exceeds_panic_percent((total, excluded), panic_percent);
        if self
            .is_in_panic
            .swap(observed.is_in_panic, Ordering::Relaxed)
            != observed.is_in_panic
        {
            if observed.is_in_panic {
                log_outage_state!(
                    format!("upstream {upstream}"),
                    %upstream,
                    excluded,
                    addresses = total,
                    panic_percent,
                    "upstream in panic mode, using excluded addresses"
                );
            } else {
                tracing::info!(%upstream, addresses = total, "upstream no longer in panic mode");
            }
        }
        observed
    }
}
