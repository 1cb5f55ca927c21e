//! Shares of a common resource per client, so that one client cannot use all of it.
//!
//! - **Enters:** a hash of the client address with a secret seed, and an amount.
//! - **Leaves:** a permit, or the refusal of this client.
//! - **May depend on:** no other module of this crate.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Fraction of a resource that one client may have once half of it is in use.
const CLIENT_SHARE_DIVISOR: usize = 8;

/// Number of shards, which reduces lock contention between clients.
const SHARD_COUNT: usize = 16;

/// The amounts of a resource that clients use.
#[derive(Debug, Default)]
pub struct ClientShares([Mutex<HashMap<u64, usize>>; SHARD_COUNT]);

/// An amount that a client uses, subtracted when dropped.
#[derive(Debug)]
pub struct ClientShare {
    shares: Arc<ClientShares>,
    client: u64,
    amount: usize,
}

/// A limited resource of which each client has a share.
#[derive(Debug)]
pub struct SharedBudget {
    limit: usize,
    used: AtomicUsize,
    shares: Arc<ClientShares>,
}

/// A reserved part of a budget, until it is dropped.
#[derive(Debug)]
pub struct BudgetPermit {
    budget: Arc<SharedBudget>,
    amount: usize,
    _share: Option<ClientShare>,
}

/// Returns how much one client may have of a resource of which `used` of `all` is in use.
pub fn client_limit(used: usize, all: usize) -> usize {
    match used < all / 2 {
        true => usize::MAX,
        false => (all / CLIENT_SHARE_DIVISOR).max(1),
    }
}

impl ClientShares {
    /// Adds an amount for this client, unless it would have more than `limit`.
    pub fn try_add(
        self: &Arc<Self>,
        client: u64,
        amount: usize,
        limit: usize,
    ) -> Option<ClientShare> {
        let mut shard = self.shard(client);
        let held = shard.get(&client).copied().unwrap_or(0);
        let sum = held.checked_add(amount).filter(|sum| *sum <= limit)?;
        shard.insert(client, sum);
        Some(ClientShare {
            shares: Arc::clone(self),
            client,
            amount,
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
        if let Some(held) = shard.get_mut(&self.client) {
            *held = held.saturating_sub(self.amount);
            if *held == 0 {
                shard.remove(&self.client);
            }
        }
    }
}

impl SharedBudget {
    /// Creates a budget of which nothing is used.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            shares: Arc::default(),
        })
    }

    /// Returns the amount that is used.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether an amount could be reserved now.
    pub fn has_room(self: &Arc<Self>, client: Option<u64>, amount: usize) -> bool {
        self.used() < self.limit / 2 || self.reserve(client, amount).is_some()
    }

    /// Reserves an amount; `None` if it is not available, or if the client has used its share.
    /// `client` is `None` if the client is not known.
    pub fn reserve(self: &Arc<Self>, client: Option<u64>, amount: usize) -> Option<BudgetPermit> {
        let limit = client_limit(self.used(), self.limit);
        let share = match client {
            Some(client) => Some(self.shares.try_add(client, amount, limit)?),
            None => None,
        };
        let add = |used: usize| Some(used + amount).filter(|used| *used <= self.limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(BudgetPermit {
            budget: Arc::clone(self),
            amount,
            _share: share,
        })
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_gets_an_eighth_of_a_half_used_budget() {
        let budget = SharedBudget::new(32);
        let take = |client, count: usize| -> Vec<_> {
            let reserve = |_| budget.reserve(client, 1);
            (0..count).map_while(reserve).collect()
        };
        let greedy = take(Some(1), 32);
        assert_eq!(greedy.len(), 16);
        let others: Vec<_> = (2..5).flat_map(|client| take(Some(client), 32)).collect();
        assert_eq!(others.len(), 3 * 4);
        let unknown = take(None, 32);
        assert_eq!(unknown.len(), 4, "up to the whole");
        assert!(budget.reserve(Some(9), 1).is_none(), "exhausted");
        drop((greedy, others, unknown));
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
        assert!(budget.shares.0.iter().all(|shard| shard.lock().is_empty()));
    }
}
