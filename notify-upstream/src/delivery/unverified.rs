//! The quota of messages to unverified addresses.

use std::time::Duration;

use postern_core::Clock;
use postern_store::cache::{Cache, CacheError};
use sha2::{Digest, Sha256};

use crate::address::AddressHash;
use crate::notification::NotificationId;

/// Counts messages per hour for each unverified address and for each caller, over all replicas.
#[derive(Clone, Debug)]
pub(crate) struct UnverifiedQuota {
    cache: Cache,
    clock: Clock,
}

/// Maximum number of notifications per hour to one unverified address.
const MAX_HOURLY_PER_ADDRESS: u64 = 5;
/// Maximum number of notifications per hour to unverified addresses by one user.
const MAX_HOURLY_PER_CALLER: u64 = 5;

const HOUR_SECONDS: i64 = 3600;
/// Longer than a window, so that no counter expires within it.
const COUNTER_TTL: Duration = Duration::from_secs(2 * 3600);
/// Longer than a notification is retried.
const COUNTED_MARKER_TTL: Duration = Duration::from_secs(7 * 86_400);

impl UnverifiedQuota {
    pub(crate) fn new(cache: Cache, clock: Clock) -> Self {
        Self { cache, clock }
    }

    /// Returns whether a notification may be sent to an unverified address. Each notification is
    /// counted once, regardless of retries.
    ///
    /// # Errors
    /// The cache is unavailable, and nothing may be sent: unlike the quota of callers, this one
    /// protects third parties.
    pub(crate) async fn take(
        &self,
        id: NotificationId,
        creator: &str,
        address: &AddressHash,
    ) -> Result<bool, CacheError> {
        if self.cache.get(&marker(id)).await?.is_some() {
            return Ok(true);
        }
        let is_allowed = self.count_one(creator, address).await?;
        if is_allowed {
            self.mark_counted(id).await?;
        }
        Ok(is_allowed)
    }

    /// Counts a notification that has no identifier yet. Returns whether it may be sent.
    pub(crate) async fn count_one(
        &self,
        creator: &str,
        address: &AddressHash,
    ) -> Result<bool, CacheError> {
        let hour = self.clock.now().unix_seconds().div_euclid(HOUR_SECONDS);
        let caller: [u8; 32] = Sha256::digest(creator).into();
        let of_address = self.count("address", address, hour).await?;
        let of_caller = self.count("caller", &caller, hour).await?;
        Ok(of_address <= MAX_HOURLY_PER_ADDRESS && of_caller <= MAX_HOURLY_PER_CALLER)
    }

    /// Records that a notification has been counted at its acceptance.
    ///
    /// # Errors
    /// The cache is unavailable: the notification will be counted again.
    pub(crate) async fn mark_counted(&self, id: NotificationId) -> Result<(), CacheError> {
        self.cache.set(&marker(id), b"1", COUNTED_MARKER_TTL).await
    }

    async fn count(&self, of: &str, hash: &[u8; 32], hour: i64) -> Result<u64, CacheError> {
        let key = format!("notify:unverified:{of}:{}:{hour}", hex::encode(hash));
        self.cache.increment(&key, COUNTER_TTL).await
    }
}

fn marker(id: NotificationId) -> String {
    format!("notify:unverified:counted:{id}")
}
