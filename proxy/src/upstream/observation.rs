//! The periodic observation of an upstream, which logs changes that no request reports.

use std::sync::atomic::Ordering;

use postern_core::log_outage_state;

use crate::upstream::UpstreamPool;
use crate::upstream::selection::{count_excluded, exceeds_panic_percent};

impl UpstreamPool {
    /// Logs which ejections have ended and whether the panic mode has begun or ended. Returns whether
    /// the pool is in panic mode.
    pub(crate) fn observe(&self) -> bool {
        let (endpoints, now_ms) = (self.endpoints(), self.now_ms());
        let upstream = &self.config.name;
        for endpoint in endpoints.iter() {
            if let Some(elapsed_s) = endpoint.take_return(now_ms) {
                let address = &endpoint.address;
                tracing::info!(%upstream, %address, elapsed_s, "upstream address no longer ejected");
            }
        }
        let panic_percent = self.config.outlier.panic_percent;
        let (total, excluded) = (endpoints.len(), count_excluded(&endpoints, now_ms));
        let is_in_panic = exceeds_panic_percent(total, excluded, panic_percent);
        if self.is_in_panic.swap(is_in_panic, Ordering::Relaxed) != is_in_panic {
            if is_in_panic {
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
        is_in_panic
    }
}
