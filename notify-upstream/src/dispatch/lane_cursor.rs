//! What the dispatcher knows about one lane.

use std::time::Duration;

use postern_common::clock::Timestamp;

use crate::notification::{Order, order_time};

/// What is known about one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneCursor {
    /// Everything up to here has been claimed once, or was born leased.
    pub(super) cursor: Order,
    /// Nothing that can be claimed stands below.
    pub(super) low: Order,
    /// The oldest row that is known to wait.
    head: Option<Order>,
    /// All rows up to here have been claimed once, or were born leased: what waits here was
    /// delayed, given back or rescued from a dead worker.
    reached: Order,
    /// When the head was first seen where none had been, or where only newer ones had been.
    seen_at: Option<Timestamp>,
    /// The head is one that came back.
    is_returned: bool,
}

// === impl LaneCursor ===

impl LaneCursor {
    pub(super) fn head(&self) -> Option<Order> {
        self.head
    }

    /// A look at the lane found this head.
    pub(super) fn set_head(&mut self, head: Option<Order>, now: Timestamp) {
        let is_returned = head.is_some_and(|head| head <= self.reached);
        self.seen_at = match head {
            None => None,
            Some(_) if self.head.is_none() || (is_returned && !self.is_returned) => Some(now),
            Some(_) if !is_returned && self.is_returned => None,
            Some(_) => self.seen_at,
        };
        (self.head, self.is_returned) = (head, is_returned);
    }

    /// Nothing up to here is there to be claimed.
    pub(super) fn advance(&mut self, settled: Order) {
        self.cursor = self.cursor.max(settled);
        self.reached = self.reached.max(self.cursor);
    }

    /// A row that can be claimed stands here, maybe below what was claimed already.
    pub(super) fn step_back(&mut self, found: Option<Order>, now: Timestamp) {
        if let Some(order) = found {
            self.cursor = self.cursor.min(order - 1);
            self.low = self.low.min(order);
            self.set_head(Some(self.head.map_or(order, |head| head.min(order))), now);
        }
    }

    /// Rows up to this one were claimed; `is_end` says that they were all.
    pub(super) fn claimed(&mut self, last: Option<Order>, is_end: bool, now: Timestamp) {
        if let Some(last) = last {
            // Others may share the last one's place, which the next claim then begins at.
            self.cursor = if is_end { last } else { last - 1 };
            self.reached = self.reached.max(last - 1);
        }
        self.set_head(last.filter(|_| !is_end), now);
    }

    /// How long the head has been there to be claimed. One that came back was not while somebody
    /// else had it, or until it was due: its age says nothing of the load.
    pub(super) fn waited(&self, now: Timestamp) -> Option<Duration> {
        let accepted_at = order_time(self.head?);
        Some(
            now.since(
                self.seen_at
                    .map_or(accepted_at, |seen_at| seen_at.max(accepted_at)),
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::order_at;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs(seconds))
    }

    fn order(seconds: u64) -> Order {
        order_at(at(seconds))
    }

    #[test]
    fn new_rows_wait_since_they_were_accepted() {
        let mut lane = LaneCursor::default();
        lane.claimed(Some(order(100)), false, at(101));
        lane.set_head(Some(order(102)), at(109));
        assert_eq!(lane.waited(at(110)), Some(Duration::from_secs(8)));
        lane.claimed(Some(order(102)), true, at(110));
        assert_eq!(lane.waited(at(110)), None);
    }

    #[test]
    fn rows_that_came_back_wait_since_then() {
        let mut lane = LaneCursor::default();
        lane.claimed(Some(order(100)), false, at(101));
        lane.step_back(Some(order(95)), at(110));
        lane.step_back(Some(order(90)), at(112));
        assert_eq!(lane.waited(at(113)), Some(Duration::from_secs(3)));
        lane.claimed(Some(order(95)), false, at(113));
        assert_eq!(
            lane.waited(at(114)),
            Some(Duration::from_secs(4)),
            "more of them"
        );
        lane.set_head(Some(order(103)), at(114));
        assert_eq!(
            lane.waited(at(114)),
            Some(Duration::from_secs(11)),
            "the backlog behind them"
        );
    }

    #[test]
    fn nothing_has_waited_longer_than_the_lane_has_not_been_empty() {
        let mut lane = LaneCursor::default();
        lane.set_head(None, at(109));
        lane.set_head(Some(order(99)), at(110));
        assert_eq!(lane.waited(at(111)), Some(Duration::from_secs(1)));
        lane.set_head(Some(order(110)), at(115));
        assert_eq!(lane.waited(at(115)), Some(Duration::from_secs(5)));
    }
}
