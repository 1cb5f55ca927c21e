use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{Cache, CacheError, Change, Found};

/// The longest time between two looks at a lock that another holds.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// A lock that is held until it is released, dropped, or its time is over.
#[derive(Debug)]
pub struct Guard {
    cache: Cache,
    key: String,
    /// Ours alone: a lock that has passed to another is not released by us.
    token: Uuid,
    held: bool,
}

pub(super) async fn take(cache: &Cache, key: &str, ttl: Duration) -> Result<Option<Guard>, CacheError> {
    let mut guard = Guard::presumed(cache, key);
    guard.held = cache.set_if_absent(key, guard.token.as_bytes(), ttl).await?;
    Ok(guard.held.then_some(guard))
}

pub(super) async fn take_and_get<const N: usize>(
    cache: &Cache,
    key: &str,
    ttl: Duration,
    wanted: [&str; N],
) -> Result<(Option<Guard>, Found<N>), CacheError> {
    let mut guard = Guard::presumed(cache, key);
    let (held, found) = cache.set_if_absent_and_get(key, guard.token.as_bytes(), ttl, wanted).await?;
    guard.held = held;
    Ok((guard.held.then_some(guard), found))
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

/// Between a fifth of it and all of it. Whoever looks at regular moments never finds a lock that another takes at regular
/// moments too.
fn irregular(duration: Duration) -> Duration {
    let fraction = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
    duration.mul_f64(0.2 + 0.8 * fraction)
}

// === impl Guard ===

impl Guard {
    /// Held before it is known to be: whoever goes while the store answers leaves no lock behind.
    fn presumed(cache: &Cache, key: &str) -> Self {
        Self { cache: cache.clone(), key: key.to_owned(), token: Uuid::new_v4(), held: true }
    }

    /// Makes a change to a key that was read under the lock, keeps values beside it as [`Cache::set`] does, and gives the lock
    /// back, all at once; over a cluster the change alone is atomic, and the rest follows it. False if somebody has changed
    /// the key since, or if the store is in another epoch: then nothing is done, and the lock is still held.
    ///
    /// # Errors
    /// As [`Cache::set`]: then it is not known whether it was done. It may be repeated.
    pub async fn commit(
        &mut self,
        change: &Change<'_>,
        kept: &[(&str, &[u8], Duration)],
    ) -> Result<bool, CacheError> {
        let committed = self.cache.commit(change, kept, Some((&self.key, self.token.as_bytes()))).await?;
        self.held &= !committed;
        Ok(committed)
    }

    /// Gives the lock back. A failure is of no consequence beyond its `ttl`.
    pub async fn release(mut self) {
        self.held = false;
        let _ = self.cache.delete_if_equal(&self.key, self.token.as_bytes()).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.held {
            let (cache, key, token) = (self.cache.clone(), std::mem::take(&mut self.key), self.token);
            runtime.spawn(async move { cache.delete_if_equal(&key, token.as_bytes()).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_irregular_and_never_later_than_they_should_be() {
        let times: Vec<_> = std::iter::repeat_with(|| irregular(LOOK_AGAIN)).take(1_000).collect();
        assert!(times.iter().all(|time| (LOOK_AGAIN / 5..=LOOK_AGAIN).contains(time)));
        let early = times.iter().filter(|time| **time < LOOK_AGAIN.mul_f64(0.6)).count();
        assert!((300..700).contains(&early), "{early} of 1000 in the first half");
    }
}
