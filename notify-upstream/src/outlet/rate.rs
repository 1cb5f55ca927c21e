use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::cache::Cache;

/// How many calls a second a provider takes from all replicas together: counted in the shared cache, and by each replica
/// for itself while the cache is away.
#[derive(Debug)]
pub struct Rate {
    cache: Cache,
    clock: Clock,
    name: String,
    per_second: u64,
    local: Mutex<(i64, u64)>,
}

/// No call waits longer for its turn; then it goes, because a queue of waiting calls helps nobody.
const MOST_SECONDS: usize = 30;

// === impl Rate ===

impl Rate {
    /// So many calls a second to the provider of this name.
    #[must_use]
    pub fn new(cache: Cache, clock: Clock, name: &str, per_second: u64) -> Self {
        Self { cache, clock, name: name.to_owned(), per_second: per_second.max(1), local: Mutex::default() }
    }

    /// Returns when a call may be made.
    pub async fn turn(&self) {
        for _ in 0..MOST_SECONDS {
            if self.try_turn().await {
                return;
            }
            let into = self.clock.now().0.rem_euclid(1000);
            tokio::time::sleep(Duration::from_millis(u64::try_from(1000 - into).unwrap_or(1000))).await;
        }
    }

    /// Whether one of this second's calls is left; takes it.
    pub async fn try_turn(&self) -> bool {
        let second = self.clock.now().unix_seconds();
        let key = format!("notify:rate:{}:{second}", self.name);
        let taken = match self.cache.increment(&key, Duration::from_secs(5)).await {
            Ok(taken) => taken,
            Err(_) => self.count_locally(second),
        };
        taken <= self.per_second
    }

    fn count_locally(&self, second: i64) -> u64 {
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        *local = if local.0 == second { (second, local.1 + 1) } else { (second, 1) };
        local.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::clock::Timestamp;

    #[tokio::test]
    async fn a_second_has_so_many_calls_whoever_makes_them() {
        let clock = Clock::manual(Timestamp(1_000));
        let cache = Cache::memory(clock.clone());
        let rate = || Rate::new(cache.clone(), clock.clone(), "smtp", 3);
        let (a, b) = (rate(), rate());
        let taken = [a.try_turn().await, b.try_turn().await, a.try_turn().await, b.try_turn().await];
        assert_eq!(taken, [true, true, true, false]);
        clock.advance(Duration::from_secs(1));
        assert!(b.try_turn().await);
        assert_eq!([b.count_locally(9), b.count_locally(9), b.count_locally(10)], [1, 2, 1]);
    }
}
