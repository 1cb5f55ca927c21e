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
pub(crate) struct Precedence {
    clock: Clock,
    /// When the last one came, in milliseconds of the epoch.
    last: AtomicI64,
    /// How many are on their way into the store.
    entering: watch::Sender<usize>,
    /// How many statements have made way.
    #[cfg(test)]
    ways: AtomicUsize,
}

/// Urgent ones on their way into the store, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entering<'a> {
    precedence: &'a Precedence,
    count: usize,
}

/// How long after the last urgent one the next is reckoned with.
const RECKONED_WITH: Duration = Duration::from_secs(2);
/// Most rows of one statement meanwhile.
pub(super) const BESIDE_URGENT: usize = 128;
/// Longest that one statement makes way: some commits. A flood of urgent ones does not stop the
/// rest.
const LONGEST_WAY: Duration = Duration::from_millis(5);

// === impl Precedence ===

impl Precedence {
    /// Nothing urgent has come yet.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            last: AtomicI64::new(i64::MIN),
            entering: watch::Sender::new(0),
            #[cfg(test)]
            ways: AtomicUsize::new(0),
        }
    }

    /// So many of a priority have come.
    pub(crate) fn note(&self, priority: Priority, count: usize) {
        if priority.is_urgent() && count > 0 {
            self.note_urgent();
        }
    }

    fn note_urgent(&self) {
        self.last.store(self.clock.now().0, Ordering::Relaxed);
    }

    /// These are on their way into the store.
    #[must_use]
    pub(crate) fn enter(&self, priorities: impl Iterator<Item = Priority>) -> Entering<'_> {
        let count = priorities.filter(|priority| priority.is_urgent()).count();
        if count > 0 {
            self.note_urgent();
            self.entering.send_modify(|entering| *entering += count);
        }
        Entering {
            precedence: self,
            count,
        }
    }

    /// Most rows of one statement, of which there may be so many otherwise: fewer while something
    /// urgent comes, or came in the last seconds, for the statement is in the way of the next one,
    /// and so is what it has brought.
    #[must_use]
    pub(crate) fn most(&self, otherwise: usize) -> usize {
        let last = Timestamp(self.last.load(Ordering::Relaxed));
        if self.clock.now().since(last) < RECKONED_WITH {
            otherwise.min(BESIDE_URGENT)
        } else {
            otherwise
        }
    }

    /// Whether urgent ones are on their way into the store just now.
    #[must_use]
    pub(crate) fn is_entering(&self) -> bool {
        *self.entering.borrow() > 0
    }

    /// How many statements have made way.
    #[cfg(test)]
    pub(super) fn ways(&self) -> usize {
        self.ways.load(Ordering::Relaxed)
    }

    /// Waits, with what is not urgent itself, until nothing urgent is on its way into the store;
    /// but not for long.
    pub(crate) async fn make_way(&self, priority: Priority) {
        if priority.is_urgent() || !self.is_entering() {
            return;
        }
        #[cfg(test)]
        self.ways.fetch_add(1, Ordering::Relaxed);
        let mut entering = self.entering.subscribe();
        // However it ended: it is the other's turn.
        let _ =
            tokio::time::timeout(LONGEST_WAY, entering.wait_for(|entering| *entering == 0)).await;
    }
}

// === impl Entering ===

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.precedence
                .entering
                .send_modify(|entering| *entering -= self.count);
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
        let precedence = Precedence::new(Clock::manual(Timestamp(1)));
        let goes_on = async |priority| poll!(pin!(precedence.make_way(priority))).is_ready();
        let nothing = precedence.enter([Priority::Normal, Priority::Low].into_iter());
        assert!(!precedence.is_entering() && goes_on(Priority::Low).await);
        let first = precedence.enter([Priority::Low, Priority::High].into_iter());
        let second = precedence.enter([Priority::Critical; 2].into_iter());
        for (priority, expected) in Priority::ALL.into_iter().zip([true, true, false, false]) {
            assert_eq!(goes_on(priority).await, expected, "{priority:?}");
        }
        drop((nothing, first));
        let mut waiting = pin!(precedence.make_way(Priority::Low));
        assert!(poll!(&mut waiting).is_pending());
        drop(second);
        assert!(!precedence.is_entering() && poll!(&mut waiting).is_ready());
    }

    #[tokio::test]
    async fn way_is_not_made_for_long() {
        let precedence = Precedence::new(Clock::manual(Timestamp(1)));
        let _entering = precedence.enter([Priority::High].into_iter());
        let began = Instant::now();
        let way = tokio::time::timeout(Duration::from_secs(60), precedence.make_way(Priority::Low));
        way.await.expect("it goes on by itself");
        assert!(began.elapsed() >= LONGEST_WAY);
    }

    #[test]
    fn the_next_one_is_reckoned_with_for_two_seconds() {
        let clock = Clock::manual(Timestamp(1));
        let precedence = Precedence::new(clock.clone());
        assert_eq!(precedence.most(500), 500);
        drop(precedence.enter([Priority::Low, Priority::High].into_iter()));
        clock.advance(Duration::from_millis(1999));
        assert_eq!(
            [500, 1].map(|otherwise| precedence.most(otherwise)),
            [BESIDE_URGENT, 1]
        );
        clock.advance(Duration::from_millis(1));
        precedence.note(Priority::Low, 1);
        precedence.note(Priority::High, 0);
        assert_eq!(precedence.most(500), 500);
        precedence.note(Priority::Critical, 1);
        assert_eq!(precedence.most(500), BESIDE_URGENT);
    }
}
