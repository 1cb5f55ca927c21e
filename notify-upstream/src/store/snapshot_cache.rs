use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::notification::NotificationId;
use crate::store::Snapshot;

/// A cache of recently read snapshots, so that polling clients cost one read per second. Writes of
/// this process invalidate entries immediately; writes of other replicas become visible after
/// [`CACHE_TTL`].
#[derive(Debug)]
pub(crate) struct Recent {
    clock: Clock,
    shelves: [Mutex<Shelf>; SHELVES],
}

#[derive(Debug, Default)]
struct Shelf {
    known: HashMap<NotificationId, Kept>,
    /// Total size of the snapshots, in bytes.
    bytes: usize,
    /// Reads in flight.
    reading: HashMap<NotificationId, Reading>,
}

#[derive(Debug)]
struct Kept {
    snapshot: Arc<Snapshot>,
    read_at: Timestamp,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Reading {
    readers: usize,
    /// Set if the notification was written during the read: the result may be stale and is not
    /// cached.
    outdated: bool,
}

/// Maximum age of a cached snapshot, and thereby the delay after a write of another replica.
const LIFE: Duration = Duration::from_secs(1);
const SHELVES: usize = 16;
/// Maximum size of a shard's snapshots; 32 MiB over all shards.
const MAX_SHELF_BYTES: usize = 2 << 20;
/// Maximum size of a cached snapshot. Larger ones are read each time.
const MAX_SNAPSHOT_BYTES: usize = 64 << 10;
/// Estimated overhead of a map entry.
const ENTRY_BYTES: usize = 128;

// === impl Recent ===

impl Recent {
    /// Creates an empty cache.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            shelves: Default::default(),
        })
    }

    /// Returns the snapshot if it was read within [`CACHE_TTL`].
    #[must_use]
    pub(crate) fn get(&self, id: NotificationId) -> Option<Arc<Snapshot>> {
        let shelf = self.shelf(id);
        let kept = shelf.known.get(&id)?;
        (self.clock.now().since(kept.read_at) < LIFE).then(|| Arc::clone(&kept.snapshot))
    }

    /// Registers reads that are about to start. Each call must be followed by
    /// [`RecentStatusCache::finish_read`], also after an error.
    pub(crate) fn begin(&self, ids: &[NotificationId]) {
        for id in ids {
            self.shelf(*id).reading.entry(*id).or_default().readers += 1;
        }
    }

    /// Ends reads and caches the snapshots found, except those written since the read started.
    pub(crate) fn end(&self, ids: &[NotificationId], found: &[Arc<Snapshot>]) {
        for snapshot in found {
            let mut shelf = self.shelf(snapshot.id);
            if shelf
                .reading
                .get(&snapshot.id)
                .is_some_and(|reading| !reading.outdated)
            {
                shelf.keep(snapshot, self.clock.now());
            }
        }
        for id in ids {
            let mut shelf = self.shelf(*id);
            if let Some(reading) = shelf.reading.get_mut(id) {
                reading.readers -= 1;
                if reading.readers == 0 {
                    shelf.reading.remove(id);
                }
            }
        }
    }

    /// Removes entries that have been written, and marks their reads in flight as stale.
    pub(crate) fn forget(&self, ids: impl IntoIterator<Item = NotificationId>) {
        for id in ids {
            let mut shelf = self.shelf(id);
            shelf.remove(id);
            if let Some(reading) = shelf.reading.get_mut(&id) {
                reading.outdated = true;
            }
        }
    }

    fn shelf(&self, id: NotificationId) -> MutexGuard<'_, Shelf> {
        // The last bits of an identifier are random.
        let shelf = &self.shelves[usize::from(id.0.as_bytes()[15]) % SHELVES];
        shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Shelf ===

impl Shelf {
    fn keep(&mut self, snapshot: &Arc<Snapshot>, now: Timestamp) {
        self.remove(snapshot.id);
        let bytes = snapshot.bytes() + ENTRY_BYTES;
        if bytes > MAX_SNAPSHOT_BYTES {
            return;
        }
        if self.bytes + bytes > MAX_SHELF_BYTES {
            self.known.retain(|_, kept| now.since(kept.read_at) < LIFE);
            self.bytes = self.known.values().map(|kept| kept.bytes).sum();
        }
        if self.bytes + bytes <= MAX_SHELF_BYTES {
            self.bytes += bytes;
            let kept = Kept {
                snapshot: Arc::clone(snapshot),
                read_at: now,
                bytes,
            };
            self.known.insert(snapshot.id, kept);
        }
    }

    fn remove(&mut self, id: NotificationId) {
        if let Some(kept) = self.known.remove(&id) {
            self.bytes -= kept.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::OrderSequence;
    use crate::notification::{Channel, Lane, Priority};
    use crate::store::row::ReceiptKind;
    use crate::store::{Record, Trail};

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
        Arc::new(Snapshot {
            id: OrderSequence::id(order),
            record,
            send_at: None,
            trail: Vec::new(),
        })
    }

    fn read(recent: &Recent, found: &[&Arc<Snapshot>]) {
        let ids: Vec<_> = found.iter().map(|snapshot| snapshot.id).collect();
        recent.begin(&ids);
        recent.end(
            &ids,
            &found
                .iter()
                .map(|snapshot| Arc::clone(snapshot))
                .collect::<Vec<_>>(),
        );
    }

    #[test]
    fn snapshot_is_cached_for_one_second_or_until_a_write() {
        let clock = Clock::manual(Timestamp(0));
        let recent = Recent::new(clock.clone());
        let (one, two) = (snapshot(1), snapshot(2));
        read(&recent, &[&one, &two]);
        clock.advance(Duration::from_millis(999));
        assert!(recent.get(one.id).is_some());
        recent.forget([one.id]);
        assert!(recent.get(one.id).is_none() && recent.get(two.id).is_some());
        clock.advance(Duration::from_millis(1));
        assert!(recent.get(two.id).is_none());
    }

    #[test]
    fn read_started_before_a_write_is_not_cached() {
        let recent = Recent::new(Clock::manual(Timestamp(0)));
        let one = snapshot(1);
        let other = snapshot(2);
        let ids = [one.id, other.id];
        recent.begin(&ids);
        recent.begin(&[one.id]);
        recent.forget([one.id]);
        recent.end(&ids, &[Arc::clone(&one), Arc::clone(&other)]);
        recent.end(&[one.id], &[Arc::clone(&one)]);
        assert!(recent.get(one.id).is_none() && recent.get(other.id).is_some());
        read(&recent, &[&one]);
        assert!(
            recent.get(one.id).is_some(),
            "the next read includes the write"
        );
        assert!(recent.shelf(one.id).reading.is_empty());
    }

    /// A snapshot with the given number of reports of 300 characters.
    fn large(order: i64, reports: usize) -> Arc<Snapshot> {
        let said = "x".repeat(300);
        let report = Trail::Receipt(
            ReceiptKind::Deferred,
            Timestamp(0),
            "dsn".to_owned(),
            None,
            Some(said),
        );
        let plain = Arc::unwrap_or_clone(snapshot(order));
        Arc::new(Snapshot {
            trail: vec![report; reports],
            ..plain
        })
    }

    #[test]
    fn memory_is_bounded_by_bytes() {
        for reports in [0, 10, 100] {
            let clock = Clock::manual(Timestamp(0));
            let recent = Recent::new(clock.clone());
            let many: Vec<_> = (0..60_000 / (reports as i64 + 1))
                .map(|order| large(order, reports))
                .collect();
            for _ in 0..3 {
                read(&recent, &many.iter().collect::<Vec<_>>());
                let kept = recent.shelves.iter().map(|shelf| {
                    let shelf = shelf.lock().expect("no panic");
                    let bytes: usize = shelf.known.values().map(|kept| kept.snapshot.bytes()).sum();
                    assert!(
                        bytes <= shelf.bytes && shelf.bytes <= MAX_SHELF_BYTES,
                        "{bytes} {}",
                        shelf.bytes
                    );
                    shelf.known.len()
                });
                assert!(kept.sum::<usize>() > 0);
                clock.advance(LIFE);
            }
            recent.forget(many.iter().map(|snapshot| snapshot.id));
            assert!(
                recent
                    .shelves
                    .iter()
                    .all(|shelf| shelf.lock().expect("no panic").bytes == 0)
            );
        }
        let recent = Recent::new(Clock::manual(Timestamp(0)));
        let huge = large(1, 1000);
        read(&recent, &[&huge]);
        assert!(recent.get(huge.id).is_none(), "larger than the limit");
    }
}
