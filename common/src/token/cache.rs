use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::jwk::Key;
use super::mark::Mark;
use super::{Caller, Refusal};
use crate::clock::Timestamp;

/// What became of tokens that were seen before.
///
/// A token is known by its mark, and not kept. An entry ends at `exp`, when its key ends, or with
/// its generation (a change of the trust). It holds an identity, never a decision. Memory is
/// bounded: when a shard is full, the entry that was not asked for since the hand last passed goes.
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes: usize,
}

/// What is remembered of one token.
pub(super) enum Outcome {
    /// Verified with this key.
    Accepted { caller: Caller, key: Arc<Key> },
    /// Refused for a reason that will not pass before `until`.
    Refused { refusal: Refusal, until: Timestamp },
}

#[derive(Default)]
struct Shard {
    /// From a part of the mark to the slot. Two tokens that share it take turns; none passes for
    /// the other.
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
    mark: Mark,
    outcome: Outcome,
    generation: u32,
    asked: bool,
}

/// Passes on a hash that is one already.
#[derive(Default)]
struct Prehashed(u64);

/// What an entry costs besides the text of its identity: slot, index, identity and their
/// allocations, measured and rounded up.
const ENTRY_BYTES: usize = 256;

const MAX_SHARDS: usize = 64;
const MIN_SHARD_BYTES: usize = 64 * 1024;

// === impl Cache ===

impl Cache {
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (bytes / MIN_SHARD_BYTES)
            .clamp(1, MAX_SHARDS)
            .next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_bytes: bytes / shards,
        }
    }

    /// The outcome for the token with this mark, if it still counts. Allocates nothing.
    pub(super) fn get(
        &self,
        mark: Mark,
        now: Timestamp,
        generation: u32,
    ) -> Option<Result<Caller, Refusal>> {
        let mut shard = self.shard(mark);
        let place = *shard.index.get(&mark.slot_bits())?;
        let Slot::Taken(entry) = &mut shard.slots[to_index(place)] else {
            return None;
        };
        if entry.mark != mark {
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

    pub(super) fn insert(&self, mark: Mark, outcome: Outcome, generation: u32) {
        let mut shard = self.shard(mark);
        let entry = Entry {
            mark,
            outcome,
            generation,
            asked: false,
        };
        let cost = entry.cost();
        if cost > self.shard_bytes {
            return;
        }
        if let Some(place) = shard.index.get(&mark.slot_bits()).copied() {
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
            .fold((0, 0), |(entries, bytes), shard| {
                (entries + shard.index.len(), bytes + shard.bytes)
            })
    }

    fn shard(&self, mark: Mark) -> MutexGuard<'_, Shard> {
        lock(&self.shards[to_index(mark.shard_bits()) & (self.shards.len() - 1)])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Entry ===

impl Entry {
    fn cost(&self) -> usize {
        let text = match &self.outcome {
            Outcome::Accepted { caller, .. } => caller.text_bytes(),
            Outcome::Refused { .. } => 0,
        };
        text + ENTRY_BYTES
    }

    fn counts_at(&self, now: Timestamp, generation: u32) -> bool {
        let counts = match &self.outcome {
            Outcome::Accepted { caller, key } => {
                key.is_good_at(now) && now < Timestamp::from_unix_seconds(caller.expires_at())
            }
            Outcome::Refused { until, .. } => now < *until,
        };
        counts && self.generation == generation
    }
}

// === impl Shard ===

impl Shard {
    fn add(&mut self, entry: Entry) {
        self.bytes += entry.cost();
        let bits = entry.mark.slot_bits();
        let place = if let Some(place) = self.free.pop() {
            self.slots[to_index(place)] = Slot::Taken(entry);
            place
        } else {
            self.grow();
            self.slots.push(Slot::Taken(entry));
            to_place(self.slots.len() - 1)
        };
        self.index.insert(bits, place);
    }

    /// By a quarter, for doubling would leave half of the slots unused for long.
    fn grow(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(self.slots.len() / 4 + 8);
        }
    }

    fn remove(&mut self, place: u32) {
        if let Slot::Taken(entry) = std::mem::replace(&mut self.slots[to_index(place)], Slot::Free)
        {
            self.bytes -= entry.cost();
            self.index.remove(&entry.mark.slot_bits());
            self.free.push(place);
        }
    }

    /// Turns the hand until it finds an entry that was not asked for since it last passed: at most
    /// one round clears the marks and a second one finds it.
    fn evict_one(&mut self) -> bool {
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[place] {
                Slot::Free => {}
                Slot::Taken(entry) if entry.asked => entry.asked = false,
                Slot::Taken(_) => {
                    self.remove(to_place(place));
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

    /// The table takes the slot from the low bits and the tag from the high ones, so that both need
    /// some.
    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash) << 32 | u64::from(hash);
    }
}
