//! A rate limiter by key: the generic cell rate algorithm (GCRA), a token bucket stored as one
//! timestamp per key.
//!
//! Memory is bounded: a full table first evicts keys whose bucket is full again, then arbitrary
//! keys. Timestamps are nanoseconds of a monotonic clock that the caller reads.

use std::time::Duration;

use ahash::AHashMap;
use parking_lot::{Mutex, MutexGuard};

/// A sustained rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Maximum requests at once.
    pub burst: u32,
    /// Nanoseconds between two requests at the sustained rate, rounded down.
    pub interval_ns: u64,
}

/// The limit is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateExceeded {
    /// Time until a token is available.
    pub retry_after: Duration,
}

/// The token buckets of all keys.
#[derive(Debug)]
pub struct RateLimiter {
    shards: Box<[Mutex<KeyShard>]>,
    keys_per_shard: usize,
}

#[derive(Debug, Default)]
struct KeyShard {
    arrivals: AHashMap<u64, u64>,
    swept_at: u64,
}

const SHARD_COUNT: usize = 32;

/// Minimum interval between two sweeps of a full shard. Between sweeps, arbitrary keys are evicted.
const SWEEP_INTERVAL_NS: u64 = 1_000_000_000;

impl Rate {
    /// Creates a rate of `requests` per `per`, with a burst of `burst` or else of `requests`. Both
    /// are at least 1.
    #[must_use]
    pub fn new(requests: u32, per: Duration, burst: Option<u32>) -> Self {
        let requests = requests.max(1);
        let burst = burst.unwrap_or(requests).max(1);
        let interval = per.as_nanos() / u128::from(requests);
        Self {
            burst,
            interval_ns: u64::try_from(interval).unwrap_or(u64::MAX).max(1),
        }
    }

    /// Takes a token at `now` from a bucket with the theoretical arrival time `arrival`. Returns
    /// the new arrival time.
    fn take(self, arrival: u64, now: u64) -> Result<u64, RateExceeded> {
        let base = arrival.max(now);
        let window = self.interval_ns.saturating_mul(u64::from(self.burst));
        let next = base.saturating_add(self.interval_ns);
        let ahead = next - now;
        if ahead > window {
            let retry_after = Duration::from_nanos(ahead - window);
            return Err(RateExceeded { retry_after });
        }
        Ok(next)
    }
}

impl RateLimiter {
    /// Creates a limiter for about `keys` keys (16 to 40 bytes each).
    #[must_use]
    pub fn new(keys: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            keys_per_shard: keys.div_ceil(SHARD_COUNT).max(1),
        }
    }

    /// Takes a token for `key`, a hash with a seed that clients cannot know. Different rates
    /// require different keys.
    ///
    /// # Errors
    /// None is left.
    pub fn take(&self, rate: Rate, key: u64, now: u64) -> Result<(), RateExceeded> {
        let mut shard = self.shard(key);
        let known = shard.arrivals.get(&key).copied();
        let next = rate.take(known.unwrap_or(0), now)?;
        if known.is_none() {
            shard.evict(self.keys_per_shard, now);
        }
        shard.arrivals.insert(key, next);
        Ok(())
    }

    /// Returns whether no token for `key` is left.
    #[must_use]
    pub fn is_empty(&self, rate: Rate, key: u64, now: u64) -> bool {
        let known = self.shard(key).arrivals.get(&key).copied();
        known.is_some_and(|arrival| rate.take(arrival, now).is_err())
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, KeyShard> {
        let at = usize::try_from(key >> 32).unwrap_or_default() % SHARD_COUNT;
        self.shards[at].lock()
    }

    /// Returns the number of tracked keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().arrivals.len())
            .sum()
    }
}

impl KeyShard {
    fn evict(&mut self, keys: usize, now: u64) {
        if self.arrivals.len() < keys {
            return;
        }
        if now >= self.swept_at.saturating_add(SWEEP_INTERVAL_NS) || self.swept_at == 0 {
            self.swept_at = now.max(1);
            self.arrivals.retain(|_, arrival| *arrival > now);
        }
        while self.arrivals.len() >= keys
            && let Some(any) = self.arrivals.keys().next().copied()
        {
            self.arrivals.remove(&any);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_bounded_by_keys() {
        let limiter = RateLimiter::new(320);
        let rate = Rate::new(1, Duration::from_secs(3600), None);
        for key in 0..100_000_u64 {
            let _verdict = limiter.take(rate, key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1);
        }
        assert!(limiter.key_count() <= 320, "{}", limiter.key_count());
    }

    /// A token bucket in exact arithmetic: tokens are counted in nanoseconds of refill.
    struct TokenBucket {
        rate: Rate,
        filled: u128,
        at: u64,
    }

    impl TokenBucket {
        fn take(&mut self, now: u64) -> bool {
            let interval = u128::from(self.rate.interval_ns);
            let burst = u128::from(self.rate.burst);
            self.filled = (self.filled + u128::from(now - self.at)).min(interval * burst);
            self.at = now;
            let may = self.filled >= interval;
            if may {
                self.filled -= interval;
            }
            may
        }
    }

    proptest! {
        #[test]
        fn limiter_equals_an_exact_token_bucket(
            requests in 1..50_u32,
            burst in 1..20_u32,
            gaps in proptest::collection::vec(0..2_000_000_000_u64, 1..200),
        ) {
            let rate = Rate::new(requests, Duration::from_secs(10), Some(burst));
            let limiter = RateLimiter::new(10);
            let mut now = 5_000_000_000_000;
            let mut bucket = TokenBucket { rate, filled: u128::from(rate.interval_ns) * u128::from(burst), at: now };
            for gap in gaps {
                now += gap;
                prop_assert_eq!(limiter.take(rate, 1, now).is_ok(), bucket.take(now));
            }
        }
    }
}
