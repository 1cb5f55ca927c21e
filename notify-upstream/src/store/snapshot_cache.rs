//! A short-lived cache of snapshots, so that frequent status queries cause few reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::notification::NotificationId;
use crate::store::NotificationSnapshot;

/// A cache of recently read snapshots, so that polling clients cost one read per second. Writes of
/// this process invalidate entries immediately; writes of other replicas become visible after
/// [`MAX_AGE`].
#[derive(Debug)]
pub(crate) struct SnapshotCache {
    clock: Clock,
    shards: [Mutex<CacheShard>; SHARDS],
}

#[derive(Debug, Default)]
struct CacheShard {
    entries: HashMap<NotificationId, CachedSnapshot>,
    /// Total size of the snapshots, in bytes.
    bytes: usize,
    /// Reads in flight.
    reading: HashMap<NotificationId, ReadInProgress>,
}

#[derive(Debug)]
struct CachedSnapshot {
    snapshot: Arc<NotificationSnapshot>,
    read_at: Timestamp,
    bytes: usize,
}

#[derive(Debug, Default)]
struct ReadInProgress {
    readers: usize,
    /// Set if the notification was written during the read: the result may be stale and is not
    /// cached.
    outdated: bool,
}

/// Maximum age of a cached snapshot, and thereby the delay after a write of another replica.
const MAX_AGE: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
/// Maximum size of a shard's snapshots; 32 MiB over all shards.
const MAX_SHARD_BYTES: usize = 2 << 20;
/// Maximum size of a cached snapshot. Larger ones are read each time.
const MAX_SNAPSHOT_BYTES: usize = 64 << 10;
/// Estimated overhead of a map entry.
const ENTRY_BYTES: usize = 128;

// === impl SnapshotCache ===

impl SnapshotCache {
    /// Creates an empty cache.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            shards: Default::default(),
        })
    }

    /// Returns the snapshot if it was read within [`MAX_AGE`].
    #[must_use]
    pub(crate) fn get(&self, id: NotificationId) -> Option<Arc<NotificationSnapshot>> {
        let shard = self.shard(id);
        let cached = shard.entries.get(&id)?;
        (self.clock.now().since(cached.read_at) < MAX_AGE).then(|| Arc::clone(&cached.snapshot))
    }

    /// Registers reads that are about to start. Each call must be followed by
    /// [`SnapshotCache::end_read`], also after an error.
    pub(crate) fn begin_read(&self, ids: &[NotificationId]) {
        for id in ids {
            self.shard(*id).reading.entry(*id).or_default().readers += 1;
        }
    }

    /// Ends reads and caches the snapshots found, except those written since the read started.
    pub(crate) fn end_read(&self, ids: &[NotificationId], found: &[Arc<NotificationSnapshot>]) {
        for snapshot in found {
            let mut shard = self.shard(snapshot.id);
            if shard
                .reading
                .get(&snapshot.id)
                .is_some_and(|reading| !reading.outdated)
            {
                shard.insert_snapshot(snapshot, self.clock.now());
            }
        }
        for id in ids {
            let mut shard = self.shard(*id);
            if let Some(reading) = shard.reading.get_mut(id) {
                reading.readers -= 1;
                if reading.readers == 0 {
                    shard.reading.remove(id);
                }
            }
        }
    }

    /// Removes entries that have been written, and marks their reads in flight as stale.
    pub(crate) fn invalidate(&self, ids: impl IntoIterator<Item = NotificationId>) {
        for id in ids {
            let mut shard = self.shard(id);
            shard.remove(id);
            if let Some(reading) = shard.reading.get_mut(&id) {
                reading.outdated = true;
            }
        }
    }

    fn shard(&self, id: NotificationId) -> MutexGuard<'_, CacheShard> {
        // The last bits of an identifier are random.
        let shard = &self.shards[usize::from(id.0.as_bytes()[15]) % SHARDS];
        shard.lock()
    }
}

// === impl CacheShard ===

impl CacheShard {
    fn insert_snapshot(&mut self, snapshot: &Arc<NotificationSnapshot>, now: Timestamp) {
        self.remove(snapshot.id);
        let bytes = snapshot.bytes() + ENTRY_BYTES;
        if bytes > MAX_SNAPSHOT_BYTES {
            return;
        }
        if self.bytes + bytes > MAX_SHARD_BYTES {
            self.entries
                .retain(|_, cached| now.since(cached.read_at) < MAX_AGE);
            self.bytes = self.entries.values().map(|cached| cached.bytes).sum();
        }
        if self.bytes + bytes <= MAX_SHARD_BYTES {
            self.bytes += bytes;
            let cached = CachedSnapshot {
                snapshot: Arc::clone(snapshot),
                read_at: now,
                bytes,
            };
            self.entries.insert(snapshot.id, cached);
        }
    }

    fn remove(&mut self, id: NotificationId) {
        if let Some(cached) = self.entries.remove(&id) {
            self.bytes -= cached.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::OrderSequence;
    use crate::notification::{Channel, Lane, Priority};
    use crate::store::row::ReceiptKind;
    use crate::store::{HistoryEntry, ReceiptEntry, Record};

    fn snapshot(order: i64) -> Arc<NotificationSnapshot> {
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
            request_id: None,
            trace_context: None,
        };
        Arc::new(NotificationSnapshot {
            id: OrderSequence::id(order),
            record,
            send_at: None,
            history: Vec::new(),
        })
    }

    fn read(recent: &SnapshotCache, found: &[&Arc<NotificationSnapshot>]) {
        let ids: Vec<_> = found.iter().map(|snapshot| snapshot.id).collect();
        recent.begin_read(&ids);
        recent.end_read(
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
        let recent = SnapshotCache::new(clock.clone());
        let (one, two) = (snapshot(1), snapshot(2));
        read(&recent, &[&one, &two]);
        clock.advance(Duration::from_millis(999));
        assert!(recent.get(one.id).is_some());
        recent.invalidate([one.id]);
        assert!(recent.get(one.id).is_none() && recent.get(two.id).is_some());
        clock.advance(Duration::from_millis(1));
        assert!(recent.get(two.id).is_none());
    }

    #[test]
    fn read_started_before_a_write_is_not_cached() {
        let recent = SnapshotCache::new(Clock::manual(Timestamp(0)));
        let one = snapshot(1);
        let other = snapshot(2);
        let ids = [one.id, other.id];
        recent.begin_read(&ids);
        recent.begin_read(&[one.id]);
        recent.invalidate([one.id]);
        recent.end_read(&ids, &[Arc::clone(&one), Arc::clone(&other)]);
        recent.end_read(&[one.id], &[Arc::clone(&one)]);
        assert!(recent.get(one.id).is_none() && recent.get(other.id).is_some());
        read(&recent, &[&one]);
        assert!(
            recent.get(one.id).is_some(),
            "the next read includes the write"
        );
        assert!(recent.shard(one.id).reading.is_empty());
    }

    /// A snapshot with the given number of reports of 300 characters.
    fn large(order: i64, reports: usize) -> Arc<NotificationSnapshot> {
        let said = "x".repeat(300);
        let report = HistoryEntry::Receipt(ReceiptEntry {
            kind: ReceiptKind::Deferred,
            at: Timestamp(0),
            provider: "dsn".to_owned(),
            code: None,
            detail: Some(said),
        });
        let plain = Arc::unwrap_or_clone(snapshot(order));
        Arc::new(NotificationSnapshot {
            history: vec![report; reports],
            ..plain
        })
    }

    #[test]
    fn memory_is_bounded_by_bytes() {
        for reports in [0, 10, 100] {
            let clock = Clock::manual(Timestamp(0));
            let recent = SnapshotCache::new(clock.clone());
            let many: Vec<_> = (0..60_000 / (reports as i64 + 1))
                .map(|order| large(order, reports))
                .collect();
            for _ in 0..3 {
                read(&recent, &many.iter().collect::<Vec<_>>());
                let cached = recent.shards.iter().map(|shard| {
                    let shard = shard.lock();
                    let bytes: usize = shard
                        .entries
                        .values()
                        .map(|cached| cached.snapshot.bytes())
                        .sum();
                    assert!(
                        bytes <= shard.bytes && shard.bytes <= MAX_SHARD_BYTES,
                        "{bytes} {}",
                        shard.bytes
                    );
                    shard.entries.len()
                });
                assert!(cached.sum::<usize>() > 0);
                clock.advance(MAX_AGE);
            }
            recent.invalidate(many.iter().map(|snapshot| snapshot.id));
            assert!(recent.shards.iter().all(|shard| shard.lock().bytes == 0));
        }
        let recent = SnapshotCache::new(Clock::manual(Timestamp(0)));
        let huge = large(1, 1000);
        read(&recent, &[&huge]);
        assert!(recent.get(huge.id).is_none(), "larger than the limit");
    }
}
