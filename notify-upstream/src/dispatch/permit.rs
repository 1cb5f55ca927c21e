use std::sync::{Arc, Mutex, PoisonError};

use crate::notification::{Lane, Priority};

/// How many notifications of a channel are in hand at once: memory is bounded by these, and by nothing that a client
/// sends. Some are kept for CRITICAL, some for CRITICAL and HIGH.
#[derive(Clone, Debug)]
pub struct Permits(Arc<Inner>);

/// The right to have one notification in hand. Dropped when its result is durable; whoever drops some wakes the
/// dispatcher once, so that it claims for all of them together.
#[derive(Debug)]
pub struct Permit {
    inner: Arc<Inner>,
    lane: usize,
}

#[derive(Debug)]
struct Inner {
    total: usize,
    used: Mutex<[usize; Lane::PER_CHANNEL]>,
}

// === impl Permits ===

impl Permits {
    /// As many as `total`, at least one.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Inner { total: total.max(1), used: Mutex::default() }))
    }

    /// Up to `want` permits for a lane whose share of all is `share` (0 to 1); fewer when fewer are free.
    #[must_use]
    pub fn take(&self, lane: Lane, share: f64, want: usize) -> Vec<Permit> {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        let index = lane.index();
        let free = self.0.total.saturating_sub(used.iter().sum::<usize>() + self.reserved(lane.priority));
        let most = self.share_of(share).saturating_sub(used[index]);
        let count = free.min(most).min(want);
        used[index] += count;
        drop(used);
        (0..count).map(|_| Permit { inner: Arc::clone(&self.0), lane: index }).collect()
    }

    /// How many are in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner).iter().sum()
    }

    /// How many are kept from this priority for more urgent ones: a sixteenth for each of CRITICAL and HIGH, at
    /// least one, once there are enough to share.
    fn reserved(&self, priority: Priority) -> usize {
        if self.0.total < 4 {
            return 0;
        }
        let part = (self.0.total / 16).max(1);
        match priority {
            Priority::Critical => 0,
            Priority::High => part,
            Priority::Normal | Priority::Low => 2 * part,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "permits are some thousands, a share lies between 0 and 1"
    )]
    fn share_of(&self, share: f64) -> usize {
        ((self.0.total as f64 * share) as usize).max(1)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.inner.used.lock().unwrap_or_else(PoisonError::into_inner);
        used[self.lane] = used[self.lane].saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::Channel;

    #[test]
    fn some_are_kept_for_the_urgent_and_all_come_back() {
        let permits = Permits::new(64);
        let lane = |priority| Lane::first(Channel::Email, priority);
        let low = permits.take(lane(Priority::Low), 1.0, 100);
        let high = permits.take(lane(Priority::High), 1.0, 100);
        let critical = permits.take(lane(Priority::Critical), 1.0, 100);
        assert_eq!((low.len(), high.len(), critical.len()), (56, 4, 4));
        drop((low, high, critical));
        assert_eq!(permits.in_use(), 0);
        let repeats = permits.take(lane(Priority::Normal).repeats(), 0.25, 100);
        assert_eq!(repeats.len(), 16);
        assert_eq!(permits.take(lane(Priority::Normal), 1.0, 100).len(), 40);
    }
}
