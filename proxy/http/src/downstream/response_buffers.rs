//! The memory budget of responses to slow readers, in total and per client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;
use parking_lot::{Mutex, MutexGuard};
use postern_core::network::client_limit_key;

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
    by_address: Mutex<HashMap<IpAddr, usize, RandomState>>,
}

/// The reservation of one response, released when it is dropped.
#[derive(Debug)]
pub struct BufferReservation {
    buffers: Arc<ResponseBufferBudget>,
    address: Option<IpAddr>,
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
        let is_bound = address.is_some_and(|address| !limits.is_trusted_proxy(address));
        let address = address.map(client_limit_key);
        let mut shares = self.shares();
        let share = address
            .and_then(|address| shares.get(&address).copied())
            .unwrap_or(0);
        if is_bound && share > 0 && share >= limit / ADDRESS_SHARE_DIVISOR {
            return None;
        }
        let add = |held: usize| (held < limit).then_some(held + 1);
        self.units
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        if let Some(address) = address {
            shares.insert(address, share + 1);
        }
        Some(BufferReservation {
            buffers: Arc::clone(self),
            address,
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
        let share = address
            .filter(|address| !limits.is_trusted_proxy(*address))
            .map_or(0, |address| {
                self.shares()
                    .get(&client_limit_key(address))
                    .map_or(0, |units| units * UNIT_BYTES)
            });
        held < limit && share < limit / ADDRESS_SHARE_DIVISOR
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<IpAddr, usize, RandomState>> {
        self.by_address.lock()
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.buffers.units.fetch_sub(1, Ordering::Relaxed);
        let Some(address) = self.address else { return };
        let mut shares = self.buffers.shares();
        if let Some(share) = shares.get_mut(&address) {
            *share = share.saturating_sub(1);
            if *share == 0 {
                shares.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_core::network::IpNetwork;

    fn limits() -> HttpLimits {
        HttpLimits {
            response_buffer_bytes: 64 * UNIT_BYTES,
            ..HttpLimits::default()
        }
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn address_is_limited_to_its_share() {
        let (buffers, limits) = (Arc::new(ResponseBufferBudget::default()), limits());
        let mut held: Vec<_> = (0..7)
            .map(|_| buffers.reserve(&limits, address(1)).expect("buffer space"))
            .collect();
        assert!(buffers.has_room(&limits, address(1)));
        held.push(buffers.reserve(&limits, address(1)).expect("buffer space"));
        assert!(
            !buffers.has_room(&limits, address(1))
                && buffers.reserve(&limits, address(1)).is_none()
        );
        assert!(buffers.has_room(&limits, address(2)));
        let trusted = HttpLimits {
            trusted_proxies: IpNetwork::parse("192.0.2.0/24").into_iter().collect(),
            ..limits
        };
        assert!(
            buffers.has_room(&trusted, address(1)),
            "trusted proxies are exempt"
        );
        assert!(buffers.reserve(&trusted, address(1)).is_some());
        held.pop();
        assert!(buffers.has_room(&trusted, address(1)));
    }

    #[test]
    fn total_is_bounded_and_released() {
        let (buffers, limits) = (Arc::new(ResponseBufferBudget::default()), limits());
        let held: Vec<_> = (0..64)
            .map(|at| {
                buffers
                    .reserve(&limits, address(at % 16))
                    .expect("buffer space")
            })
            .collect();
        assert_eq!(buffers.bytes(), 64 * UNIT_BYTES);
        assert!(
            buffers.reserve(&limits, address(99)).is_none()
                && buffers.reserve(&limits, None).is_none()
        );
        assert_eq!(buffers.bytes(), 64 * UNIT_BYTES);
        assert!(!buffers.has_room(&limits, address(99)) && !buffers.has_room(&limits, None));
        drop(held);
        assert_eq!(buffers.bytes(), 0);
        assert!(buffers.shares().is_empty() && buffers.has_room(&limits, address(1)));
    }
}
