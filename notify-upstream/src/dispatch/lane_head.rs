//! The oldest row that waits in one lane.

use std::time::Duration;

use postern_core::clock::Timestamp;

use crate::notification::{Order, order_time};

/// The oldest row that is known to wait in one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneHead {
    order: Option<Order>,
    /// Since when rows have been known to wait without interruption.
    waiting_since: Timestamp,
}

// === impl LaneHead ===

impl LaneHead {
    pub(super) fn new() -> Self {
        Self {
            order: None,
            waiting_since: Timestamp(0),
        }
    }

    /// Records the oldest waiting row, or that none waits.
    pub(super) fn set(&mut self, order: Option<Order>, now: Timestamp) {
        if self.order.is_none() {
            self.waiting_since = now;
        }
        self.order = order;
    }

    /// Returns the time since the row was accepted, or became due.
    pub(super) fn age(&self, now: Timestamp) -> Option<Duration> {
        self.order.map(|order| now.since(order_time(order)))
    }

    /// Returns the time for which the row could have been claimed. A row that returns to an empty
    /// lane, from a worker that has died, counts from its return: its age says nothing about the
    /// load.
    pub(super) fn wait(&self, now: Timestamp) -> Option<Duration> {
        Some(self.age(now)?.min(now.since(self.waiting_since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::order_at;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn wait_is_bounded_by_age_and_by_time_since_lane_was_empty() {
        let mut head = LaneHead::new();
        let mut observe = |order_s: Option<u64>, now_s| {
            head.set(order_s.map(|order| order_at(at(order))), at(now_s));
            (head.age(at(now_s + 1)), head.wait(at(now_s + 1)))
        };
        let seconds = |age, wait| {
            (
                Some(Duration::from_secs(age)),
                Some(Duration::from_secs(wait)),
            )
        };
        assert_eq!(observe(None, 109), (None, None));
        assert_eq!(observe(Some(99), 110), seconds(12, 1));
        assert_eq!(observe(Some(101), 113), seconds(13, 4));
        assert_eq!(observe(Some(112), 115), seconds(4, 4));
    }
}
