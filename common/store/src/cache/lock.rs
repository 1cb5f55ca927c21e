//! Locks that expire shortly after their holder dies, also over a failover.
//!
//! Redis stores a lock for the time of a lease, which the holder renews. If the holder was killed,
//! or a failover restored a released lock, the lease expires; a holder that cannot renew its lease
//! stops its work before that.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
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
    renewal: Option<LeaseRenewal>,
}

/// The task that renews a lease.
#[derive(Debug)]
struct LeaseRenewal {
    task: AbortHandle,
    is_lost: watch::Receiver<bool>,
}

pub(super) async fn acquire(
    cache: &Cache,
    key: &str,
    ttl: Duration,
) -> Result<Option<LockGuard>, CacheError> {
    let (mut guard, requested_at) = (LockGuard::unconfirmed(cache, key), Instant::now());
    guard.held = cache
        .set_if_absent(key, guard.token.as_bytes(), lease(cache, ttl))
        .await?;
    Ok(guard.held.then(|| guard.start_renewal(requested_at, ttl)))
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

/// Returns the lease. A lock in memory needs no renewal, because it ends with its process.
fn lease(cache: &Cache, ttl: Duration) -> Duration {
    match &cache.0.store {
        CacheStore::Memory(_) => ttl,
        CacheStore::Redis(_) => ttl.min(LEASE_DURATION),
    }
}

/// Renews the lease until the lock is lost or its maximum time is over. `confirmed` is the time
/// when the last successful renewal was sent; Redis counts from a later time.
async fn renew(cache: Cache, key: String, token: Uuid, mut confirmed: Instant, end: Instant) {
    loop {
        let deadline = (confirmed + LEASE_DURATION).min(end);
        sleep_until((Instant::now() + RENEW_INTERVAL).min(deadline)).await;
        let requested_at = Instant::now();
        if requested_at >= deadline {
            return;
        }
        match timeout_at(
            deadline,
            cache.extend_if_equal(&key, token.as_bytes(), LEASE_DURATION),
        )
        .await
        {
            Ok(Ok(true)) => confirmed = requested_at,
            // Expired, or held by another.
            Ok(Ok(false)) => return,
            // Redis may answer before the lease ends.
            Ok(Err(CacheError::Unavailable)) | Err(_) => {}
        }
    }
}

// === impl LockGuard ===

impl LockGuard {
    /// Creates a guard that is marked as held before the lock is confirmed, so that a caller that
    /// is cancelled meanwhile releases it.
    fn unconfirmed(cache: &Cache, key: &str) -> Self {
        Self {
            cache: cache.clone(),
            key: key.to_owned(),
            token: Uuid::new_v4(),
            held: true,
            renewal: None,
        }
    }

    fn start_renewal(mut self, requested_at: Instant, ttl: Duration) -> Self {
        // A shorter lock expires before its first renewal.
        if lease(&self.cache, ttl) == LEASE_DURATION {
            let (lost, is_lost) = watch::channel(false);
            let renewing = renew(
                self.cache.clone(),
                self.key.clone(),
                self.token,
                requested_at,
                requested_at + ttl,
            );
            let task = tokio::spawn(async move {
                renewing.await;
                lost.send_replace(true);
            });
            self.renewal = Some(LeaseRenewal {
                task: task.abort_handle(),
                is_lost,
            });
        }
        self
    }

    /// Runs `work` while the lock is held, then releases the lock. The work is dropped at its next
    /// await point if the lock can no longer be confirmed, because another may acquire it.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`] if the lock was lost.
    pub(super) async fn run<T>(mut self, work: impl Future<Output = T>) -> Result<T, CacheError> {
        let lost = async {
            match &mut self.renewal {
                Some(renewal) => drop(renewal.is_lost.wait_for(|is_lost| *is_lost).await),
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = work => Ok(outcome),
            () = lost => Err(CacheError::Unavailable),
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
        let _ = self
            .cache
            .delete_if_equal(&self.key, self.token.as_bytes())
            .await;
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.task.abort();
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if self.held {
            let (cache, key, token) = (
                self.cache.clone(),
                std::mem::take(&mut self.key),
                self.token,
            );
            runtime.spawn(async move { cache.delete_if_equal(&key, token.as_bytes()).await });
        }
    }
}
