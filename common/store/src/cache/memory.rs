//! A bounded cache in process memory with expiry.
//!
//! When it is full, new entries are rejected instead of evicting old ones: an entry may be a
//! single-use value that a client still needs, or a counter that limits attempts, and a flood of
//! entries must not evict either.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use super::CacheError;
use postern_core::clock::{Clock, Timestamp};

/// Approximate overhead per entry in bytes: two map slots and two allocations.
const ENTRY_OVERHEAD_BYTES: usize = 160;

const MAX_ENTRIES: usize = 200_000;
/// Maximum bytes, including keys and overhead.
const MAX_BYTES: usize = 64 << 20;

pub(super) struct MemoryCache {
    clock: Clock,
    epoch: String,
    max_entries: usize,
    max_bytes: usize,
    state: Mutex<MemoryState>,
}

#[derive(Default)]
struct MemoryState {
    entries: HashMap<Arc<str>, MemoryEntry, ahash::RandomState>,
    /// Entries by expiry; the number distinguishes entries of the same instant.
    expiry: BTreeMap<(Timestamp, u64), Arc<str>>,
    next: u64,
    bytes: usize,
    /// Time of the last access.
    seen_at: Option<Timestamp>,
}

struct MemoryEntry {
    value: Box<[u8]>,
    written_at: Timestamp,
    expiry: (Timestamp, u64),
}

// === impl MemoryCache ===

impl MemoryCache {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            epoch: Uuid::new_v4().simple().to_string(),
            max_entries: MAX_ENTRIES,
            max_bytes: MAX_BYTES,
            state: Mutex::default(),
        }
    }

    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    pub(super) fn set(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), CacheError> {
        let (mut state, now) = self.lock_current();
        self.put(&mut state, (key, value), now, now.plus(ttl))
    }

    pub(super) fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let (mut state, now) = self.lock_current();
        if state.entries.contains_key(key) {
            return Ok(false);
        }
        self.put(&mut state, (key, value), now, now.plus(ttl))
            .map(|()| true)
    }

    pub(super) fn entries(&self) -> usize {
        self.lock_current().0.entries.len()
    }

    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.lock_current()
            .0
            .entries
            .get(key)
            .map(|entry| entry.value.to_vec())
    }

    pub(super) fn take(&self, key: &str) -> Option<Vec<u8>> {
        self.lock_current()
            .0
            .remove(key)
            .map(|entry| entry.value.into_vec())
    }

    pub(super) fn delete_if_equal(&self, key: &str, value: &[u8]) -> bool {
        let (mut state, _) = self.lock_current();
        state
            .entries
            .get(key)
            .is_some_and(|entry| *entry.value == *value)
            && state.remove(key).is_some()
    }

    pub(super) fn increment(&self, key: &str, ttl: Duration) -> Result<u64, CacheError> {
        let (mut state, now) = self.lock_current();
        let (count, expiry) = state.count(key)?.unwrap_or_else(|| (0, now.plus(ttl)));
        let value = (count + 1).to_string();
        self.put(&mut state, (key, value.as_bytes()), now, expiry)
            .map(|()| count + 1)
    }

    /// Replaces a value by one that is computed from it and the present time, with its expiry, or
    /// leaves it unchanged. No other caller changes the value meanwhile.
    pub(super) fn update<T>(
        &self,
        key: &str,
        compute: impl FnOnce(Option<&[u8]>, Timestamp) -> (Option<(String, Timestamp)>, T),
    ) -> Result<T, CacheError> {
        let (mut state, now) = self.lock_current();
        let found = state.entries.get(key).map(|entry| &*entry.value);
        let (replacement, result) = compute(found, now);
        if let Some((value, expiry)) = replacement {
            self.put(&mut state, (key, value.as_bytes()), now, expiry)?;
        }
        Ok(result)
    }

    /// Locks the state and removes expired entries, and if the clock was set back, those from later.
    fn lock_current(&self) -> (MutexGuard<'_, MemoryState>, Timestamp) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.seen_at.is_some_and(|at| now.is_set_back(at)) {
            state.remove_later_than(now);
        }
        state.seen_at = Some(now);
        while let Some(first) = state
            .expiry
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            let key = first.get().clone();
            state.remove(&key);
        }
        (state, now)
    }

    fn put(
        &self,
        state: &mut MemoryState,
        (key, value): (&str, &[u8]),
        now: Timestamp,
        expiry: Timestamp,
    ) -> Result<(), CacheError> {
        let old = state.entries.get(key);
        let freed = old.map_or(0, |old| cost(key, &old.value));
        let others = state.entries.len() - usize::from(freed > 0);
        let bytes = state.bytes - freed + cost(key, value);
        if others >= self.max_entries || bytes > self.max_bytes {
            let bytes = state.bytes;
            postern_core::log_limited!(warn, entries = others, bytes, "memory cache full");
            return Err(CacheError::Unavailable);
        }
        state.remove(key);
        let (key, expiry): (Arc<str>, _) = (key.into(), (expiry, state.next));
        state.next += 1;
        state.bytes = bytes;
        state.expiry.insert(expiry, key.clone());
        state.entries.insert(
            key,
            MemoryEntry {
                value: value.into(),
                written_at: now,
                expiry,
            },
        );
        Ok(())
    }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD_BYTES
}

// === impl MemoryState ===

impl MemoryState {
    /// Returns a counter, stored as decimal text as in Redis, and its expiry.
    fn count(&self, key: &str) -> Result<Option<(u64, Timestamp)>, CacheError> {
        let Some(entry) = self.entries.get(key) else {
            return Ok(None);
        };
        let count = std::str::from_utf8(&entry.value)
            .ok()
            .and_then(|text| text.parse().ok());
        count
            .map(|count| Some((count, entry.expiry.0)))
            .ok_or(CacheError::Unavailable)
    }

    /// Their lifetimes were measured by a clock that was wrong.
    fn remove_later_than(&mut self, now: Timestamp) {
        let entries = self.entries.iter();
        let later = entries.filter(|(_, entry)| now.is_set_back(entry.written_at));
        for key in later.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &str) -> Option<MemoryEntry> {
        let entry = self.entries.remove(key)?;
        self.expiry.remove(&entry.expiry);
        self.bytes -= cost(key, &entry.value);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn small(clock: &Clock) -> MemoryCache {
        MemoryCache {
            max_entries: 3,
            max_bytes: 3 * (ENTRY_OVERHEAD_BYTES + 100),
            ..MemoryCache::new(clock.clone())
        }
    }

    #[test]
    fn entries_of_a_clock_that_was_ahead_end_when_it_is_right() {
        const DAY: Duration = Duration::from_secs(86_400);
        let clock = Clock::manual(Timestamp(0).plus(DAY));
        let memory = small(&clock);
        memory.set("ahead", b"1", HOUR).expect("room");
        clock.set(Timestamp(0));
        assert_eq!(memory.get("ahead"), None);
        memory.set("right", b"2", HOUR).expect("room");
        clock.advance(HOUR / 2);
        assert!(memory.get("right").is_some());
        clock.set(Timestamp(0).plus(HOUR / 2 - Duration::from_secs(60)));
        assert!(memory.get("right").is_some(), "corrected by a minute");
    }

    #[test]
    fn full_cache_rejects_new_entries_and_keeps_old_ones() {
        let clock = Clock::manual(Timestamp(0));
        let memory = small(&clock);
        memory
            .set("soon", b"x", Duration::from_secs(1))
            .expect("room");
        memory.set("a", b"1", HOUR).expect("room");
        memory.set("b", b"2", HOUR).expect("room");
        assert_eq!(
            memory.set("c", b"3", HOUR),
            Err(CacheError::Unavailable),
            "too many"
        );
        assert_eq!(
            memory.increment("n", HOUR),
            Err(CacheError::Unavailable),
            "too many"
        );
        memory
            .set("a", b"4", HOUR)
            .expect("an existing entry can be replaced");
        assert_eq!(
            memory.set("a", &[0; 999], HOUR),
            Err(CacheError::Unavailable),
            "too large"
        );
        assert_eq!(
            memory.get("a").as_deref(),
            Some(&b"4"[..]),
            "and is unchanged"
        );
        clock.advance(Duration::from_secs(1));
        memory
            .set("c", b"3", HOUR)
            .expect("expired entries free their room");
        assert_eq!(memory.get("soon"), None);
    }

    #[test]
    fn byte_count_matches_the_entries() {
        let clock = Clock::manual(Timestamp(0));
        let memory = small(&clock);
        for round in 0..100_u64 {
            memory
                .set(
                    "a",
                    &vec![0; usize::try_from(round % 7).expect("small")],
                    HOUR,
                )
                .expect("room");
            memory
                .increment("n", Duration::from_millis(1 + round % 3))
                .expect("room");
            clock.advance(Duration::from_millis(round % 2));
            if round % 5 == 0 {
                memory.take("a");
            }
        }
        clock.advance(HOUR);
        let (state, _) = memory.lock_current();
        assert_eq!(
            (state.entries.len(), state.expiry.len(), state.bytes),
            (0, 0, 0)
        );
    }
}
