//! Permits of open client connections, in total and per client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use postern_http::downstream::{
    BufferReservation, ConnectionPermit, HttpLimits, RequestDeadline, ResponseBufferBudget,
};
use tokio::sync::OwnedSemaphorePermit;

/// An open connection within the limits, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    pub(crate) _total: OwnedSemaphorePermit,
    pub(crate) connections_by_address: Arc<ConnectionsByAddress>,
    pub(crate) address: IpAddr,
    pub(crate) response_buffers: Arc<ResponseBufferBudget>,
    pub(crate) gauge: prometheus::IntGauge,
}

/// The number of open connections per client address.
#[derive(Debug, Default)]
pub(crate) struct ConnectionsByAddress(Mutex<HashMap<IpAddr, usize, ahash::RandomState>>);

// === impl ConnectionsByAddress ===

impl ConnectionsByAddress {
    /// Adds a connection of this address, unless it has `limit` already.
    pub(crate) fn try_add(&self, address: IpAddr, limit: usize) -> bool {
        let mut open = self.0.lock();
        let count = open.entry(address).or_default();
        let may = *count < limit;
        if may {
            *count += 1;
        }
        may
    }

    fn remove_one(&self, address: IpAddr) {
        let mut open = self.0.lock();
        if let Some(count) = open.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

impl ConnectionPermit for CountedConnection {
    fn reserve_buffer(
        &self,
        limits: &HttpLimits,
        request: &RequestDeadline,
    ) -> Option<BufferReservation> {
        let client = request.forwarded_client().unwrap_or(self.address);
        self.response_buffers.reserve(limits, Some(client))
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.connections_by_address.remove_one(self.address);
        self.gauge.dec();
    }
}
