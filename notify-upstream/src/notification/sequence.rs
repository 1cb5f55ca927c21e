//! Ids and orders of this process: both rise with every one that is given out.

use std::sync::{Mutex, PoisonError};

use postern_common::Clock;
use uuid::Uuid;

use crate::notification::{NotificationId, ORDER_COUNTER_BITS, Order};

/// Gives out orders, and ids that sort as they do.
#[derive(Debug)]
pub struct Sequence {
    clock: Clock,
    last: Mutex<Order>,
}

// === impl Sequence ===

impl Sequence {
    /// Begins at the clock's present instant.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            last: Mutex::new(0),
        }
    }

    /// The next `count` orders: the first of them; the others follow one by one. They lie beyond
    /// every one given out before, even when the clock steps back or a millisecond has more than
    /// its counter holds.
    pub fn orders(&self, count: usize) -> Order {
        let now = self.clock.now().0.max(0) << ORDER_COUNTER_BITS;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let first = now.max(*last + 1);
        *last = first + i64::try_from(count.max(1)).unwrap_or(i64::MAX) - 1;
        first
    }

    /// As many orders with the ids that belong to them, of which the system is asked for random
    /// bytes but once.
    pub(crate) fn places(&self, count: usize) -> impl Iterator<Item = (Order, NotificationId)> {
        let mut random = vec![0; count * size_of::<u64>()];
        getrandom::fill(&mut random).expect("the system has random bytes");
        let random: Vec<u64> = random
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u64::from_ne_bytes(*bytes))
            .collect();
        (self.orders(count)..)
            .zip(random)
            .map(|(order, random)| (order, Self::id_of(order, random)))
    }

    /// The id that belongs to an order.
    #[must_use]
    pub fn id(order: Order) -> NotificationId {
        Self::id_of(order, Uuid::new_v4().as_u64_pair().1)
    }

    /// A UUIDv7 (RFC 9562 section 5.7), the counter in `rand_a`, the rest random.
    fn id_of(order: Order, random: u64) -> NotificationId {
        let order = u128::try_from(order).unwrap_or(0);
        let (millis, counter) = (
            order >> ORDER_COUNTER_BITS,
            order & ((1 << ORDER_COUNTER_BITS) - 1),
        );
        let random = u128::from(random) & ((1 << 62) - 1);
        let bits =
            (millis & ((1 << 48) - 1)) << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | random;
        NotificationId(Uuid::from_u128(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::clock::Timestamp;

    #[test]
    fn orders_and_ids_rise_while_the_clock_stands_still() {
        let sequence = Sequence::new(Clock::manual(Timestamp(1_700_000_000_000)));
        let mut last = (0, NotificationId(Uuid::nil()));
        for _ in 0..10_000 {
            let order = sequence.orders(1);
            let next = (order, Sequence::id(order));
            assert!(next > last);
            assert_eq!(next.1.0.get_version_num(), 7);
            last = next;
        }
        let first = sequence.orders(5);
        assert_eq!(sequence.orders(1), first + 5);
        let places: Vec<_> = sequence.places(3).collect();
        assert_eq!(
            places.iter().map(|place| place.0).collect::<Vec<_>>(),
            [first + 6, first + 7, first + 8]
        );
        assert!(places.is_sorted_by(|one, next| one.1 < next.1));
        let tails: std::collections::HashSet<_> = places
            .iter()
            .map(|place| place.1.0.as_u64_pair().1)
            .collect();
        assert_eq!(tails.len(), 3, "each has random bits of its own");
    }
}
