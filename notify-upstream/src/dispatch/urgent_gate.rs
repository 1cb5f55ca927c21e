//! What is urgent goes first in the store as well: its commit has the same processors and the same
//! disk as the claims and results of everything else.

#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;
use tokio::sync::watch;

use crate::notification::Priority;

/// CRITICAL and HIGH of all channels, and what makes way for them.
#[derive(Debug)]
pub(crate) struct UrgentWriteGate {
    clock: Clock,
    /// When the last one came, in milliseconds of the epoch.
    last_urgent_ms: AtomicI64,
    /// How many are on their way into the store.
    in_flight: watch::Sender<usize>,
    /// How many statements have made way.
    #[cfg(test)]
    yields: AtomicUsize,
}

/// Urgent ones on their way into the store, until it is dropped.
#[derive(Debug)]
pub(crate) struct UrgentWriteGuard<'a> {
    gate: &'a UrgentWriteGate,
    count: usize,
}

/// How long after the last urgent one the next is reckoned with.
const URGENT_WINDOW: Duration = Duration::from_secs(2);
/// Most rows of one statement meanwhile.
pub(super) const URGENT_BATCH_SIZE: usize = 128;
/// Longest that one statement makes way: some commits. A flood of urgent ones does not stop the
/// rest.
const MAX_YIELD: Duration = Duration::from_millis(5);

// === impl UrgentWriteGate ===

impl UrgentWriteGate {
    /// Nothing urgent has come yet.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            last_urgent_ms: AtomicI64::new(i64::MIN),
            in_flight: watch::Sender::new(0),
            #[cfg(test)]
            yields: AtomicUsize::new(0),
        }
    }

    /// So many of a priority have come.
    pub(crate) fn record(&self, priority: Priority, count: usize) {
        if priority.is_urgent() && count > 0 {
            self.touch();
        }
    }

    fn touch(&self) {
        self.last_urgent_ms
            .store(self.clock.now().0, Ordering::Relaxed);
    }

    /// These are on their way into the store.
    #[must_use]
    pub(crate) fn begin_commit(
        &self,
        priorities: impl Iterator<Item = Priority>,
    ) -> UrgentWriteGuard<'_> {
        let count = priorities.filter(|priority| priority.is_urgent()).count();
        if count > 0 {
            self.touch();
            self.in_flight.send_modify(|in_flight| *in_flight += count);
        }
        UrgentWriteGuard { gate: self, count }
    }

    /// Most rows of one statement, of which there may be so many default: fewer while something
    /// urgent comes, or came in the last seconds, for the statement is in the way of the next one,
    /// and so is what it has brought.
    #[must_use]
    pub(crate) fn batch_size(&self, default: usize) -> usize {
        let last = Timestamp(self.last_urgent_ms.load(Ordering::Relaxed));
        if self.clock.now().since(last) < URGENT_WINDOW {
            default.min(URGENT_BATCH_SIZE)
        } else {
            default
        }
    }

    /// Whether urgent ones are on their way into the store just now.
    #[must_use]
    pub(crate) fn has_urgent_in_flight(&self) -> bool {
        *self.in_flight.borrow() > 0
    }

    /// How many statements have made way.
    #[cfg(test)]
    pub(super) fn yields(&self) -> usize {
        self.yields.load(Ordering::Relaxed)
    }

    /// Waits, with what is not urgent itself, until nothing urgent is on its way into the store;
    /// but not for long.
    pub(crate) async fn yield_to_urgent(&self, priority: Priority) {
        if priority.is_urgent() || !self.has_urgent_in_flight() {
            return;
        }
        #[cfg(test)]
        self.yields.fetch_add(1, Ordering::Relaxed);
        let mut in_flight = self.in_flight.subscribe();
        // However it completed: it is the other's turn.
        let _ =
            tokio::time::timeout(MAX_YIELD, in_flight.wait_for(|in_flight| *in_flight == 0)).await;
    }
}

// === impl UrgentWriteGuard ===

impl Drop for UrgentWriteGuard<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.gate
                .in_flight
                .send_modify(|in_flight| *in_flight -= self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Instant;

    use super::*;
    use futures_util::poll;

    #[tokio::test]
    async fn what_is_not_urgent_makes_way_while_something_enters() {
        let gate = UrgentWriteGate::new(Clock::manual(Timestamp(1)));
        let goes_on = async |priority| poll!(pin!(gate.yield_to_urgent(priority))).is_ready();
        let nothing = gate.begin_commit([Priority::Normal, Priority::Low].into_iter());
        assert!(!gate.has_urgent_in_flight() && goes_on(Priority::Low).await);
        let first = gate.begin_commit([Priority::Low, Priority::High].into_iter());
        let second = gate.begin_commit([Priority::Critical; 2].into_iter());
        for (priority, expected) in Priority::ALL.into_iter().zip([true, true, false, false]) {
            assert_eq!(goes_on(priority).await, expected, "{priority:?}");
        }
        drop((nothing, first));
        let mut waiting = pin!(gate.yield_to_urgent(Priority::Low));
        assert!(poll!(&mut waiting).is_pending());
        drop(second);
        assert!(!gate.has_urgent_in_flight() && poll!(&mut waiting).is_ready());
    }

    #[tokio::test]
    async fn way_is_not_made_for_long() {
        let gate = UrgentWriteGate::new(Clock::manual(Timestamp(1)));
        let _entering = gate.begin_commit([Priority::High].into_iter());
        let began = Instant::now();
        let way =
            tokio::time::timeout(Duration::from_secs(60), gate.yield_to_urgent(Priority::Low));
        way.await.expect("it goes on by itself");
        assert!(began.elapsed() >= MAX_YIELD);
    }

    #[test]
    fn the_next_one_is_reckoned_with_for_two_seconds() {
        let clock = Clock::manual(Timestamp(1));
        let gate = UrgentWriteGate::new(clock.clone());
        assert_eq!(gate.batch_size(500), 500);
        drop(gate.begin_commit([Priority::Low, Priority::High].into_iter()));
        clock.advance(Duration::from_millis(1999));
        assert_eq!(
            [500, 1].map(|default| gate.batch_size(default)),
            [URGENT_BATCH_SIZE, 1]
        );
        clock.advance(Duration::from_millis(1));
        gate.record(Priority::Low, 1);
        gate.record(Priority::High, 0);
        assert_eq!(gate.batch_size(500), 500);
        gate.record(Priority::Critical, 1);
        assert_eq!(gate.batch_size(500), URGENT_BATCH_SIZE);
    }
}
