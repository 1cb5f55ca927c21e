//! Requests in flight per client of an upstream, so that one client cannot use all of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// Number of shards, which reduces lock contention between clients.
const SHARD_COUNT: usize = 16;

/// Requests in flight by client. A client is a hash of its address with a secret seed.
#[derive(Debug, Default)]
pub(super) struct ClientShares([Mutex<HashMap<u64, usize>>; SHARD_COUNT]);

/// One request of a client, subtracted when dropped.
#[derive(Debug)]
pub(super) struct ClientShare {
    shares: Arc<ClientShares>,
    client: u64,
}

// === impl ClientShares ===

impl ClientShares {
    /// Adds a request of this client, unless it has `limit` already.
    pub(super) fn try_add(self: &Arc<Self>, client: u64, limit: usize) -> Option<ClientShare> {
        let mut shard = self.shard(client);
        let count = shard.entry(client).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(ClientShare {
            shares: Arc::clone(self),
            client,
        })
    }

    fn shard(&self, client: u64) -> MutexGuard<'_, HashMap<u64, usize>> {
        // The upper bits, because the hash tables use the lower ones.
        let at = usize::try_from(client >> 32).unwrap_or(0) % SHARD_COUNT;
        self.0[at].lock()
    }
}

impl Drop for ClientShare {
    fn drop(&mut self) {
        let mut shard = self.shares.shard(self.client);
        if let Some(count) = shard.get_mut(&self.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                shard.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_share_is_limited_and_released() {
        let shares = Arc::new(ClientShares::default());
        let held: Vec<_> = (0..3)
            .map(|_| shares.try_add(1, 3).expect("a permit"))
            .collect();
        assert!(shares.try_add(1, 3).is_none() && shares.try_add(2, 1).is_some());
        drop(held);
        assert!(shares.0.iter().all(|shard| shard.lock().is_empty()));
    }
}
