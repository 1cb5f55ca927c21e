//! Priority isolation for database writes.
//!
//! Commits of CRITICAL and HIGH submissions compete with claims and result batches of other
//! priorities for CPU and disk. While urgent submissions arrive, batches stay small and non-urgent
//! writes yield, for a bounded time, to an urgent commit that is in flight.

#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;
use tokio::sync::watch;

use crate::notification::Priority;

/// Coordinates urgent and non-urgent writes of one process, across all channels.
#[derive(Debug)]
pub(crate) struct UrgentWriteGate {
    clock: Clock,
    /// Time of the last urgent submission, in milliseconds since the epoch.
    last_urgent_ms: AtomicI64,
    /// Number of urgent submissions whose commit is in flight.
    in_flight: watch::Sender<usize>,
    /// Number of statements that have yielded.
    #[cfg(test)]
    yields: AtomicUsize,
}

/// Marks urgent submissions as in flight until dropped.
#[derive(Debug)]
pub(crate) struct UrgentWriteGuard<'a> {
    gate: &'a UrgentWriteGate,
    count: usize,
}

/// Time after an urgent submission during which batches stay small.
const URGENT_WINDOW: Duration = Duration::from_secs(2);
/// Maximum rows per statement during [`URGENT_WINDOW`].
pub(super) const URGENT_BATCH_SIZE: usize = 128;
/// Maximum time for which one non-urgent write yields. Bounds the delay of other priorities under a
/// flood of urgent submissions.
const MAX_YIELD: Duration = Duration::from_millis(5);

// === impl UrgentWriteGate ===

impl UrgentWriteGate {
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

    /// Records submissions that commit elsewhere, such as those of another replica.
    pub(crate) fn record(&self, priority: Priority, count: usize) {
        if priority.is_urgent() && count > 0 {
            self.touch();
        }
    }

    fn touch(&self) {
        self.last_urgent_ms
            .store(self.clock.now().0, Ordering::Relaxed);
    }

    /// Marks the urgent submissions among `priorities` as in flight until the guard is dropped.
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

    /// Returns the maximum batch size now: `default`, or at most [`URGENT_BATCH_SIZE`] within
    /// [`URGENT_WINDOW`] of the last urgent submission.
    #[must_use]
    pub(crate) fn batch_size(&self, default: usize) -> usize {
        let last = Timestamp(self.last_urgent_ms.load(Ordering::Relaxed));
        if self.clock.now().since(last) < URGENT_WINDOW {
            default.min(URGENT_BATCH_SIZE)
        } else {
            default
        }
    }

    /// Returns whether an urgent commit is in flight.
    #[must_use]
    pub(crate) fn has_urgent_in_flight(&self) -> bool {
        *self.in_flight.borrow() > 0
    }

    /// Returns the number of statements that have yielded.
    #[cfg(test)]
    pub(super) fn yields(&self) -> usize {
        self.yields.load(Ordering::Relaxed)
    }

    /// Waits until no urgent commit is in flight, for at most [`MAX_YIELD`]. Returns at once for
    /// urgent priorities.
    pub(crate) async fn yield_to_urgent(&self, priority: Priority) {
        if priority.is_urgent() || !self.has_urgent_in_flight() {
            return;
        }
        #[cfg(test)]
        self.yields.fetch_add(1, Ordering::Relaxed);
        let mut in_flight = self.in_flight.subscribe();
        // Proceed on timeout as well: the wait bounds the delay of urgent commits, it is not a
        // lock.
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
    async fn non_urgent_write_waits_for_urgent_commit() {
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
    async fn yield_is_bounded() {
        let gate = UrgentWriteGate::new(Clock::manual(Timestamp(1)));
        let _entering = gate.begin_commit([Priority::High].into_iter());
        let began = Instant::now();
        let way =
            tokio::time::timeout(Duration::from_secs(60), gate.yield_to_urgent(Priority::Low));
        way.await.expect("the yield ends");
        assert!(began.elapsed() >= MAX_YIELD);
    }

    #[test]
    fn batches_stay_small_within_the_urgent_window() {
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
