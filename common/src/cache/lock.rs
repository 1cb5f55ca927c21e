//! Locks that outlive neither their holder nor a fail-over by more than a moment.
//!
//! Redis keeps a lock for a lease, which the holder renews while it lives. A lock whose holder was
//! killed, or that a fail-over has brought back, is free again when the lease is over; a holder
//! that cannot renew it stops before that.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use super::{Cache, CacheError, Change, Found, Store};

/// How long Redis keeps a lock that is not renewed: others wait no longer for a holder that is
/// gone.
const LEASE: Duration = Duration::from_millis(2_500);
/// How often a holder renews it.
const RENEW_INTERVAL: Duration = Duration::from_millis(500);

/// The longest time between two looks at a lock that another holds.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// A lock that is held until it is released, dropped or lost, or its time is over.
#[derive(Debug)]
pub struct Guard {
    cache: Cache,
    key: String,
    /// Ours alone: a lock that has passed to another is not released by us.
    token: Uuid,
    held: bool,
    renewal: Option<Renewal>,
}

/// The task that keeps a lease.
#[derive(Debug)]
struct Renewal {
    task: AbortHandle,
    is_lost: watch::Receiver<bool>,
}

pub(super) async fn take(
    cache: &Cache,
    key: &str,
    ttl: Duration,
) -> Result<Option<Guard>, CacheError> {
    let (mut guard, asked) = (Guard::presumed(cache, key), Instant::now());
    guard.held = cache
        .set_if_absent(key, guard.token.as_bytes(), lease(cache, ttl))
        .await?;
    Ok(guard.held.then(|| guard.renewed(asked, ttl)))
}

pub(super) async fn take_and_get<const N: usize>(
    cache: &Cache,
    key: &str,
    ttl: Duration,
    wanted: [&str; N],
) -> Result<(Option<Guard>, Found<N>), CacheError> {
    let (mut guard, asked) = (Guard::presumed(cache, key), Instant::now());
    let lease = lease(cache, ttl);
    let (held, found) = cache
        .set_if_absent_and_get(key, guard.token.as_bytes(), lease, wanted)
        .await?;
    guard.held = held;
    Ok((guard.held.then(|| guard.renewed(asked, ttl)), found))
}

pub(super) async fn wait(
    cache: &Cache,
    key: &str,
    ttl: Duration,
    patience: Duration,
) -> Result<Option<Guard>, CacheError> {
    let until = Instant::now() + patience;
    loop {
        let taken = take(cache, key, ttl).await?;
        if taken.is_some() || Instant::now() >= until {
            return Ok(taken);
        }
        tokio::time::sleep(irregular(LOOK_AGAIN)).await;
    }
}

/// Between a fifth of it and all of it. Whoever looks at regular moments never finds a lock that
/// another takes at regular moments too.
fn irregular(duration: Duration) -> Duration {
    let fraction = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
    duration.mul_f64(0.2 + 0.8 * fraction)
}

/// A lock in this process ends with it.
fn lease(cache: &Cache, ttl: Duration) -> Duration {
    match &cache.0.store {
        Store::Memory(_) => ttl,
        Store::Redis(_) => ttl.min(LEASE),
    }
}

/// Renews until the lock is lost, or has been held as long as it may. `confirmed` is when the last
/// renewal that succeeded was sent: Redis counts from a later moment.
async fn renew(cache: Cache, key: String, token: Uuid, mut confirmed: Instant, end: Instant) {
    loop {
        let deadline = (confirmed + LEASE).min(end);
        sleep_until((Instant::now() + RENEW_INTERVAL).min(deadline)).await;
        let asked = Instant::now();
        if asked >= deadline {
            return;
        }
        match timeout_at(
            deadline,
            cache.extend_if_equal(&key, token.as_bytes(), LEASE),
        )
        .await
        {
            Ok(Ok(true)) => confirmed = asked,
            // Gone, or another's.
            Ok(Ok(false)) => return,
            // It may answer before the lease is over.
            Ok(Err(CacheError::Unavailable)) | Err(_) => {}
        }
    }
}

// === impl Guard ===

impl Guard {
    /// Held before it is known to be: a caller that goes while the store answers leaves no lock
    /// behind.
    fn presumed(cache: &Cache, key: &str) -> Self {
        Self {
            cache: cache.clone(),
            key: key.to_owned(),
            token: Uuid::new_v4(),
            held: true,
            renewal: None,
        }
    }

    fn renewed(mut self, asked: Instant, ttl: Duration) -> Self {
        // A shorter one ends before it would be renewed.
        if lease(&self.cache, ttl) == LEASE {
            let (lost, is_lost) = watch::channel(false);
            let renewing = renew(
                self.cache.clone(),
                self.key.clone(),
                self.token,
                asked,
                asked + ttl,
            );
            let task = tokio::spawn(async move {
                renewing.await;
                lost.send_replace(true);
            });
            self.renewal = Some(Renewal {
                task: task.abort_handle(),
                is_lost,
            });
        }
        self
    }

    /// Works while the lock is held, and gives it back. The work is dropped, wherever it is, when
    /// the lock can no longer be confirmed as held: another may take it.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`] if the lock was lost.
    pub async fn run<T>(mut self, work: impl Future<Output = T>) -> Result<T, CacheError> {
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
            tracing::warn!("lock lost, work given up");
        }
        self.release().await;
        outcome
    }

    /// Makes a change to a key that was read under the lock, keeps values beside it as
    /// [`Cache::set`] does, and gives the lock back, all at once; over a cluster the change alone
    /// is atomic, and the rest follows it. False if somebody has changed the key since, or if the
    /// store is in another epoch: then nothing is done, and the lock is still held.
    ///
    /// # Errors
    /// As [`Cache::set`]: then it is not known whether it was done. It may be repeated.
    pub async fn commit(
        &mut self,
        change: &Change<'_>,
        kept: &[(&str, &[u8], Duration)],
    ) -> Result<bool, CacheError> {
        let committed = self
            .cache
            .commit(change, kept, Some((&self.key, self.token.as_bytes())))
            .await?;
        self.held &= !committed;
        Ok(committed)
    }

    /// Gives the lock back. A failure is of no consequence beyond its `ttl`.
    pub async fn release(mut self) {
        self.held = false;
        let _ = self
            .cache
            .delete_if_equal(&self.key, self.token.as_bytes())
            .await;
    }
}

impl Drop for Guard {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_irregular_and_never_later_than_they_should_be() {
        let times: Vec<_> = std::iter::repeat_with(|| irregular(LOOK_AGAIN))
            .take(1_000)
            .collect();
        assert!(
            times
                .iter()
                .all(|time| (LOOK_AGAIN / 5..=LOOK_AGAIN).contains(time))
        );
        let early = times
            .iter()
            .filter(|time| **time < LOOK_AGAIN.mul_f64(0.6))
            .count();
        assert!(
            (300..700).contains(&early),
            "{early} of 1000 in the first half"
        );
    }
}
