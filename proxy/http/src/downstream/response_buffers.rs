//! The memory budget of responses to slow readers, in total and per client address.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;
use postern_core::network::client_limit_key;

use crate::client_shares::{ClientShare, ClientShares};
use crate::downstream::deadline::RequestDeadline;
use crate::downstream::limits::HttpLimits;

/// Maximum bytes that a response buffers while its reader is slow.
const UNIT_BYTES: usize = 64 << 10;

/// Fraction of the budget that one client address may use, so that others are served while its
/// readers are slow.
const ADDRESS_SHARE_DIVISOR: usize = 8;

/// The budget of all responses whose readers are slow.
#[derive(Debug, Default)]
pub struct ResponseBufferBudget {
    units: AtomicUsize,
    shares: Arc<ClientShares>,
    hasher: RandomState,
}

/// The reservation of one response, released when it is dropped.
#[derive(Debug)]
pub struct BufferReservation {
    buffers: Arc<ResponseBufferBudget>,
    _share: Option<ClientShare>,
}

/// What a server has granted a connection, until it is dropped.
pub trait ConnectionPermit: Send + Sync {
    /// Reserves buffer space for a response whose reader is slow. Returns `None` if the budget is
    /// exhausted.
    fn reserve_buffer(
        &self,
        limits: &HttpLimits,
        request: &RequestDeadline,
    ) -> Option<BufferReservation>;
}

// === impl ResponseBufferBudget ===

impl ResponseBufferBudget {
    /// Reserves a unit for a response whose reader is slow. Returns `None` if the budget is
    /// exhausted, which can happen because requests are admitted before their readers are known to
    /// be slow. The first response of an address is bounded by the total only.
    pub fn reserve(
        self: &Arc<Self>,
        limits: &HttpLimits,
        address: Option<IpAddr>,
    ) -> Option<BufferReservation> {
        let limit = limits.response_buffer_bytes / UNIT_BYTES;
        let share = match address {
            Some(address) => {
                let max = match limits.is_trusted_proxy(address) {
                    true => usize::MAX,
                    false => (limit / ADDRESS_SHARE_DIVISOR).max(1),
                };
                Some(self.shares.try_add(self.client(address), 1, max)?)
            }
            None => None,
        };
        let add = |held: usize| (held < limit).then_some(held + 1);
        self.units
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(BufferReservation {
            buffers: Arc::clone(self),
            _share: share,
        })
    }

    /// Returns the reserved bytes (an upper bound of the buffered bytes).
    pub fn bytes(&self) -> usize {
        self.units.load(Ordering::Relaxed) * UNIT_BYTES
    }

    /// Returns whether another request of this address may be admitted. Trusted proxies are exempt
    /// from the share per address.
    pub fn has_room(&self, limits: &HttpLimits, address: Option<IpAddr>) -> bool {
        let (held, limit) = (self.bytes(), limits.response_buffer_bytes);
        if held < limit / ADDRESS_SHARE_DIVISOR {
            return true;
        }
        let address = address.filter(|address| !limits.is_trusted_proxy(*address));
        let share = address.map_or(0, |address| self.shares.held(self.client(address)));
        held < limit && share * UNIT_BYTES < limit / ADDRESS_SHARE_DIVISOR
    }

    fn client(&self, address: IpAddr) -> u64 {
        self.hasher.hash_one(client_limit_key(address))
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.buffers.units.fetch_sub(1, Ordering::Relaxed);
    }
}
