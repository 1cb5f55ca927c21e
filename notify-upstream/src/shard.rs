//! Shards: everything that is bound to one database, and the choice among several.
//!
//! Ids and idempotency keys enter; the shard that is responsible for them leaves. Depends on
//! `dispatch`, `intake`, `status`, `store` and `notification`; `http` uses it and `app` fills it.
//!
//! An id names its shard. A new notification goes to any available shard of `accept`, unless it has
//! an idempotency key: then its shard follows from creator and key by rendezvous hashing, so that a
//! repetition finds the first result whichever replica it reaches.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use postern_common::dependency::Dependency;
use postern_common::{Code, Problem};
use sha2::{Digest, Sha256};

use crate::dispatch::DispatchState;
use crate::intake::group_commit::SubmissionQueue;
use crate::notification::{NotificationId, ShardNumber};
use crate::status::reader::StatusReader;
use crate::store::{AcceptanceAge, SnapshotCache, Store, StoreError, Stores};

/// The parts of this process that are bound to one database. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// The position of the database in the configuration.
    pub(crate) number: ShardNumber,
    pub(crate) store: Store,
    pub(crate) submissions: SubmissionQueue,
    pub(crate) reader: StatusReader,
    pub(crate) snapshot_cache: Arc<SnapshotCache>,
    /// The state that intake and dispatch share.
    pub(crate) dispatch_state: Arc<DispatchState>,
    /// The availability of the database.
    pub(crate) availability: Arc<Dependency>,
    /// When it has accepted notifications, which decides where keys are looked up.
    pub(crate) age: Arc<ShardAge>,
}

/// When a shard has accepted notifications, as last read. Before the first read, keys are looked up
/// in more shards than necessary.
#[derive(Debug, Default)]
pub(crate) struct ShardAge {
    has_recent: AtomicBool,
    has_preceding: AtomicBool,
    has_any: AtomicBool,
}

/// The shards of the service. Shard 0 is open from the start; others are added when they have been
/// opened.
#[derive(Debug)]
pub(crate) struct Shards {
    slots: Box<[OnceLock<Shard>]>,
    /// The shards for new notifications.
    accept: Box<[ShardNumber]>,
    /// The position in `accept` for the next notification without a key.
    next: AtomicUsize,
    stores: Stores,
}

/// The shard for a notification with an idempotency key.
pub(crate) struct KeyPlacement<'a> {
    pub(crate) shard: &'a Shard,
    /// The shards in which the key may have been used within its lifetime, before the configuration
    /// was changed.
    pub(crate) earlier: Vec<&'a Shard>,
}

// === impl ShardAge ===

impl ShardAge {
    /// Stores what has been read.
    pub(crate) fn set(&self, age: AcceptanceAge) {
        self.has_recent.store(age.has_recent, Ordering::Relaxed);
        self.has_preceding
            .store(age.has_preceding, Ordering::Relaxed);
        self.has_any.store(age.has_any, Ordering::Relaxed);
    }

    /// Returns whether a shard that does not accept here may have keys. An empty one is being
    /// added: replicas with a newer configuration may have filled it since it was read.
    pub(crate) fn may_have_keys(&self) -> bool {
        self.has_recent.load(Ordering::Relaxed) || !self.has_any.load(Ordering::Relaxed)
    }

    /// Returns whether notifications were accepted shortly before the lifetime of a key. One that
    /// accepted only earlier may have been taken out of `accept` meanwhile.
    pub(crate) fn was_accepting(&self) -> bool {
        self.has_preceding.load(Ordering::Relaxed)
    }
}

// === impl Shards ===

impl Shards {
    /// Creates the set of shards of `stores`, of which `first` is open.
    #[must_use]
    pub(crate) fn new(stores: Stores, accept: &[ShardNumber], first: Shard) -> Self {
        let shards = Self {
            slots: (0..stores.count()).map(|_| OnceLock::new()).collect(),
            accept: accept.into(),
            next: AtomicUsize::new(0),
            stores,
        };
        let slot = &shards.slots[0];
        assert!(slot.set(first).is_ok(), "the set is new");
        shards
    }

    /// Adds a shard that has been opened.
    pub(crate) fn insert(&self, shard: Shard) {
        let number = shard.number;
        self.stores.insert(number, shard.store.clone());
        let slot = &self.slots[usize::from(number)];
        assert!(slot.set(shard).is_ok(), "each shard is opened once");
    }

    /// Returns the stores of all shards.
    #[must_use]
    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Returns the shard of a notification.
    ///
    /// # Errors
    /// 404 if the shard is not configured: nothing is accepted in a shard before all replicas know it.
    /// 503 if it is not open yet, or is down: shard 0 excepted, without which no replica is ready.
    pub(crate) fn of(&self, id: NotificationId) -> Result<&Shard, Problem> {
        if usize::from(id.shard()) >= self.slots.len() {
            return Err(Code::NotFound.into());
        }
        let shard = self.get(id.shard())?;
        if shard.number != 0 && !shard.availability.is_up() {
            return Err(unavailable(shard.number, "it is down"));
        }
        Ok(shard)
    }

    /// Returns the shards that are open.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Shard> {
        self.slots.iter().filter_map(OnceLock::get)
    }

    fn get(&self, number: ShardNumber) -> Result<&Shard, Problem> {
        let slot = self.slots.get(usize::from(number));
        let shard = slot.and_then(OnceLock::get);
        shard.ok_or_else(|| unavailable(number, "it is not open"))
    }

    /// Returns a shard for a notification without a key: the next one that is available.
    ///
    /// # Errors
    /// 503 if no shard is open.
    pub(crate) fn any(&self) -> Result<&Shard, Problem> {
        let count = self.accept.len();
        let from = self.next.fetch_add(1, Ordering::Relaxed) % count;
        let in_turn = || {
            (from..from + count)
                .filter_map(|at| self.slots[usize::from(self.accept[at % count])].get())
        };
        // If all are down, the response of one of them says so.
        let found = in_turn().find(|shard| shard.availability.is_up());
        found
            .or_else(|| in_turn().next())
            .ok_or_else(|| Code::Unavailable.into())
    }

    /// Returns the shard for a notification with an idempotency key.
    ///
    /// Shards are ranked by a hash of creator, key and number. The first one that accepts is
    /// responsible. Another one may have been responsible before a change of `accept`: one of a higher
    /// rank that does not accept any more, or, if the shard is new or accepts again, the next one.
    /// These are looked up as well for the lifetime of a key.
    ///
    /// # Errors
    /// 503 if one of these shards is not open or is down: a second notification could be accepted
    /// otherwise. A request that waited for it would hold memory that requests for others need.
    pub(crate) fn of_key(&self, creator: &str, key: &str) -> Result<KeyPlacement<'_>, Problem> {
        let mut earlier = Vec::new();
        if self.slots.len() == 1 {
            let shard = self.get(0)?;
            return Ok(KeyPlacement { shard, earlier });
        }
        let mut responsible = None;
        for number in ranked(self.slots.len(), creator, key) {
            let accepts = self.accept.contains(&number);
            let shard = self.get(number)?;
            if accepts && responsible.is_none() {
                responsible = Some(shard);
            } else if accepts || shard.age.may_have_keys() {
                earlier.push(shard);
            }
            if accepts && shard.age.was_accepting() {
                break;
            }
        }
        let shard = responsible.ok_or(Code::Unavailable)?;
        let mut asked = earlier.iter().copied().chain([shard]);
        match asked.find(|shard| !shard.availability.is_up()) {
            Some(down) => Err(unavailable(down.number, "it is down")),
            None => Ok(KeyPlacement { shard, earlier }),
        }
    }
}

fn unavailable(shard: ShardNumber, reason: &str) -> Problem {
    let reason = reason.to_owned();
    Problem::from(&StoreError::ShardUnavailable { shard, reason })
}

/// Returns the numbers of `count` shards by their weight for a key, highest first. The weights are
/// part of the stored data: a key whose shard changes is accepted twice.
fn ranked(count: usize, creator: &str, key: &str) -> Vec<ShardNumber> {
    let length = u64::try_from(creator.len()).unwrap_or(u64::MAX);
    let prefix = Sha256::new()
        .chain_update(length.to_be_bytes())
        .chain_update(creator)
        .chain_update(key);
    let weight = |number: ShardNumber| -> [u8; 32] {
        prefix.clone().chain_update([number]).finalize().into()
    };
    let mut weighted: Vec<_> = (0..=ShardNumber::MAX)
        .take(count)
        .map(|number| (weight(number), number))
        .collect();
    weighted.sort_unstable_by(|one, other| other.cmp(one));
    weighted.into_iter().map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests;
