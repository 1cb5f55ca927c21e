use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::cache::Cache;

/// How many calls a second a provider takes from all replicas together: counted in the shared
/// cache, and by each replica for itself while the cache is away. They are spread over the second,
/// so that nobody waits for the next one to begin.
#[derive(Debug)]
pub(crate) struct ProviderRate {
    cache: Cache,
    clock: Clock,
    name: String,
    per_second: i64,
    /// Of this replica, while the cache is away: the last slice, and the calls of it so far.
    local: Mutex<(i64, u64)>,
}

/// Parts of a second; a rate below has a slice for each call.
const SLICES_PER_SECOND: i64 = 50;

// === impl ProviderRate ===

impl ProviderRate {
    /// So many calls a second to the provider of this name.
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

    /// Whether a call of this slice of the second is left; takes it. What is urgent may take one of
    /// the next slice, a fiftieth of a second ahead of its time: whatever waits has used up this
    /// slice as it began.
    pub(crate) async fn try_acquire(&self, urgent: bool) -> bool {
        let slice = self.slice();
        self.take(slice).await
            || (urgent && self.per_second > SLICES_PER_SECOND && self.take(slice + 1).await)
    }

    /// When there are new calls.
    pub(crate) async fn next_slice(&self) {
        tokio::time::sleep(self.until_next_slice()).await;
    }

    async fn take(&self, slice: i64) -> bool {
        let key = format!("notify:rate:{}:{slice}", self.name);
        let taken = match self.cache.increment(&key, Duration::from_secs(5)).await {
            Ok(taken) => taken,
            Err(_) => self.count_locally(slice),
        };
        taken <= self.calls_in(slice)
    }

    fn slices(&self) -> i64 {
        self.per_second.min(SLICES_PER_SECOND)
    }

    /// Parts since 1970.
    fn slice(&self) -> i64 {
        (self.clock.now().0 * self.slices()).div_euclid(1000)
    }

    /// The calls of a second are divided among its slices to the last one.
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
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        // One that asks after the next slice has been used asks for too much.
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
    async fn a_second_has_so_many_calls_whoever_makes_them_and_no_part_has_them_all() {
        for per_second in [1, 3, 7, 49, 50, 51, 120, 2_000, 2_049] {
            let clock = Clock::manual(Timestamp(1_700_000_000_000));
            let cache = Cache::memory(clock.clone());
            let replicas = [
                rate(&clock, &cache, per_second),
                rate(&clock, &cache, per_second),
            ];
            let (mut taken, mut most) = (0, 0);
            for _ in 0..1000 {
                let mut now = 0;
                while replicas[now % 2].try_acquire(false).await {
                    now += 1;
                }
                taken += now as u64;
                most = most.max(now as u64);
                clock.advance(Duration::from_millis(1));
            }
            assert_eq!(taken, per_second);
            assert!(
                most <= per_second.div_ceil(50),
                "{most} of {per_second} at once"
            );
        }
    }

    #[tokio::test]
    async fn the_wait_ends_with_the_part() {
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
    async fn what_is_urgent_borrows_from_the_next_part_alone() {
        let clock = Clock::manual(Timestamp(1_000));
        let rate = rate(&clock, &Cache::memory(clock.clone()), 100);
        let mut taken = Vec::new();
        for urgent in [false, false, false, true, true, true] {
            taken.push(rate.try_acquire(urgent).await);
        }
        assert_eq!(taken, [true, true, false, true, true, false]);
        clock.advance(Duration::from_millis(20));
        assert!(!rate.try_acquire(false).await, "it is used up");
    }

    #[test]
    fn while_the_cache_is_away_each_counts_for_itself() {
        let clock = Clock::manual(Timestamp(1_000));
        let rate = rate(&clock, &Cache::memory(clock.clone()), 100);
        assert_eq!(
            [9, 9, 10, 9, 11].map(|slice| rate.count_locally(slice)),
            [1, 2, 1, u64::MAX, 1]
        );
    }
}
