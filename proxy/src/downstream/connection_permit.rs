//! Permits of open client connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use crate::config::Limits;
use crate::downstream::response_buffers::{HeldResponse, ResponseBuffers};

/// A place among the open connections; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    pub(crate) _total: OwnedSemaphorePermit,
    pub(crate) by_address: Arc<ByAddress>,
    pub(crate) address: IpAddr,
    pub(crate) response_buffers: Arc<ResponseBuffers>,
    pub(crate) gauge: prometheus::IntGauge,
    /// Requests that Pingora answered before any hook was called.
    pub(crate) unheard: prometheus::IntCounter,
}

/// Open connections of each client address.
#[derive(Debug, Default)]
pub(crate) struct ByAddress(Mutex<HashMap<IpAddr, usize, ahash::RandomState>>);

// === impl ByAddress ===

impl ByAddress {
    /// One more of this address, unless it has `most` already.
    pub(crate) fn enter(&self, address: IpAddr, most: usize) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        let may = *count < most;
        if may {
            *count += 1;
        }
        may
    }

    fn leave(&self, address: IpAddr) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

impl Permit {
    /// A response on this connection waits for its reader. Returns `None` where there is no room
    /// for it.
    pub(crate) fn hold_response(&self, limits: &Limits, units: usize) -> Option<HeldResponse> {
        self.response_buffers
            .hold(limits, Some(self.address), units)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.by_address.leave(self.address);
        self.gauge.dec();
    }
}
