use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::jwk::Key;
use super::{Caller, Refusal};
use crate::clock::Timestamp;

/// What became of tokens that were seen before.
///
/// A token is found by a hash under a secret seed and then compared whole. An entry ends at its instant, when
/// its key ends, or with its generation (a change of the trust). It holds an identity, never a decision.
/// Memory is bounded: when a shard is full, the entry that was not asked for since the hand last passed goes.
pub(super) struct Cache {
    hasher: ahash::RandomState,
    shards: Box<[Mutex<Shard>]>,
    shard_bytes: usize,
}

/// What is remembered of one token.
pub(super) enum Outcome {
    /// Verified with this key. The identity holds the token.
    Accepted { caller: Caller, key: Arc<Key> },
    /// Refused for a reason that will not pass soon.
    Refused { token: Box<str>, refusal: Refusal },
}

#[derive(Default)]
struct Shard {
    index: HashMap<u64, u32, BuildHasherDefault<Prehashed>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    hand: usize,
    bytes: usize,
}

enum Slot {
    Free,
    Taken(Entry),
}

struct Entry {
    hash: u64,
    outcome: Outcome,
    until: Timestamp,
    generation: u64,
    asked: bool,
}

/// Passes on a hash that is one already.
#[derive(Default)]
struct Prehashed(u64);

/// What an entry costs besides its token: slot, index, identity and their allocations, measured and rounded up.
const ENTRY_BYTES: usize = 384;

const MAX_SHARDS: usize = 64;
const MIN_SHARD_BYTES: usize = 64 * 1024;

// === impl Cache ===

impl Cache {
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS).next_power_of_two().min(MAX_SHARDS);
        Self {
            hasher: ahash::RandomState::new(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_bytes: bytes / shards,
        }
    }

    /// The outcome for this very token, if it still counts. Allocates nothing.
    pub(super) fn get(
        &self,
        token: &str,
        now: Timestamp,
        generation: u64,
    ) -> Option<Result<Caller, Refusal>> {
        let hash = self.hasher.hash_one(token.as_bytes());
        let mut shard = self.shard(hash);
        let place = *shard.index.get(&hash)?;
        let Some(Slot::Taken(entry)) = shard.slots.get_mut(usize::try_from(place).ok()?) else { return None };
        if entry.token() != token {
            return None;
        }
        if !entry.counts_at(now, generation) {
            shard.remove(place);
            return None;
        }
        entry.asked = true;
        Some(match &entry.outcome {
            Outcome::Accepted { caller, .. } => Ok(caller.clone()),
            Outcome::Refused { refusal, .. } => Err(*refusal),
        })
    }

    pub(super) fn insert(&self, outcome: Outcome, until: Timestamp, generation: u64) {
        let mut entry = Entry { hash: 0, outcome, until, generation, asked: false };
        let cost = entry.cost();
        if cost > self.shard_bytes {
            return;
        }
        entry.hash = self.hasher.hash_one(entry.token().as_bytes());
        let mut shard = self.shard(entry.hash);
        if let Some(place) = shard.index.get(&entry.hash).copied() {
            shard.remove(place);
        }
        while shard.bytes + cost > self.shard_bytes && shard.evict_one() {}
        shard.add(entry);
    }

    /// Entries and the bytes that they are counted with.
    pub(super) fn size(&self) -> (usize, usize) {
        self.shards
            .iter()
            .map(lock)
            .fold((0, 0), |(entries, bytes), shard| (entries + shard.index.len(), bytes + shard.bytes))
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let place = usize::try_from(hash >> 32).unwrap_or(0) & (self.shards.len() - 1);
        lock(&self.shards[place])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Entry ===

impl Entry {
    fn token(&self) -> &str {
        match &self.outcome {
            Outcome::Accepted { caller, .. } => caller.token(),
            Outcome::Refused { token, .. } => token,
        }
    }

    fn cost(&self) -> usize {
        self.token().len() + ENTRY_BYTES
    }

    fn counts_at(&self, now: Timestamp, generation: u64) -> bool {
        let key_is_good = match &self.outcome {
            Outcome::Accepted { key, .. } => key.is_good_at(now),
            Outcome::Refused { .. } => true,
        };
        key_is_good && now < self.until && self.generation == generation
    }
}

// === impl Shard ===

impl Shard {
    fn add(&mut self, entry: Entry) {
        self.bytes += entry.cost();
        let hash = entry.hash;
        let place = if let Some(place) = self.free.pop() {
            self.slots[to_index(place)] = Slot::Taken(entry);
            place
        } else {
            self.slots.push(Slot::Taken(entry));
            u32::try_from(self.slots.len() - 1).expect("a shard's bytes bound it far below 2^32 slots")
        };
        self.index.insert(hash, place);
    }

    fn remove(&mut self, place: u32) {
        if let Slot::Taken(entry) = std::mem::replace(&mut self.slots[to_index(place)], Slot::Free) {
            self.bytes -= entry.cost();
            self.index.remove(&entry.hash);
            self.free.push(place);
        }
    }

    /// Turns the hand until it finds an entry that was not asked for since it last passed: at most one round
    /// clears the marks and a second one finds it.
    fn evict_one(&mut self) -> bool {
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[place] {
                Slot::Free => {}
                Slot::Taken(entry) if entry.asked => entry.asked = false,
                Slot::Taken(_) => {
                    self.remove(u32::try_from(place).expect("places are counted in u32"));
                    return true;
                }
            }
        }
        false
    }
}

fn to_index(place: u32) -> usize {
    usize::try_from(place).expect("usize has at least 32 bits here")
}

// === impl Prehashed ===

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
