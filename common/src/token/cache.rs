use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::jwk::Key;
use super::{Caller, Refusal};
use crate::clock::Timestamp;

/// What became of tokens that were seen before.
///
/// A token is found by a hash of its end under a secret seed and then compared whole. An entry ends at `exp`,
/// when its key ends, or with its generation (a change of the trust). It holds an identity, never a decision.
/// Memory is bounded: when a shard is full, the entry that was not asked for since the hand last passed goes.
pub(super) struct Cache {
    hasher: ahash::RandomState,
    shards: Box<[Mutex<Shard>]>,
    shard_bytes: usize,
}

/// What is remembered of one token.
pub(super) enum Outcome {
    /// Verified with this key. The identity holds the token, less the header that the key holds.
    Accepted { caller: Caller, key: Arc<Key> },
    /// Refused for a reason that will not pass soon. Boxed, so that it makes no accepted one larger.
    Refused(Box<Refused>),
}

/// A token that was refused.
pub(super) struct Refused {
    pub(super) token: Box<str>,
    pub(super) refusal: Refusal,
    /// When to look again.
    pub(super) until: Timestamp,
}

#[derive(Default)]
struct Shard {
    /// From half of the hash to the slot. Two tokens that share it take turns; none passes for the other.
    index: HashMap<u32, u32, BuildHasherDefault<Prehashed>>,
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
    outcome: Outcome,
    generation: u32,
    asked: bool,
}

/// Passes on a hash that is one already.
#[derive(Default)]
struct Prehashed(u64);

/// What an entry costs besides its text: slot, index, identity and their allocations, measured and rounded up.
const ENTRY_BYTES: usize = 320;

/// Fewer than the characters of the shortest signature (86), so that they stand in a token without its header.
const HASHED_BYTES: usize = 64;

const MAX_SHARDS: usize = 64;
const MIN_SHARD_BYTES: usize = 64 * 1024;

// === impl Cache ===

impl Cache {
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS).next_power_of_two();
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
        generation: u32,
    ) -> Option<Result<Caller, Refusal>> {
        let (mut shard, hash) = self.place(token);
        let place = *shard.index.get(&hash)?;
        let Slot::Taken(entry) = &mut shard.slots[to_index(place)] else { return None };
        if !entry.is_of(token) {
            return None;
        }
        if !entry.counts_at(now, generation) {
            shard.remove(place, hash);
            return None;
        }
        entry.asked = true;
        Some(match &entry.outcome {
            Outcome::Accepted { caller, .. } => Ok(caller.clone()),
            Outcome::Refused(refused) => Err(refused.refusal),
        })
    }

    pub(super) fn insert(&self, token: &str, outcome: Outcome, generation: u32) {
        let (mut shard, hash) = self.place(token);
        let entry = Entry { outcome, generation, asked: false };
        let cost = entry.cost();
        if cost > self.shard_bytes {
            return;
        }
        if let Some(place) = shard.index.get(&hash).copied() {
            shard.remove(place, hash);
        }
        while shard.bytes + cost > self.shard_bytes && shard.evict_one(|entry| self.hash(entry.text()).1) {}
        shard.add(entry, hash);
    }

    /// Entries and the bytes that they are counted with.
    pub(super) fn size(&self) -> (usize, usize) {
        self.shards
            .iter()
            .map(lock)
            .fold((0, 0), |(entries, bytes), shard| (entries + shard.index.len(), bytes + shard.bytes))
    }

    /// The shard of a token, and its hash within.
    fn place(&self, token: &str) -> (MutexGuard<'_, Shard>, u32) {
        let (shard, hash) = self.hash(token);
        (lock(&self.shards[to_index(shard) & (self.shards.len() - 1)]), hash)
    }

    /// Of the end alone, which is signature: no two valid tokens share it. It is the same whether or not the
    /// header was taken off.
    fn hash(&self, text: &str) -> (u32, u32) {
        let end = text.len().saturating_sub(HASHED_BYTES);
        let hash = self.hasher.hash_one(&text.as_bytes()[end..]);
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("half of 64 bits are 32");
        (half(hash >> 32), half(hash))
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Entry ===

impl Entry {
    fn is_of(&self, token: &str) -> bool {
        match &self.outcome {
            Outcome::Accepted { caller, key } => key.kept_as(token, caller.text()),
            Outcome::Refused(refused) => *refused.token == *token,
        }
    }

    /// The token, with or without its header.
    fn text(&self) -> &str {
        match &self.outcome {
            Outcome::Accepted { caller, .. } => caller.text(),
            Outcome::Refused(refused) => &refused.token,
        }
    }

    fn cost(&self) -> usize {
        self.text().len() + ENTRY_BYTES
    }

    fn counts_at(&self, now: Timestamp, generation: u32) -> bool {
        let counts = match &self.outcome {
            Outcome::Accepted { caller, key } => {
                key.is_good_at(now) && now < Timestamp::from_unix_seconds(caller.expires_at())
            }
            Outcome::Refused(refused) => now < refused.until,
        };
        counts && self.generation == generation
    }
}

// === impl Shard ===

impl Shard {
    fn add(&mut self, entry: Entry, hash: u32) {
        self.bytes += entry.cost();
        let place = if let Some(place) = self.free.pop() {
            self.slots[to_index(place)] = Slot::Taken(entry);
            place
        } else {
            self.grow();
            self.slots.push(Slot::Taken(entry));
            to_place(self.slots.len() - 1)
        };
        self.index.insert(hash, place);
    }

    /// By a quarter, for doubling would leave half of the slots unused for long.
    fn grow(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(self.slots.len() / 4 + 8);
        }
    }

    fn remove(&mut self, place: u32, hash: u32) {
        if let Slot::Taken(entry) = std::mem::replace(&mut self.slots[to_index(place)], Slot::Free) {
            self.bytes -= entry.cost();
            self.index.remove(&hash);
            self.free.push(place);
        }
    }

    /// Turns the hand until it finds an entry that was not asked for since it last passed: at most one round
    /// clears the marks and a second one finds it.
    fn evict_one(&mut self, hash: impl Fn(&Entry) -> u32) -> bool {
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[place] {
                Slot::Free => {}
                Slot::Taken(entry) if entry.asked => entry.asked = false,
                Slot::Taken(entry) => {
                    let hash = hash(entry);
                    self.remove(to_place(place), hash);
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

fn to_place(index: usize) -> u32 {
    u32::try_from(index).expect("a shard's bytes bound it far below 2^32 slots")
}

// === impl Prehashed ===

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    /// The table takes the slot from the low bits and the tag from the high ones, so that both need some.
    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash) << 32 | u64::from(hash);
    }
}
