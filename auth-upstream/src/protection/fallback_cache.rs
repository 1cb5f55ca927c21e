//! Counters and marks in the shared cache, or in this process while the cache is unavailable.

use std::time::Duration;

use postern_core::Clock;
use postern_store::cache::{AttemptOutcome, AttemptPolicy, AttemptReservation, Cache, CacheError};

const MEMORY_CACHE_LABEL: &str = "memory:";

/// A cache for limits: shared by all replicas, with a fallback for this process alone.
#[derive(Clone, Debug)]
pub(crate) struct FallbackCache {
    pub(super) shared: Cache,
    pub(super) local: Cache,
}

#[derive(Clone, Debug)]
pub(super) struct FallbackReservation {
    pub(super) reservation: AttemptReservation,
    is_local: bool,
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

    /// Admits and counts an attempt, or returns `None` during a delay.
    pub(super) async fn reserve(
        &self,
        key: &str,
        policy: &AttemptPolicy,
    ) -> Option<FallbackReservation> {
        let (reserved, is_local) = match self.shared.reserve_attempt(key, policy).await {
            Ok(reserved) => (reserved, false),
            // The local cache fails when it is full: every limit counts as exceeded then.
            Err(CacheError::Unavailable) => {
                let reserved = self.local.reserve_attempt(key, policy).await;
                (reserved.ok().flatten(), true)
            }
        };
        reserved.map(|reservation| FallbackReservation {
            reservation,
            is_local,
        })
    }

    /// Records the outcome of an attempt in the cache that counts it. If the shared cache has
    /// become unavailable, it keeps the attempt as counted, and a failure counts in this process.
    pub(super) async fn settle(
        &self,
        key: &str,
        policy: &AttemptPolicy,
        reserved: &FallbackReservation,
        outcome: AttemptOutcome,
    ) {
        let reservation = &reserved.reservation;
        if !reserved.is_local {
            let settled = self
                .shared
                .settle_attempt(key, policy, reservation, outcome)
                .await;
            if settled.is_ok() || outcome == AttemptOutcome::Released {
                return;
            }
        }
        let _ = self
            .local
            .settle_attempt(key, policy, reservation, outcome)
            .await;
    }

    /// Returns the number of attempts in the present window of a counter without delays.
    pub(super) async fn attempt_count(&self, key: &str) -> u64 {
        match self.shared.attempt_count(key).await {
            Ok(count) => count,
            Err(CacheError::Unavailable) => self.local.attempt_count(key).await.unwrap_or(0),
        }
    }

    /// Deletes an entry from both caches: it may be from a time without the shared one.
    pub(super) async fn delete(&self, key: &str) {
        let _ = self.local.delete(key).await;
        let _ = self.shared.delete(key).await;
    }
}
