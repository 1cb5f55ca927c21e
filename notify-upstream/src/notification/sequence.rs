//! Generation of notification identifiers and queue orders. Both ascend within a process, unless its
//! clock steps back.

use parking_lot::Mutex;
use postern_core::Clock;
use uuid::Uuid;

use crate::notification::{NotificationId, ORDER_COUNTER_BITS, Order};

/// Orders by which the last one may be ahead of the clock: one second.
const MAX_AHEAD: Order = 1_000 << ORDER_COUNTER_BITS;

/// A generator of ascending orders, and of identifiers that sort in the same order.
#[derive(Debug)]
pub(crate) struct OrderSequence {
    clock: Clock,
    last: Mutex<Order>,
}

impl OrderSequence {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            last: Mutex::new(0),
        }
    }

    /// Returns the first of `count` consecutive orders. They are greater than all orders returned
    /// before, even if the counter of a millisecond overflows or the clock steps back by less than a
    /// second. After a greater step they follow the clock: otherwise the notifications of this process
    /// would wait behind those of other replicas for as long as the clock was ahead.
    pub(crate) fn orders(&self, count: usize) -> Order {
        let now = self.clock.now().0.max(0) << ORDER_COUNTER_BITS;
        let mut last = self.last.lock();
        let is_stepped_back = *last - now > MAX_AHEAD;
        let first = if is_stepped_back {
            now
        } else {
            now.max(*last + 1)
        };
        *last = first + i64::try_from(count.max(1)).unwrap_or(i64::MAX) - 1;
        first
    }

    /// Returns `count` orders with their identifiers, with one system call for the random bits.
    pub(crate) fn places(&self, count: usize) -> impl Iterator<Item = (Order, NotificationId)> {
        let mut random = vec![0; count * size_of::<u64>()];
        getrandom::fill(&mut random).expect("the operating system provides random bytes");
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

    /// Creates an identifier for `order`.
    pub(crate) fn id(order: Order) -> NotificationId {
        Self::id_of(order, Uuid::new_v4().as_u64_pair().1)
    }

    /// Creates a UUIDv7 (RFC 9562 section 5.7): the counter in `rand_a`, the remaining bits random.
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
    use postern_core::clock::Timestamp;

    #[test]
    fn orders_and_ids_ascend_while_clock_does_not_advance() {
        let sequence = OrderSequence::new(Clock::manual(Timestamp(1_700_000_000_000)));
        let mut last = (0, NotificationId(Uuid::nil()));
        for _ in 0..10_000 {
            let order = sequence.orders(1);
            let next = (order, OrderSequence::id(order));
            assert!(next > last);
            assert_eq!(next.1.0.get_version_num(), 7);
            assert_eq!(next.1.0.get_variant(), uuid::Variant::RFC4122);
            assert!(next.1 >= NotificationId::floor(Timestamp(1_700_000_000_000)));
            last = next;
        }
        let first = sequence.orders(5);
        assert_eq!(sequence.orders(1), first + 5);
        let places: Vec<_> = sequence.places(3).collect();
        let orders: Vec<_> = places.iter().map(|place| place.0).collect();
        assert_eq!(orders, [first + 6, first + 7, first + 8]);
        assert!(places.is_sorted_by(|one, next| one.1 < next.1));
        let tails = places.iter().map(|place| place.1.0.as_u64_pair().1);
        let tails: std::collections::HashSet<_> = tails.collect();
        assert_eq!(tails.len(), 3, "random bits differ between identifiers");
    }

    #[test]
    fn orders_follow_a_clock_that_steps_back_by_seconds() {
        let clock = Clock::manual(Timestamp(1_700_000_000_000));
        let sequence = OrderSequence::new(clock.clone());
        let now = clock.now().0 << ORDER_COUNTER_BITS;
        let with_lead = |millis: i64| {
            *sequence.last.lock() = now + (millis << ORDER_COUNTER_BITS);
            [sequence.orders(2), sequence.orders(1)].map(|order| order - now)
        };
        let lead = 999 << ORDER_COUNTER_BITS;
        assert_eq!(with_lead(999), [lead + 1, lead + 3]);
        assert_eq!(with_lead(1_001), [0, 2]);
        assert_eq!(with_lead(90_000), [0, 2]);
    }
}
