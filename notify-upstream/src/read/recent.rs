use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::notification::NotificationId;
use crate::store::Snapshot;

/// What was read lately, so that many who poll cost one read. Whatever this process itself writes is forgotten here at
/// once; what another replica writes is seen when the second is over.
#[derive(Debug)]
pub struct Recent {
    clock: Clock,
    shards: [Shard; SHARDS],
    changes: AtomicU64,
}

/// Snapshots, and when each was read.
type Shard = Mutex<HashMap<NotificationId, (Arc<Snapshot>, Timestamp)>>;

/// How long a status may lag behind what another replica has written.
const LIFE: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
/// Most snapshots of a shard: some 30 MB in all.
const MOST: usize = 2048;

// === impl Recent ===

impl Recent {
    /// Empty.
    #[must_use]
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, shards: Default::default(), changes: AtomicU64::new(0) })
    }

    /// What was read of it within the last second.
    #[must_use]
    pub fn get(&self, id: NotificationId) -> Option<Arc<Snapshot>> {
        let shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        let (snapshot, at) = shard.get(&id)?;
        (self.clock.now().since(*at) < LIFE).then(|| Arc::clone(snapshot))
    }

    /// Rises with everything that was forgotten. To be asked before a read.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Keeps what a read has found, unless something was written since `before`: the read may not have seen it.
    pub fn keep(&self, found: &[Arc<Snapshot>], before: u64) {
        let now = self.clock.now();
        for snapshot in found {
            let mut shard = self.shard(snapshot.id).lock().unwrap_or_else(PoisonError::into_inner);
            // Under the shard's lock: who forgets raises the number first, and then waits for the lock.
            if self.changes() != before {
                return;
            }
            if shard.len() >= MOST {
                shard.retain(|_, (_, at)| now.since(*at) < LIFE);
            }
            if shard.len() < MOST {
                shard.insert(snapshot.id, (Arc::clone(snapshot), now));
            }
        }
    }

    /// Something was written about these.
    pub fn forget(&self, ids: impl IntoIterator<Item = NotificationId>) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        for id in ids {
            self.shard(id).lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }

    fn shard(&self, id: NotificationId) -> &Shard {
        // The last bits of an id are random.
        &self.shards[usize::from(id.0.as_bytes()[15]) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::{Channel, Lane, Priority};
    use crate::sequence::Sequence;
    use crate::store::Record;

    fn snapshot(order: i64) -> Arc<Snapshot> {
        let record = Record {
            lane: Lane::first(Channel::Sms, Priority::High),
            creator: "service:a".to_owned(),
            addressee: None,
            template: "welcome".to_owned(),
            template_version: 1,
            locale: "en".to_owned(),
            recipient: String::new(),
            variables: String::new(),
            created_at: Timestamp(0),
            expires_at: None,
        };
        Arc::new(Snapshot { id: Sequence::id(order), record, send_at: None, trail: Vec::new() })
    }

    #[test]
    fn what_was_read_is_good_for_a_second_and_not_beyond_a_write() {
        let clock = Clock::manual(Timestamp(0));
        let recent = Recent::new(clock.clone());
        let (one, two) = (snapshot(1), snapshot(2));
        recent.keep(&[Arc::clone(&one), Arc::clone(&two)], recent.changes());
        clock.advance(Duration::from_millis(999));
        assert!(recent.get(one.id).is_some());
        recent.forget([one.id]);
        assert!(recent.get(one.id).is_none() && recent.get(two.id).is_some());
        clock.advance(Duration::from_millis(1));
        assert!(recent.get(two.id).is_none());
    }

    #[test]
    fn a_read_that_began_before_a_write_is_not_kept() {
        let recent = Recent::new(Clock::manual(Timestamp(0)));
        let one = snapshot(1);
        let before = recent.changes();
        recent.forget([one.id]);
        recent.keep(&[Arc::clone(&one)], before);
        assert!(recent.get(one.id).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let recent = Recent::new(Clock::manual(Timestamp(0)));
        let many: Vec<_> = (0..100_000).map(snapshot).collect();
        recent.keep(&many, recent.changes());
        let kept: usize = recent.shards.iter().map(|shard| shard.lock().expect("no panic").len()).sum();
        assert_eq!(kept, SHARDS * MOST);
    }
}
