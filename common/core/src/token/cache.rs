//! The cache of verified tokens.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::digest::TokenDigest;
use super::jwk::VerificationKey;
use super::{Caller, TokenError};
use crate::clock::{Period, Timestamp};

/// A bounded cache of verification results.
///
/// A token is stored as its digest only. An entry expires at `exp`, with its key, or with its
/// generation, which changes with the trusted issuers. It holds an identity, never an authorization
/// decision. If a shard is full, the CLOCK algorithm evicts an entry that was not used recently.
pub(super) struct TokenCache {
    shards: Box<[Mutex<CacheShard>]>,
    shard_bytes: usize,
}

pub(super) enum CachedResult {
    /// Verified with this key.
    Accepted {
        caller: Caller,
        key: Arc<VerificationKey>,
    },
    /// Rejected for a reason that persists for `period`.
    Rejected { error: TokenError, period: Period },
}

#[derive(Default)]
struct CacheShard {
    /// Slot, of which a shard's bytes allow fewer than 2^32, by a part of the digest. Of two tokens with the same part only one is cached; the
    /// comparison of the whole digest keeps them apart.
    index: HashMap<u32, u32, BuildHasherDefault<PrehashedHasher>>,
    /// `None`: free.
    slots: Vec<Option<CachedToken>>,
    free: Vec<u32>,
    /// The position of the CLOCK algorithm in `slots`.
    hand: usize,
    /// Bytes of all entries.
    bytes: usize,
}

struct CachedToken {
    digest: TokenDigest,
    outcome: CachedResult,
    generation: u32,
    /// Whether the entry was used since the CLOCK algorithm last passed it.
    was_used: bool,
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct PrehashedHasher(u64);

/// Bytes per entry in addition to the text of its identity: slot, index, identity and their
/// allocations, measured and rounded up.
const ENTRY_BYTES: usize = 256;

/// Maximum number of shards, each with its own lock.
const MAX_SHARDS: usize = 64;
/// Approximate minimum size of a shard; a smaller cache has fewer shards.
const MIN_SHARD_BYTES: usize = 64 * 1024;

// === impl TokenCache ===

impl TokenCache {
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let shards = shards.next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_bytes: bytes / shards,
        }
    }

    /// Returns the result for a token, if it is still valid. Allocates nothing.
    pub(super) fn get(
        &self,
        digest: TokenDigest,
        now: Timestamp,
        generation: u32,
    ) -> Option<Result<Caller, TokenError>> {
        let mut shard = self.shard(digest);
        let slot = *shard.index.get(&digest.slot_bits())?;
        let entry = shard.slots[slot as usize].as_mut()?;
        if entry.digest != digest {
            return None;
        }
        if !entry.is_valid_at(now, generation) {
            shard.remove(slot);
            return None;
        }
        entry.was_used = true;
        Some(match &entry.outcome {
            CachedResult::Accepted { caller, .. } => Ok(caller.clone()),
            CachedResult::Rejected { error, .. } => Err(*error),
        })
    }

    pub(super) fn insert(&self, digest: TokenDigest, outcome: CachedResult, generation: u32) {
        let mut shard = self.shard(digest);
        let entry = CachedToken {
            digest,
            outcome,
            generation,
            was_used: false,
        };
        let cost = entry.cost();
        if cost > self.shard_bytes {
            return;
        }
        if let Some(slot) = shard.index.get(&digest.slot_bits()).copied() {
            shard.remove(slot);
        }
        while shard.bytes + cost > self.shard_bytes && shard.evict_one() {}
        shard.add(entry);
    }

    /// Returns the number of entries and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let mut size = (0, 0);
        for shard in self.shards.iter().map(Mutex::lock) {
            size.0 += shard.index.len();
            size.1 += shard.bytes;
        }
        size
    }

    fn shard(&self, digest: TokenDigest) -> MutexGuard<'_, CacheShard> {
        self.shards[digest.shard_bits() & (self.shards.len() - 1)].lock()
    }
}

// === impl CachedToken ===

impl CachedToken {
    fn cost(&self) -> usize {
        let text = match &self.outcome {
            CachedResult::Accepted { caller, .. } => caller.text_bytes(),
            CachedResult::Rejected { .. } => 0,
        };
        text + ENTRY_BYTES
    }

    fn is_valid_at(&self, now: Timestamp, generation: u32) -> bool {
        let is_valid = match &self.outcome {
            CachedResult::Accepted { caller, key } => {
                key.is_valid_at(now) && now < Timestamp::from_unix_seconds(caller.expires_at())
            }
            CachedResult::Rejected { period, .. } => period.contains(now),
        };
        is_valid && self.generation == generation
    }
}

// === impl CacheShard ===

impl CacheShard {
    fn add(&mut self, entry: CachedToken) {
        self.bytes += entry.cost();
        let bits = entry.digest.slot_bits();
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(entry);
            slot
        } else {
            // By a quarter; doubling would leave half of the slots unused for a long time.
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(self.slots.len() / 4 + 8);
            }
            self.slots.push(Some(entry));
            self.slots.len() as u32 - 1
        };
        self.index.insert(bits, slot);
    }

    fn remove(&mut self, slot: u32) {
        if let Some(entry) = self.slots[slot as usize].take() {
            self.bytes -= entry.cost();
            self.index.remove(&entry.digest.slot_bits());
            self.free.push(slot);
        }
    }

    /// Advances the hand to an entry that was not used since the hand last passed. The first round
    /// clears the flags, so that at most a second round is needed.
    fn evict_one(&mut self) -> bool {
        for _ in 0..2 * self.slots.len() {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[slot] {
                None => {}
                Some(entry) if entry.was_used => entry.was_used = false,
                Some(_) => {
                    self.remove(slot as u32);
                    return true;
                }
            }
        }
        false
    }
}

// === impl PrehashedHasher ===

impl Hasher for PrehashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    /// The table takes the slot from the low bits and the tag from the high bits, so both must be
    /// set.
    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash) << 32 | u64::from(hash);
    }
}
