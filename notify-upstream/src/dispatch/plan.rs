use std::time::Duration;

use super::LowPriorityThrottle;
use crate::notification::{Lane, Priority};

/// What is seen of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneBacklog {
    /// The lane.
    pub(crate) lane: Lane,
    /// Whether something may wait there.
    pub(crate) waiting: bool,
    /// How long the oldest has waited, if that is known.
    pub(crate) age: Option<Duration>,
}

/// A lane that may be claimed from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneTurn {
    /// The lane.
    pub(crate) lane: Lane,
    /// Its share of all permits, 0 to 1.
    pub(crate) share: f64,
}

/// Share of all permits that repeats of one priority may have: a provider that fails everything
/// does not keep first attempts waiting.
const RETRY_SHARE: f64 = 0.25;
/// Share that a late class gets beside the class above it.
const PROMOTED_SHARE: f64 = 0.25;
/// Share that LOW gets while it is throttled.
const REDUCED_LOW_SHARE: f64 = 0.25;

/// How long the oldest of a class may wait before the class is promoted; CRITICAL has nothing above
/// it, LOW no promise.
fn max_wait(priority: Priority) -> Option<Duration> {
    match priority {
        Priority::Critical | Priority::Low => None,
        Priority::High => Some(Duration::from_secs(10)),
        Priority::Normal => Some(Duration::from_secs(120)),
    }
}

/// The lanes that may be claimed from, in order: CRITICAL; then a share for each class that is late
/// for its max_wait; then HIGH, NORMAL and LOW. Within a priority first attempts come before
/// repeats.
#[must_use]
pub(crate) fn plan_turns(
    backlogs: &[LaneBacklog; Lane::PER_CHANNEL],
    low_throttle: LowPriorityThrottle,
) -> Vec<LaneTurn> {
    let waiting = || backlogs.iter().filter(|backlog| backlog.waiting);
    let share = |lane: Lane| match (lane.retry, lane.priority, low_throttle) {
        (_, Priority::Low, LowPriorityThrottle::Paused) => None,
        (true, _, _) => Some(RETRY_SHARE),
        (false, Priority::Low, LowPriorityThrottle::Reduced) => Some(REDUCED_LOW_SHARE),
        (false, _, _) => Some(1.0),
    };
    let regular = |wanted: fn(Priority) -> bool| {
        waiting()
            .filter(move |backlog| wanted(backlog.lane.priority))
            .filter_map(move |backlog| {
                Some(LaneTurn {
                    lane: backlog.lane,
                    share: share(backlog.lane)?,
                })
            })
    };
    let late = waiting()
        .filter(|backlog| {
            backlog
                .age
                .zip(max_wait(backlog.lane.priority))
                .is_some_and(|(age, max_wait)| age > max_wait)
        })
        .map(|backlog| LaneTurn {
            lane: backlog.lane,
            share: PROMOTED_SHARE,
        });
    let critical = regular(|priority| priority == Priority::Critical);
    critical
        .chain(late)
        .chain(regular(|priority| priority != Priority::Critical))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::Channel;
    use proptest::prelude::*;

    fn backlogs(waiting: [bool; 8], age_s: [u64; 8]) -> [LaneBacklog; 8] {
        Lane::of(Channel::Email).map(|lane| LaneBacklog {
            lane,
            waiting: waiting[lane.index()],
            age: Some(Duration::from_secs(age_s[lane.index()])),
        })
    }

    proptest! {
        #[test]
        fn the_order_is_strict_while_nobody_is_late(waiting in any::<[bool; 8]>()) {
            let turns = plan_turns(&backlogs(waiting, [0; 8]), LowPriorityThrottle::Off);
            let order: Vec<usize> = turns.iter().map(|turn| turn.lane.index()).collect();
            let expected: Vec<usize> = (0..8).filter(|index| waiting[*index]).collect();
            prop_assert_eq!(order, expected);
        }

        #[test]
        fn critical_is_first_whoever_is_late(waiting in any::<[bool; 8]>(), age in any::<[u16; 8]>()) {
            let turns = plan_turns(&backlogs(waiting, age.map(u64::from)), LowPriorityThrottle::Off);
            let critical = turns.iter().rposition(|turn| turn.lane.priority == Priority::Critical);
            let other = turns.iter().position(|turn| turn.lane.priority != Priority::Critical);
            prop_assert!(critical.is_none() || other.is_none() || critical < other);
        }
    }

    #[test]
    fn a_late_class_is_promoted_below_critical_with_a_share() {
        let waiting = [true, false, true, false, true, false, true, false];
        let turns = plan_turns(
            &backlogs(waiting, [500, 0, 0, 0, 500, 0, 9999, 0]),
            LowPriorityThrottle::Off,
        );
        let order: Vec<_> = turns
            .iter()
            .map(|turn| (turn.lane.priority, turn.share))
            .collect();
        assert_eq!(
            order,
            [
                (Priority::Critical, 1.0),
                (Priority::Normal, 0.25),
                (Priority::High, 1.0),
                (Priority::Normal, 1.0),
                (Priority::Low, 1.0)
            ]
        );
    }

    #[test]
    fn low_is_throttled_and_paused() {
        let waiting = [false, false, false, false, false, false, true, true];
        let shares = |low_throttle| {
            plan_turns(&backlogs(waiting, [0; 8]), low_throttle)
                .iter()
                .map(|turn| turn.share)
                .collect::<Vec<_>>()
        };
        assert_eq!(shares(LowPriorityThrottle::Off), [1.0, 0.25]);
        assert_eq!(shares(LowPriorityThrottle::Reduced), [0.25, 0.25]);
        assert!(shares(LowPriorityThrottle::Paused).is_empty());
    }
}
