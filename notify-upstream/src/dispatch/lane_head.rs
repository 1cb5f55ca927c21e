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

    #[test]
    fn wait_is_bounded_by_age_and_by_time_since_lane_was_empty() {
        let at = |seconds: i64| Timestamp(seconds * 1000);
        let mut head = LaneHead::new();
        for (order, now, expected) in [
            (None, 109, None),
            (Some(99), 110, Some((12, 1))),
            (Some(101), 113, Some((13, 4))),
            (Some(112), 115, Some((4, 4))),
        ] {
            head.set(order.map(|it| order_at(at(it))), at(now));
            let found = head.age(at(now + 1)).zip(head.wait(at(now + 1)));
            let found = found.map(|(age, wait)| (age.as_secs(), wait.as_secs()));
            assert_eq!(found, expected);
        }
    }
}
