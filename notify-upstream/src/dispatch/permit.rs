//! Permits for concurrent deliveries of one channel.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::LaneTurn;
use crate::notification::{Lane, Priority};
use crate::principal::Principal;

/// A pool of permits of one channel. They bound the number of notifications in delivery, and
/// thereby memory, independently of what clients send. Some are reserved for CRITICAL, and some for
/// CRITICAL and HIGH.
#[derive(Clone, Debug)]
pub(crate) struct PermitPool(Arc<PermitCounts>);

/// The permit to deliver one notification, held until the result is durable. After dropping permits
/// the holder wakes the dispatcher once, so that it claims rows for all of them together.
#[derive(Debug)]
pub(crate) struct ChannelPermit {
    counts: Arc<PermitCounts>,
    lane: usize,
    /// The caller of the notification, if it is a user.
    user: Option<String>,
}

#[derive(Debug)]
struct PermitCounts {
    total: usize,
    /// The permits of one user with each priority.
    user_share: usize,
    used: Mutex<UsedPermits>,
}

#[derive(Debug, Default)]
struct UsedPermits {
    lanes: [usize; Lane::PER_CHANNEL],
    /// By the position of the priority, and by user.
    users: [HashMap<String, usize>; Priority::ALL.len()],
}

impl PermitPool {
    /// Creates a pool of `total` permits, at least one, for providers that allow `calls` concurrent
    /// calls. A user may have a sixteenth of whichever is less.
    pub(crate) fn new(total: usize, calls: usize) -> Self {
        Self(Arc::new(PermitCounts {
            total: total.max(1),
            user_share: (total.min(calls) / 16).max(1),
            used: Mutex::default(),
        }))
    }

    /// Takes up to `want` permits for the first of `turns` whose lane can have one. The lock is
    /// held over all turns: a permit that is returned meanwhile must not go to a lane of lower
    /// priority than one that has just found none.
    #[must_use]
    pub(crate) fn take_for(
        &self,
        turns: &[LaneTurn],
        want: usize,
    ) -> Option<(LaneTurn, Vec<ChannelPermit>)> {
        let mut used = self.0.used.lock();
        let in_use: usize = used.lanes.iter().sum();
        let (turn, count) = turns.iter().find_map(|turn| {
            let taken = in_use + self.reserved(turn.lane.priority);
            let free = self.0.total.saturating_sub(taken);
            let share = self.share_of(turn.share);
            let lane_free = share.saturating_sub(used.lanes[turn.lane.index()]);
            let count = free.min(lane_free).min(want);
            (count > 0).then_some((*turn, count))
        })?;
        let lane = turn.lane.index();
        used.lanes[lane] += count;
        drop(used);
        let permit = |_| ChannelPermit {
            counts: Arc::clone(&self.0),
            lane,
            user: None,
        };
        Some((turn, (0..count).map(permit).collect()))
    }

    /// Returns the users of a lane who have their share, and the number of permits that users have
    /// before services: what they lack of a quarter.
    pub(crate) fn user_turns(&self, lane: Lane) -> (Vec<String>, usize) {
        let users = &self.0.used.lock().users[lane.priority.index()];
        let full = users.iter().filter(|(_, held)| **held >= self.0.user_share);
        let reserved = (self.0.total / 4).saturating_sub(users.values().sum());
        (full.map(|(user, _)| user.clone()).collect(), reserved)
    }

    /// Returns the number of permits that are reserved for higher priorities: a sixteenth for each
    /// of CRITICAL and HIGH, at least one, if there are at least four permits.
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

    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.0.used.lock().lanes.iter().sum()
    }
}

impl ChannelPermit {
    /// Counts the permit for the caller of the claimed notification, if it is a user.
    pub(crate) fn assign(&mut self, creator: &str) {
        if Principal::is_user(creator) {
            let users = &mut self.counts.used.lock().users[self.lane / 2];
            *users.entry(creator.to_owned()).or_default() += 1;
            self.user = Some(creator.to_owned());
        }
    }
}

impl Drop for ChannelPermit {
    fn drop(&mut self) {
        let mut used = self.counts.used.lock();
        used.lanes[self.lane] = used.lanes[self.lane].saturating_sub(1);
        let users = &mut used.users[self.lane / 2];
        if let Some(user) = &self.user
            && let Some(held) = users.get_mut(user)
        {
            *held -= 1;
            if *held == 0 {
                users.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::Channel;

    #[test]
    fn permits_are_reserved_for_urgent_and_all_returned() {
        let permits = PermitPool::new(64, 64);
        let take = |lane, share, want| {
            let taken = permits.take_for(&[LaneTurn { lane, share }], want);
            taken.map(|(_, permits)| permits).unwrap_or_default()
        };
        let lane = |priority| Lane::first(Channel::Email, priority);
        let low = take(lane(Priority::Low), 1.0, 100);
        let high = take(lane(Priority::High), 1.0, 100);
        let critical = take(lane(Priority::Critical), 1.0, 100);
        assert_eq!((low.len(), high.len(), critical.len()), (56, 4, 4));
        drop((low, high, critical));
        assert_eq!(permits.in_use(), 0);
        let repeats = take(lane(Priority::Normal).retries(), 0.25, 100);
        assert_eq!(repeats.len(), 16);
        assert_eq!(take(lane(Priority::Normal), 1.0, 100).len(), 40);
    }
    #[test]
    fn returned_permit_does_not_go_to_a_lower_lane() {
        let permits = PermitPool::new(1, 1);
        let turns = [Priority::Critical, Priority::High].map(|priority| LaneTurn {
            lane: Lane::first(Channel::Email, priority),
            share: 1.0,
        });
        let (back, coming) = std::sync::mpsc::channel::<Vec<ChannelPermit>>();
        let returning = std::thread::spawn(move || coming.into_iter().for_each(drop));
        for _ in 0..20_000 {
            let (turn, taken) = loop {
                if let Some(taken) = permits.take_for(&turns, 1) {
                    break taken;
                }
            };
            assert_eq!(turn, turns[0]);
            back.send(taken).expect("the receiver runs");
        }
        drop(back);
        returning.join().expect("no panic");
    }
}
