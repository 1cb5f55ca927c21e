//! Locks that expire shortly after their holder dies, also over a failover.
//!
//! Redis stores a lock for the time of a lease, which the holder renews while it works. If the holder
//! was killed, or a failover restored a released lock, the lease expires; a holder that cannot renew
//! its lease stops its work before that.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use super::{Cache, CacheError, CacheStore};
use postern_core::backoff::jittered;

/// Time for which Redis stores a lock without renewal. It bounds the wait for a holder that has
/// died.
const LEASE_DURATION: Duration = Duration::from_millis(2_500);
/// Time between two renewals.
const RENEW_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum time between two attempts to acquire a lock that is held.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(25);

/// An acquired lock, held until it is released, dropped or lost, or until its maximum time.
#[derive(Debug)]
pub(crate) struct LockGuard {
    cache: Cache,
    key: String,
    /// Unique token of this guard: a lock that was lost to another holder is not released.
    token: Uuid,
    held: bool,
    /// Time for which the store keeps the lock. A lock in memory needs no renewal, because it ends
    /// with its process.
    lease: Duration,
    requested_at: Instant,
    end: Instant,
}

pub(super) async fn acquire(
    cache: &Cache,
    key: &str,
    ttl: Duration,
) -> Result<Option<LockGuard>, CacheError> {
    let requested_at = Instant::now();
    let mut guard = LockGuard {
        cache: cache.clone(),
        key: key.to_owned(),
        token: Uuid::new_v4(),
        // Before the lock is confirmed, so that a caller that is cancelled meanwhile releases it.
        held: true,
        lease: match &cache.0.store {
            CacheStore::Memory(_) => ttl,
            CacheStore::Redis(_) => ttl.min(LEASE_DURATION),
        },
        requested_at,
        end: requested_at + ttl,
    };
    let stored = cache.set_if_absent(key, guard.token.as_bytes(), guard.lease);
    guard.held = stored.await?;
    Ok(guard.held.then_some(guard))
}

pub(super) async fn wait(
    cache: &Cache,
    key: &str,
    ttl: Duration,
    max_wait: Duration,
) -> Result<Option<LockGuard>, CacheError> {
    let until = Instant::now() + max_wait;
    loop {
        let taken = acquire(cache, key, ttl).await?;
        if taken.is_some() || Instant::now() >= until {
            return Ok(taken);
        }
        // At regular intervals, a waiter could always miss a lock that another caller acquires at
        // regular intervals.
        tokio::time::sleep(jittered(MAX_RETRY_DELAY, 0.8)).await;
    }
}

impl LockGuard {
    /// Renews the lease until the lock is lost or its maximum time is over.
    async fn renew(&self) {
        // A shorter lock expires before its first renewal.
        if self.lease != LEASE_DURATION {
            return std::future::pending().await;
        }
        // When the last successful renewal was sent. Redis counts from a later time.
        let mut confirmed = self.requested_at;
        loop {
            let deadline = (confirmed + LEASE_DURATION).min(self.end);
            sleep_until((Instant::now() + RENEW_INTERVAL).min(deadline)).await;
            let requested_at = Instant::now();
            if requested_at >= deadline {
                return;
            }
            let token = self.token.as_bytes();
            let extend = self.cache.extend_if_equal(&self.key, token, LEASE_DURATION);
            match timeout_at(deadline, extend).await {
                Ok(Ok(true)) => confirmed = requested_at,
                // Expired, or held by another.
                Ok(Ok(false)) => return,
                // Redis may answer before the lease ends.
                Ok(Err(CacheError::Unavailable)) | Err(_) => {}
            }
        }
    }

    /// Runs `work` while the lock is held, then releases the lock. The work is dropped at its next
    /// await point if the lock can no longer be confirmed, because another may acquire it.
    pub(super) async fn run<T>(self, work: impl Future<Output = T>) -> Result<T, CacheError> {
        let outcome = tokio::select! {
            biased;
            outcome = work => Ok(outcome),
            () = self.renew() => Err(CacheError::Unavailable),
        };
        if outcome.is_err() {
            postern_core::log_outage!("cache", "lock lost, work cancelled");
        }
        self.release().await;
        outcome
    }

    /// Releases the lock. If this fails, the lock expires at the end of its lease.
    pub(crate) async fn release(mut self) {
        self.held = false;
        let token = self.token.as_bytes();
        let _expires = self.cache.delete_if_equal(&self.key, token).await;
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.held
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (cache, key, token) = (self.cache.clone(), self.key.clone(), self.token);
            runtime.spawn(async move { cache.delete_if_equal(&key, token.as_bytes()).await });
        }
    }
}
