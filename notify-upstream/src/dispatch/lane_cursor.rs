//! The dispatcher's position in one lane.

use std::time::Duration;

use postern_common::clock::Timestamp;

use crate::notification::{Order, order_time};

/// The position of the dispatcher in one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneCursor {
    /// All rows up to this order have been claimed once, or were leased at acceptance.
    pub(super) cursor: Order,
    /// The low watermark: no row that can be claimed has a lower order.
    pub(super) low: Order,
    /// The oldest row that is known to wait.
    head: Option<Order>,
    /// The highest order up to which rows have been claimed once. A row that waits at or below it
    /// was delayed, released, or recovered from a dead worker.
    reached: Order,
    /// The time when the head was first seen in a lane that was empty or had only newer rows.
    seen_at: Option<Timestamp>,
    /// Whether the head is a row that had been claimed before.
    is_returned: bool,
}

// === impl LaneCursor ===

impl LaneCursor {
    pub(super) fn head(&self) -> Option<Order> {
        self.head
    }

    /// Sets the head to the result of a scan.
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

    /// Advances past orders of which no row can be claimed any more.
    pub(super) fn advance(&mut self, settled: Order) {
        self.cursor = self.cursor.max(settled);
        self.reached = self.reached.max(self.cursor);
    }

    /// Moves the cursor back to a row that can be claimed.
    pub(super) fn move_back(&mut self, found: Option<Order>, now: Timestamp) {
        if let Some(order) = found {
            self.cursor = self.cursor.min(order - 1);
            self.low = self.low.min(order);
            self.set_head(Some(self.head.map_or(order, |head| head.min(order))), now);
        }
    }

    /// Records that rows up to `last` were claimed. With `is_end` the lane has no further rows.
    pub(super) fn record_claim(&mut self, last: Option<Order>, is_end: bool, now: Timestamp) {
        if let Some(last) = last {
            // Several rows may share the order of the last one, so the next claim starts with it.
            self.cursor = if is_end { last } else { last - 1 };
            self.reached = self.reached.max(last - 1);
        }
        self.set_head(last.filter(|_| !is_end), now);
    }

    /// Returns the time for which the head could have been claimed. A row that was released or
    /// delayed counts from its return: its age says nothing about the load.
    pub(super) fn head_wait(&self, now: Timestamp) -> Option<Duration> {
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
    fn new_row_waits_since_acceptance() {
        let mut lane = LaneCursor::default();
        lane.record_claim(Some(order(100)), false, at(101));
        lane.set_head(Some(order(102)), at(109));
        assert_eq!(lane.head_wait(at(110)), Some(Duration::from_secs(8)));
        lane.record_claim(Some(order(102)), true, at(110));
        assert_eq!(lane.head_wait(at(110)), None);
    }

    #[test]
    fn returned_row_waits_since_its_return() {
        let mut lane = LaneCursor::default();
        lane.record_claim(Some(order(100)), false, at(101));
        lane.move_back(Some(order(95)), at(110));
        lane.move_back(Some(order(90)), at(112));
        assert_eq!(lane.head_wait(at(113)), Some(Duration::from_secs(3)));
        lane.record_claim(Some(order(95)), false, at(113));
        assert_eq!(
            lane.head_wait(at(114)),
            Some(Duration::from_secs(4)),
            "further returned rows"
        );
        lane.set_head(Some(order(103)), at(114));
        assert_eq!(
            lane.head_wait(at(114)),
            Some(Duration::from_secs(11)),
            "newer rows"
        );
    }

    #[test]
    fn wait_is_bounded_by_time_since_lane_was_empty() {
        let mut lane = LaneCursor::default();
        lane.set_head(None, at(109));
        lane.set_head(Some(order(99)), at(110));
        assert_eq!(lane.head_wait(at(111)), Some(Duration::from_secs(1)));
        lane.set_head(Some(order(110)), at(115));
        assert_eq!(lane.head_wait(at(115)), Some(Duration::from_secs(5)));
    }
}
