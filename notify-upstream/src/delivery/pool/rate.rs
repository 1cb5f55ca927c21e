//! The rate limit of a provider, shared by all replicas.

use std::cmp::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use postern_common::Clock;
use postern_common::cache::Cache;

/// A limit of calls per second to one provider over all replicas, counted in the shared cache.
/// While the cache is unavailable, each replica counts for itself. Calls are spread evenly over the
/// second.
#[derive(Debug)]
pub(crate) struct ProviderRate {
    cache: Cache,
    clock: Clock,
    name: String,
    per_second: i64,
    /// Local counter for when the cache is unavailable: the last slice and its calls.
    local: Mutex<(i64, u64)>,
}

/// Maximum number of slices of a second. A lower rate has one slice per call.
const SLICES_PER_SECOND: i64 = 50;

// === impl ProviderRate ===

impl ProviderRate {
    /// Creates a limit of `per_second` calls to the provider `name`.
    #[must_use]
    pub(crate) fn new(cache: Cache, clock: Clock, name: &str, per_second: u64) -> Self {
        let per_second = i64::try_from(per_second.max(1)).unwrap_or(i64::MAX / SLICES_PER_SECOND);
        Self {
            cache,
            clock,
            name: name.to_owned(),
            per_second,
            local: Mutex::default(),
        }
    }

    /// Takes a call of the current slice, if one is left. An urgent call may take one of the next
    /// slice, a fiftieth of a second in advance, because waiting calls have used the current slice
    /// when it began.
    pub(crate) async fn try_acquire(&self, urgent: bool) -> bool {
        let slice = self.slice();
        self.take(slice).await
            || (urgent && self.per_second > SLICES_PER_SECOND && self.take(slice + 1).await)
    }

    /// Waits for the next slice.
    pub(crate) async fn next_slice(&self) {
        tokio::time::sleep(self.until_next_slice()).await;
    }

    async fn take(&self, slice: i64) -> bool {
        let key = format!("notify:rate:{}:{slice}", self.name);
        let count = match self.cache.increment(&key, Duration::from_secs(5)).await {
            Ok(count) => count,
            Err(_) => self.count_locally(slice),
        };
        count <= self.calls_in(slice)
    }

    fn slices(&self) -> i64 {
        self.per_second.min(SLICES_PER_SECOND)
    }

    /// Returns the number of the current slice, counted from the epoch.
    fn slice(&self) -> i64 {
        (self.clock.now().0 * self.slices()).div_euclid(1000)
    }

    /// Returns the number of calls of a slice. All calls of a second are distributed over its
    /// slices.
    fn calls_in(&self, slice: i64) -> u64 {
        let slices = self.slices();
        let until = |slice: i64| slice * self.per_second / slices;
        let slice = slice.rem_euclid(slices);
        u64::try_from(until(slice + 1) - until(slice)).unwrap_or(1)
    }

    fn until_next_slice(&self) -> Duration {
        let begins = ((self.slice() + 1) * 1000 + self.slices() - 1).div_euclid(self.slices());
        Duration::from_millis(
            u64::try_from(begins - self.clock.now().0)
                .unwrap_or(0)
                .max(1),
        )
    }

    fn count_locally(&self, slice: i64) -> u64 {
        let mut local = self.local.lock();
        // A request for an earlier slice than the last exceeds the limit.
        *local = match slice.cmp(&local.0) {
            Ordering::Less => return u64::MAX,
            Ordering::Equal => (slice, local.1 + 1),
            Ordering::Greater => (slice, 1),
        };
        local.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::clock::Timestamp;

    fn rate(clock: &Clock, cache: &Cache, per_second: u64) -> ProviderRate {
        ProviderRate::new(cache.clone(), clock.clone(), "smtp", per_second)
    }

    #[tokio::test]
    async fn rate_is_shared_by_replicas_and_spread_over_slices() {
        for per_second in [1, 3, 7, 49, 50, 51, 120, 2_000, 2_049] {
            let clock = Clock::manual(Timestamp(1_700_000_000_000));
            let cache = Cache::memory(clock.clone());
            let replicas = [
                rate(&clock, &cache, per_second),
                rate(&clock, &cache, per_second),
            ];
            let (mut count, mut most) = (0, 0);
            for _ in 0..1000 {
                let mut now = 0;
                while replicas[now % 2].try_acquire(false).await {
                    now += 1;
                }
                count += now as u64;
                most = most.max(now as u64);
                clock.advance(Duration::from_millis(1));
            }
            assert_eq!(count, per_second);
            assert!(
                most <= per_second.div_ceil(50),
                "{most} of {per_second} at once"
            );
        }
    }

    #[tokio::test]
    async fn wait_ends_with_the_slice() {
        let clock = Clock::manual(Timestamp(1_000));
        let rate = rate(&clock, &Cache::memory(clock.clone()), 3);
        assert_eq!(
            (rate.try_acquire(true).await, rate.try_acquire(true).await),
            (true, false)
        );
        assert_eq!(rate.until_next_slice(), Duration::from_millis(334));
        clock.advance(rate.until_next_slice());
        assert!(rate.try_acquire(false).await);
    }

    #[tokio::test]
    async fn urgent_call_borrows_from_the_next_slice_only() {
        let clock = Clock::manual(Timestamp(1_000));
        let rate = rate(&clock, &Cache::memory(clock.clone()), 100);
        let mut count = Vec::new();
        for urgent in [false, false, false, true, true, true] {
            count.push(rate.try_acquire(urgent).await);
        }
        assert_eq!(count, [true, true, false, true, true, false]);
        clock.advance(Duration::from_millis(20));
        assert!(!rate.try_acquire(false).await, "the slice is used up");
    }

    #[test]
    fn replica_counts_locally_while_cache_is_unavailable() {
        let clock = Clock::manual(Timestamp(1_000));
        let rate = rate(&clock, &Cache::memory(clock.clone()), 100);
        assert_eq!(
            [9, 9, 10, 9, 11].map(|slice| rate.count_locally(slice)),
            [1, 2, 1, u64::MAX, 1]
        );
    }
}
