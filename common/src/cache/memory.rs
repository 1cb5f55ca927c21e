//! The cache in this process: bounded, and forgetting on time.
//!
//! When it is full of what still lives, it refuses what is new rather than throw out what is old:
//! an entry may be a single-use value that someone holds the other half of, or the count that slows
//! a guesser down, and a flood must not be able to push either out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use super::{CacheError, Change, Options};
use crate::clock::{Clock, Timestamp};

/// What one principal has of the bytes at most: 1 MiB of the default.
const SHARES: usize = 64;

/// How often it is logged that there is no room.
const FULL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Bookkeeping per entry in bytes, about: two map slots and two allocations.
const OVERHEAD: usize = 160;

#[derive(Debug)]
pub(super) struct Memory {
    clock: Clock,
    epoch: String,
    most_entries: usize,
    most_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<str>, Entry, ahash::RandomState>,
    /// Every entry by when it is due; the number tells entries of one instant apart.
    due: BTreeMap<(Timestamp, u64), Arc<str>>,
    next: u64,
    bytes: usize,
    /// Bytes by the principal that they are kept for.
    owned: HashMap<Arc<str>, usize, ahash::RandomState>,
    /// When a refusal was logged last, and how many there were since.
    logged_at: Option<Timestamp>,
    unlogged: u64,
}

struct Entry {
    value: Box<[u8]>,
    due: (Timestamp, u64),
    owner: Option<Arc<str>>,
}

// === impl Memory ===

impl Memory {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            clock: options.clock.clone(),
            epoch: Uuid::new_v4().simple().to_string(),
            most_entries: options.memory_entries,
            most_bytes: options.memory_bytes,
            state: Mutex::default(),
        }
    }

    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    pub(super) fn set(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), CacheError> {
        let (mut state, now) = self.fresh();
        self.put(&mut state, key, value, now.plus(ttl))
    }

    pub(super) fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let (mut state, now) = self.fresh();
        if state.entries.contains_key(key) {
            return Ok(false);
        }
        self.put(&mut state, key, value, now.plus(ttl))
            .map(|()| true)
    }

    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.fresh()
            .0
            .entries
            .get(key)
            .map(|entry| entry.value.to_vec())
    }

    pub(super) fn take(&self, key: &str) -> Option<Vec<u8>> {
        self.fresh()
            .0
            .remove(key)
            .map(|entry| entry.value.into_vec())
    }

    pub(super) fn delete_if_equal(&self, key: &str, value: &[u8]) -> bool {
        let (mut state, _) = self.fresh();
        state
            .entries
            .get(key)
            .is_some_and(|entry| *entry.value == *value)
            && state.remove(key).is_some()
    }

    pub(super) fn increment(&self, key: &str, ttl: Duration) -> Result<u64, CacheError> {
        let (mut state, now) = self.fresh();
        let (count, due) = state.count(key)?.unwrap_or_else(|| (0, now.plus(ttl)));
        self.put(&mut state, key, (count + 1).to_string().as_bytes(), due)
            .map(|()| count + 1)
    }

    pub(super) fn decrement(&self, key: &str) -> Result<(), CacheError> {
        let (mut state, _) = self.fresh();
        let Some((count, due)) = state.count(key)? else {
            return Ok(());
        };
        if count <= 1 {
            state.remove(key);
            return Ok(());
        }
        self.put(&mut state, key, (count - 1).to_string().as_bytes(), due)
    }

    /// What is kept beside the change is left out where there is no room for it: the change is what
    /// counts.
    pub(super) fn commit(
        &self,
        change: &Change<'_>,
        kept: &[(String, &[u8], Duration)],
        lock: Option<(&str, &[u8])>,
    ) -> Result<bool, CacheError> {
        let (mut state, now) = self.fresh();
        let found = state.entries.get(change.key).map(|entry| &*entry.value);
        let is_as_read = self.epoch == change.epoch && found == change.expected;
        if !is_as_read && found != Some(change.value) {
            return Ok(false);
        }
        self.put_owned(
            &mut state,
            (change.key, change.value, now.plus(change.ttl)),
            change.owner,
        )?;
        for (key, value, ttl) in kept {
            let _ = self.put_owned(&mut state, (key, value, now.plus(*ttl)), change.owner);
        }
        if let Some((lock, token)) = lock
            && state
                .entries
                .get(lock)
                .is_some_and(|entry| *entry.value == *token)
        {
            state.remove(lock);
        }
        Ok(true)
    }

    /// The state without what is due by now.
    fn fresh(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = state.due.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.get().clone();
            state.remove(&key);
        }
        (state, now)
    }

    fn put(
        &self,
        state: &mut State,
        key: &str,
        value: &[u8],
        due: Timestamp,
    ) -> Result<(), CacheError> {
        self.put_owned(state, (key, value, due), None)
    }

    fn put_owned(
        &self,
        state: &mut State,
        (key, value, due): (&str, &[u8], Timestamp),
        owner: Option<&str>,
    ) -> Result<(), CacheError> {
        let old = state.entries.get(key);
        let freed = old.map_or(0, |old| cost(key, &old.value));
        let is_own = old.is_some_and(|old| old.owner.as_deref() == owner);
        let others = state.entries.len() - usize::from(freed > 0);
        let bytes = state.bytes - freed + cost(key, value);
        let owned = owner
            .and_then(|owner| state.owned.get(owner))
            .copied()
            .unwrap_or(0);
        let owned = owned - if is_own && owner.is_some() { freed } else { 0 } + cost(key, value);
        let is_over_share = owner.is_some() && owned > self.most_bytes / SHARES;
        if is_over_share || others >= self.most_entries || bytes > self.most_bytes {
            if let Some(refusals) = state.refusals_to_log(self.clock.now()) {
                tracing::warn!(
                    entries = others,
                    bytes = state.bytes,
                    is_over_share,
                    refusals,
                    "cache in memory is full"
                );
            }
            return Err(CacheError::Unavailable);
        }
        state.remove(key);
        let (key, due): (Arc<str>, _) = (key.into(), (due, state.next));
        let owner: Option<Arc<str>> = owner.map(Into::into);
        if let Some(owner) = &owner {
            state.owned.insert(owner.clone(), owned);
        }
        state.next += 1;
        state.bytes = bytes;
        state.due.insert(due, key.clone());
        state.entries.insert(
            key,
            Entry {
                value: value.into(),
                due,
                owner,
            },
        );
        Ok(())
    }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + OVERHEAD
}

// === impl State ===

impl State {
    /// What is counted, as decimal text as Redis keeps it, and when it is due.
    fn count(&self, key: &str) -> Result<Option<(u64, Timestamp)>, CacheError> {
        let Some(entry) = self.entries.get(key) else {
            return Ok(None);
        };
        let count = std::str::from_utf8(&entry.value)
            .ok()
            .and_then(|text| text.parse().ok());
        count
            .map(|count| Some((count, entry.due.0)))
            .ok_or(CacheError::Unavailable)
    }

    /// Counts a refusal, and returns how many there were since the last time if it is to be logged
    /// now.
    fn refusals_to_log(&mut self, now: Timestamp) -> Option<u64> {
        self.unlogged += 1;
        if self
            .logged_at
            .is_some_and(|logged_at| now < logged_at.plus(FULL_LOG_INTERVAL))
        {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }

    fn remove(&mut self, key: &str) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.due.remove(&entry.due);
        self.bytes -= cost(key, &entry.value);
        if let Some(owner) = &entry.owner
            && let Some(owned) = self.owned.get_mut(owner)
        {
            *owned -= cost(key, &entry.value);
            if *owned == 0 {
                self.owned.remove(owner);
            }
        }
        Some(entry)
    }
}

/// Values may be secrets.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("entries", &self.entries.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn small(clock: &Clock) -> Memory {
        let memory_bytes = 3 * (OVERHEAD + 100);
        Memory::new(&Options {
            clock: clock.clone(),
            memory_entries: 3,
            memory_bytes,
            ..Options::default()
        })
    }

    #[test]
    fn what_is_new_is_refused_when_full_and_what_lives_stays() {
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
            .expect("one that is there may change");
        assert_eq!(
            memory.set("a", &[0; 999], HOUR),
            Err(CacheError::Unavailable),
            "too large"
        );
        assert_eq!(
            memory.get("a").as_deref(),
            Some(&b"4"[..]),
            "and is as it was"
        );
        clock.advance(Duration::from_secs(1));
        memory.set("c", b"3", HOUR).expect("what was due made room");
        assert_eq!(memory.get("soon"), None);
    }

    #[test]
    fn one_principal_fills_its_share_and_no_more() {
        let clock = Clock::manual(Timestamp(0));
        let memory = Memory::new(&Options {
            clock: clock.clone(),
            ..Options::default()
        });
        let keep = |key: &str, owner| {
            let change = Change {
                key,
                epoch: memory.epoch(),
                expected: None,
                value: &[0; 4096],
                ttl: HOUR,
                owner,
            };
            memory.commit(&change, &[], None)
        };
        let kept = (0..10_000)
            .take_while(|n| keep(&format!("eve-{n}"), Some("eve")).is_ok())
            .count();
        assert!((200..300).contains(&kept), "{kept} of 4 KiB in 1 MiB");
        assert_eq!(keep("ada", Some("ada")), Ok(true), "others have room");
        clock.advance(HOUR);
        assert_eq!(
            keep("eve", Some("eve")),
            Ok(true),
            "what was due is not counted"
        );
        memory.take("eve");
        memory.take("ada");
        assert!(memory.fresh().0.owned.is_empty());
    }

    #[test]
    fn refusals_are_logged_every_ten_seconds_with_their_count() {
        let (mut state, start) = (State::default(), Timestamp(0));
        assert_eq!(state.refusals_to_log(start), Some(1));
        assert!((0..14_000).all(|_| state.refusals_to_log(start).is_none()));
        assert_eq!(
            state.refusals_to_log(start.plus(FULL_LOG_INTERVAL)),
            Some(14_001)
        );
    }

    #[test]
    fn the_books_balance() {
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
        let (state, _) = memory.fresh();
        assert_eq!(
            (state.entries.len(), state.due.len(), state.bytes),
            (0, 0, 0)
        );
    }
}
