//! A common pace of several processes: each call gets a time slot of its own, in the order of the
//! requests, so that no process is passed over.
//!
//! Slots are those of the generic cell rate algorithm (GCRA): the next one begins an interval after
//! the last, or now if that has passed. The time is that of the cache, so that the clocks of the
//! processes do not matter.

use std::time::Duration;

use super::redis::script;
use super::{Cache, CacheError, CacheStore};
use postern_core::clock::Timestamp;

/// Number of slots that may be reserved in advance. More mean that the clock was set back.
const MAX_SLOTS_AHEAD: i64 = 1000;

impl Cache {
    /// Reserves the next slot of `key`, and returns the time until it begins.
    pub async fn reserve_slot(
        &self,
        key: &str,
        interval: Duration,
    ) -> Result<Duration, CacheError> {
        let key = self.key(key);
        let interval = i64::try_from(interval.as_micros()).unwrap_or(i64::MAX / MAX_SLOTS_AHEAD);
        let micros = match &self.0.store {
            CacheStore::Memory(memory) => memory.update(&key, |stored, now| {
                let stored = stored.and_then(|stored| std::str::from_utf8(stored).ok());
                let stored = stored.and_then(|stored| stored.parse().ok());
                let now = now.0.saturating_mul(1000);
                let slot = next_slot(stored, now, interval);
                let following = slot.saturating_add(interval);
                let expiry = Timestamp(following / 1000 + 1000);
                (Some((following.to_string(), expiry)), slot - now)
            })?,
            CacheStore::Redis(redis) => {
                let mut script = script::RESERVE_SLOT.key(key);
                redis
                    .invoke(script.arg(interval).arg(MAX_SLOTS_AHEAD))
                    .await?
            }
        };
        Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    }
}

/// Returns the beginning of the next slot. Times are in microseconds.
fn next_slot(stored: Option<i64>, now: i64, interval: i64) -> i64 {
    let slot = stored.unwrap_or(now).max(now);
    if slot - now > interval.saturating_mul(MAX_SLOTS_AHEAD) {
        return now;
    }
    slot
}
