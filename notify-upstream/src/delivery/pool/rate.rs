//! The rate limit of a provider, shared by all replicas.

use std::time::Duration;

use parking_lot::Mutex;
use postern_common::cache::Cache;
use tokio::time::Instant;

/// A limit of calls per second to one provider over all replicas, at a common pace in the shared
/// cache: each call gets a time slot, in the order of the reservations. A replica reserves one slot
/// at a time, so that replicas with waiting calls take turns. While the cache is unavailable, each
/// replica has a pace of its own.
#[derive(Debug)]
pub(crate) struct ProviderRate {
    cache: Cache,
    key: String,
    interval: Duration,
    /// How much earlier than its slot a call may be made, so that short intervals are not extended
    /// by the precision of timers.
    lead: Duration,
    /// The beginning of the slot that is reserved and not used.
    reserved: Mutex<Option<Instant>>,
    /// The next slot while the cache is unavailable.
    next_local: Mutex<Instant>,
}

/// The lead of calls at more than 50 per second, and as much again for urgent ones.
const LEAD: Duration = Duration::from_millis(20);

// === impl ProviderRate ===

impl ProviderRate {
    /// Creates a limit of `per_second` calls to the provider `name`.
    #[must_use]
    pub(crate) fn new(cache: Cache, name: &str, per_second: u64) -> Self {
        let interval =
            Duration::from_secs(1) / u32::try_from(per_second.max(1)).unwrap_or(u32::MAX);
        Self {
            cache,
            key: format!("notify:pace:{name}"),
            interval,
            lead: if interval < LEAD {
                LEAD
            } else {
                Duration::ZERO
            },
            reserved: Mutex::default(),
            next_local: Mutex::new(Instant::now()),
        }
    }

    /// Reserves a slot, unless one is reserved that was not used.
    pub(crate) async fn reserve(&self) {
        if self.reserved.lock().is_some() {
            return;
        }
        let slot = match self.cache.reserve_slot(&self.key, self.interval).await {
            Ok(wait) => Instant::now() + wait,
            Err(_) => self.reserve_locally(),
        };
        *self.reserved.lock() = Some(slot);
    }

    /// Uses the reserved slot for a call. An urgent call may be made further ahead of it.
    ///
    /// # Errors
    /// The time until the call may be made.
    pub(crate) fn try_use(&self, urgent: bool) -> Result<(), Duration> {
        let lead = self.lead * if urgent { 2 } else { 1 };
        let mut reserved = self.reserved.lock();
        let wait = reserved.map(|slot| slot.saturating_duration_since(Instant::now() + lead));
        match wait {
            Some(wait) if !wait.is_zero() => Err(wait),
            Some(_) | None => {
                *reserved = None;
                Ok(())
            }
        }
    }

    fn reserve_locally(&self) -> Instant {
        let mut next = self.next_local.lock();
        let slot = Instant::now().max(*next);
        *next = slot + self.interval;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::Clock;
    use postern_common::clock::Timestamp;

    /// Lets replicas with waiting calls poll for a second, always the first one first. Returns the
    /// calls of each, and the most of a millisecond.
    async fn poll(replicas: &[ProviderRate; 3], clock: &Clock) -> ([u64; 3], u64) {
        let (mut calls, mut most) = ([0; 3], 0);
        for _ in 0..1000 {
            let before: u64 = calls.iter().sum();
            for (replica, calls) in replicas.iter().zip(&mut calls) {
                replica.reserve().await;
                while replica.try_use(false).is_ok() {
                    *calls += 1;
                    replica.reserve().await;
                }
            }
            most = most.max(calls.iter().sum::<u64>() - before);
            clock.advance(Duration::from_millis(1));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        (calls, most)
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_share_the_rate_in_turn() {
        for per_second in [3, 7, 40, 50, 51, 120, 2_000] {
            let clock = Clock::manual(Timestamp(1_700_000_000_000));
            let cache = Cache::memory(clock.clone());
            let replicas = [(); 3].map(|()| ProviderRate::new(cache.clone(), "smtp", per_second));
            let (calls, most) = poll(&replicas, &clock).await;
            let ahead = if per_second > 50 { per_second / 50 } else { 0 };
            let sum: u64 = calls.iter().sum();
            assert!(
                (per_second..=per_second + ahead + 1).contains(&sum),
                "{per_second}: {calls:?}"
            );
            assert!(
                most <= ahead + per_second.div_ceil(1000) + 1,
                "{per_second}: {most}"
            );
            // Above that, the first one to be polled takes several in a millisecond.
            if per_second <= 50 {
                let [few, many] = [calls.iter().min(), calls.iter().max()];
                assert!(
                    many.zip(few).is_some_and(|(many, few)| many - few <= 2),
                    "{calls:?}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unused_slot_is_kept() {
        let cache = Cache::memory(Clock::manual(Timestamp(1_000)));
        let rate = ProviderRate::new(cache, "smtp", 4);
        rate.reserve().await;
        assert_eq!(rate.try_use(false), Ok(()));
        for _ in 0..3 {
            rate.reserve().await;
            assert_eq!(rate.try_use(true), Err(Duration::from_millis(250)));
        }
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(rate.try_use(false), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_call_is_made_further_ahead() {
        let cache = Cache::memory(Clock::manual(Timestamp(1_000)));
        let rate = ProviderRate::new(cache, "smtp", 100);
        let mut waits = Vec::new();
        for urgent in [false, false, false, false, true, true, true] {
            rate.reserve().await;
            waits.push(rate.try_use(urgent).err().map(|wait| wait.as_millis()));
        }
        let expected = [None, None, None, Some(10), None, None, Some(10)];
        assert_eq!(waits, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn replica_keeps_the_pace_while_the_cache_is_unavailable() {
        let cache = Cache::memory(Clock::manual(Timestamp(1_000)));
        let rate = ProviderRate::new(cache, "smtp", 4);
        let now = Instant::now();
        let slots = [(); 3].map(|()| rate.reserve_locally() - now);
        assert_eq!(slots, [0, 250, 500].map(Duration::from_millis));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(rate.reserve_locally() - now, Duration::from_secs(9));
    }
}
