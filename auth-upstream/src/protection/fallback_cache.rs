//! Counters and marks in the shared cache, or in this process while the cache is unavailable.

use std::time::Duration;

use postern_common::Clock;
use postern_common::cache::{Cache, CacheError};

/// The label of a cache in this process's memory.
const MEMORY_CACHE_LABEL: &str = "memory:";

/// A cache for limits: shared by all replicas, with a fallback for this process alone.
#[derive(Clone, Debug)]
pub(crate) struct FallbackCache {
    shared: Cache,
    local: Cache,
}

// === impl FallbackCache ===

impl FallbackCache {
    /// Creates a fallback for `shared`. A shared cache in memory is replaced by a separate one, so
    /// that entries of the limits cannot displace entries that sign-in and refresh need.
    pub(crate) fn new(shared: Cache, clock: &Clock) -> Self {
        let shared = if shared.label() == MEMORY_CACHE_LABEL {
            Cache::memory(clock.clone())
        } else {
            shared
        };
        let local = Cache::memory(clock.clone());
        Self { shared, local }
    }

    /// Returns the cache of this process, which no other replica sees.
    pub(super) fn local(&self) -> &Cache {
        &self.local
    }

    /// Returns the cache that all replicas see.
    pub(super) fn shared(&self) -> &Cache {
        &self.shared
    }

    /// Increments a counter and returns it. The window begins with the first increment.
    pub(crate) async fn increment(&self, key: &str, window: Duration) -> u64 {
        match self.shared.increment(key, window).await {
            Ok(count) => count,
            // The local cache fails when it is full: every limit counts as exceeded then.
            Err(CacheError::Unavailable) => {
                self.local.increment(key, window).await.unwrap_or(u64::MAX)
            }
        }
    }

    pub(super) async fn decrement(&self, key: &str) {
        if self.shared.decrement(key).await.is_err() {
            let _ = self.local.decrement(key).await;
        }
    }

    pub(super) async fn delete(&self, key: &str) {
        if self.shared.delete(key).await.is_err() {
            let _ = self.local.delete(key).await;
        }
    }

    pub(super) async fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.shared.get(key).await {
            Ok(found) => found,
            Err(CacheError::Unavailable) => self.local.get(key).await.ok().flatten(),
        }
    }

    pub(super) async fn set(&self, key: &str, value: &[u8], ttl: Duration) {
        if self.shared.set(key, value, ttl).await.is_err() {
            let _ = self.local.set(key, value, ttl).await;
        }
    }

    /// Sets a mark and returns whether it was absent.
    pub(super) async fn set_if_absent(&self, key: &str, ttl: Duration) -> bool {
        match self.shared.set_if_absent(key, b"1", ttl).await {
            Ok(was_absent) => was_absent,
            Err(CacheError::Unavailable) => self
                .local
                .set_if_absent(key, b"1", ttl)
                .await
                .unwrap_or(false),
        }
    }
}
