//! The memory of responses that wait for slow readers: bounded in all, and for each client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;

use crate::config::Limits;
use crate::downstream::client_address::counted;

/// Bytes that a response holds at most while its reader is waited for.
const UNIT_BYTES: usize = 64 << 10;

/// The same where the upstream speaks HTTP/2: Pingora holds up to ten frames of 16 KiB, and a
/// window of 16 KiB besides.
pub(crate) const UNITS_OF_HTTP2_UPSTREAM: usize = 3;

/// One client address may have this part of the whole: the others are served while it reads
/// nothing.
const ADDRESS_SHARE: usize = 8;

/// What all responses hold that wait for their readers.
#[derive(Debug, Default)]
pub(crate) struct ResponseBuffers {
    units: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize, RandomState>>,
}

/// One response that waits for its reader; over when it is dropped.
#[derive(Debug)]
pub(crate) struct HeldResponse {
    buffers: Arc<ResponseBuffers>,
    address: Option<IpAddr>,
    units: usize,
}

// === impl ResponseBuffers ===

impl ResponseBuffers {
    /// One more response waits for its reader. Returns `None` where there is no room for it: many
    /// may have been let in before the first of them waited. The first of an address has room as
    /// long as the whole has.
    pub(crate) fn hold(
        self: &Arc<Self>,
        limits: &Limits,
        address: Option<IpAddr>,
        units: usize,
    ) -> Option<HeldResponse> {
        let most = limits.response_buffer_bytes / UNIT_BYTES;
        let is_bound = address.is_some_and(|address| !limits.trusts(address));
        let address = address.map(counted);
        let mut shares = self.shares();
        let share = address
            .and_then(|address| shares.get(&address).copied())
            .unwrap_or(0);
        if is_bound && share > 0 && share + units > most / ADDRESS_SHARE {
            return None;
        }
        let add = |held: usize| held.checked_add(units).filter(|sum| *sum <= most);
        self.units
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        if let Some(address) = address {
            shares.insert(address, share + units);
        }
        Some(HeldResponse {
            buffers: Arc::clone(self),
            address,
            units,
        })
    }

    /// Bytes that are held, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.units.load(Ordering::Relaxed) * UNIT_BYTES
    }

    /// Whether another request of this address may be served. A trusted proxy brings many clients:
    /// it has no share.
    pub(crate) fn have_room(&self, limits: &Limits, address: Option<IpAddr>) -> bool {
        let (held, most) = (self.bytes(), limits.response_buffer_bytes);
        if held < most / ADDRESS_SHARE {
            return true;
        }
        let share = address
            .filter(|address| !limits.trusts(*address))
            .map_or(0, |address| {
                self.shares()
                    .get(&counted(address))
                    .map_or(0, |units| units * UNIT_BYTES)
            });
        held < most && share < most / ADDRESS_SHARE
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<IpAddr, usize, RandomState>> {
        self.by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        self.buffers.units.fetch_sub(self.units, Ordering::Relaxed);
        let Some(address) = self.address else { return };
        let mut shares = self.buffers.shares();
        if let Some(share) = shares.get_mut(&address) {
            *share = share.saturating_sub(self.units);
            if *share == 0 {
                shares.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Network;

    fn limits() -> Limits {
        Limits {
            response_buffer_bytes: 64 * UNIT_BYTES,
            ..Limits::default()
        }
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn address_has_its_share_and_others_the_rest() {
        let (buffers, limits) = (Arc::new(ResponseBuffers::default()), limits());
        let mut held: Vec<_> = (0..7)
            .map(|_| buffers.hold(&limits, address(1), 1).expect("room"))
            .collect();
        assert!(buffers.have_room(&limits, address(1)));
        assert!(
            buffers.hold(&limits, address(1), 2).is_none(),
            "more than its share"
        );
        held.push(buffers.hold(&limits, address(1), 1).expect("room"));
        assert!(
            !buffers.have_room(&limits, address(1))
                && buffers.hold(&limits, address(1), 1).is_none()
        );
        assert!(buffers.have_room(&limits, address(2)));
        let trusted = Limits {
            trusted_proxies: Network::parse("192.0.2.0/24").into_iter().collect(),
            ..limits
        };
        assert!(
            buffers.have_room(&trusted, address(1)),
            "a proxy brings many clients"
        );
        assert!(buffers.hold(&trusted, address(1), 1).is_some());
        held.pop();
        assert!(buffers.have_room(&trusted, address(1)));
    }

    #[test]
    fn whole_is_bounded_and_given_back() {
        let (buffers, limits) = (Arc::new(ResponseBuffers::default()), limits());
        let held: Vec<_> = (0..16)
            .map(|last| buffers.hold(&limits, address(last), 4).expect("room"))
            .collect();
        assert_eq!(buffers.bytes(), 64 * UNIT_BYTES);
        assert!(
            buffers.hold(&limits, address(99), 1).is_none()
                && buffers.hold(&limits, None, 1).is_none()
        );
        assert_eq!(buffers.bytes(), 64 * UNIT_BYTES);
        assert!(!buffers.have_room(&limits, address(99)) && !buffers.have_room(&limits, None));
        drop(held);
        assert_eq!(buffers.bytes(), 0);
        assert!(buffers.shares().is_empty() && buffers.have_room(&limits, address(1)));
    }
}
