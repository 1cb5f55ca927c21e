use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    shelves: [Mutex<Shelf>; SHELVES],
}

#[derive(Debug, Default)]
struct Shelf {
    /// Snapshots, and when each was read.
    known: HashMap<NotificationId, (Arc<Snapshot>, Timestamp)>,
    /// What is being read just now.
    reading: HashMap<NotificationId, Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    readers: usize,
    /// Something was written since: whether a reader has seen it is not known.
    outdated: bool,
}

/// How long a status may lag behind what another replica has written.
const LIFE: Duration = Duration::from_secs(1);
const SHELVES: usize = 16;
/// Most snapshots of a shelf: some 30 MB in all.
const MOST: usize = 2048;

// === impl Recent ===

impl Recent {
    /// Empty.
    #[must_use]
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, shelves: Default::default() })
    }

    /// What was read of it within the last second.
    #[must_use]
    pub fn get(&self, id: NotificationId) -> Option<Arc<Snapshot>> {
        let shelf = self.shelf(id);
        let (snapshot, at) = shelf.known.get(&id)?;
        (self.clock.now().since(*at) < LIFE).then(|| Arc::clone(snapshot))
    }

    /// These are about to be read. [`Recent::end`] follows, whatever comes of it.
    pub fn begin(&self, ids: &[NotificationId]) {
        for id in ids {
            self.shelf(*id).reading.entry(*id).or_default().readers += 1;
        }
    }

    /// These were read; what was found is kept, unless something was written about it since the read began.
    pub fn end(&self, ids: &[NotificationId], found: &[Arc<Snapshot>]) {
        for snapshot in found {
            let mut shelf = self.shelf(snapshot.id);
            if shelf.reading.get(&snapshot.id).is_some_and(|reading| !reading.outdated) {
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

    /// Something was written about these.
    pub fn forget(&self, ids: impl IntoIterator<Item = NotificationId>) {
        for id in ids {
            let mut shelf = self.shelf(id);
            shelf.known.remove(&id);
            if let Some(reading) = shelf.reading.get_mut(&id) {
                reading.outdated = true;
            }
        }
    }

    fn shelf(&self, id: NotificationId) -> MutexGuard<'_, Shelf> {
        // The last bits of an id are random.
        let shelf = &self.shelves[usize::from(id.0.as_bytes()[15]) % SHELVES];
        shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Shelf ===

impl Shelf {
    fn keep(&mut self, snapshot: &Arc<Snapshot>, now: Timestamp) {
        if self.known.len() >= MOST {
            self.known.retain(|_, (_, at)| now.since(*at) < LIFE);
        }
        if self.known.len() < MOST {
            self.known.insert(snapshot.id, (Arc::clone(snapshot), now));
        }
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

    fn read(recent: &Recent, found: &[&Arc<Snapshot>]) {
        let ids: Vec<_> = found.iter().map(|snapshot| snapshot.id).collect();
        recent.begin(&ids);
        recent.end(&ids, &found.iter().map(|snapshot| Arc::clone(snapshot)).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_read_is_good_for_a_second_and_not_beyond_a_write() {
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
    fn a_read_that_began_before_a_write_is_not_kept() {
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
        assert!(recent.get(one.id).is_some(), "the next read has seen it");
        assert!(recent.shelf(one.id).reading.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let recent = Recent::new(Clock::manual(Timestamp(0)));
        let many: Vec<_> = (0..100_000).map(snapshot).collect();
        read(&recent, &many.iter().collect::<Vec<_>>());
        let kept: usize =
            recent.shelves.iter().map(|shelf| shelf.lock().expect("no panic").known.len()).sum();
        assert_eq!(kept, SHELVES * MOST);
    }
}
