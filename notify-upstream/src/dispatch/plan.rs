//! The order in which lanes are claimed from.

use std::time::Duration;

use super::LowPriorityThrottle;
use crate::notification::{Lane, Priority};

/// What the dispatcher knows of the rows that wait in one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneBacklog {
    pub(crate) lane: Lane,
    /// Whether rows may be waiting.
    pub(crate) waiting: bool,
    /// The age of the oldest waiting row, if known.
    pub(crate) age: Option<Duration>,
}

/// A lane that may be claimed from, with its share of the permits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneTurn {
    pub(crate) lane: Lane,
    /// The share of all permits, 0 to 1.
    pub(crate) share: f64,
}

/// Share of all permits for the retries of one priority, so that a provider that fails every call
/// does not delay first attempts.
const RETRY_SHARE: f64 = 0.25;
/// Share of all permits for a priority that is promoted because it exceeds its maximum wait.
const PROMOTED_SHARE: f64 = 0.25;
/// Share of all permits for LOW while it is reduced.
const REDUCED_LOW_SHARE: f64 = 0.25;

/// Returns the maximum wait of a priority before it is promoted. CRITICAL has no higher priority,
/// and LOW has no limit.
fn max_wait(priority: Priority) -> Option<Duration> {
    match priority {
        Priority::Critical | Priority::Low => None,
        Priority::High => Some(Duration::from_secs(10)),
        Priority::Normal => Some(Duration::from_secs(120)),
    }
}

/// Returns the lanes to claim from, in order: CRITICAL; then a share for each priority that exceeds
/// its maximum wait; then HIGH, NORMAL and LOW. Within a priority, first attempts precede retries.
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
    let turn = |lane, share| LaneTurn { lane, share };
    let (critical, others): (Vec<Lane>, Vec<Lane>) = waiting()
        .map(|backlog| backlog.lane)
        .partition(|lane| lane.priority == Priority::Critical);
    let regular = |lane| Some(turn(lane, share(lane)?));
    let is_late = |backlog: &&LaneBacklog| {
        let max_wait = max_wait(backlog.lane.priority);
        max_wait.is_some_and(|max_wait| backlog.age > Some(max_wait))
    };
    let late = waiting().filter(is_late);
    let late = late.map(|backlog| turn(backlog.lane, PROMOTED_SHARE));
    let critical = critical.into_iter().filter_map(regular);
    let others = others.into_iter().filter_map(regular);
    critical.chain(late).chain(others).collect()
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
        fn order_is_strict_within_maximum_waits(waiting in any::<[bool; 8]>()) {
            let turns = plan_turns(&backlogs(waiting, [0; 8]), LowPriorityThrottle::Off);
            let order: Vec<usize> = turns.iter().map(|turn| turn.lane.index()).collect();
            let expected: Vec<usize> = (0..8).filter(|index| waiting[*index]).collect();
            prop_assert_eq!(order, expected);
        }

        #[test]
        fn critical_precedes_promoted_priorities(waiting in any::<[bool; 8]>(), age in any::<[u16; 8]>()) {
            let turns = plan_turns(&backlogs(waiting, age.map(u64::from)), LowPriorityThrottle::Off);
            let critical = turns.iter().rposition(|turn| turn.lane.priority == Priority::Critical);
            let other = turns.iter().position(|turn| turn.lane.priority != Priority::Critical);
            prop_assert!(critical.is_none() || other.is_none() || critical < other);
        }
    }

    #[test]
    fn late_priority_is_promoted_below_critical() {
        let waiting = [true, false, true, false, true, false, true, false];
        let backlogs = backlogs(waiting, [500, 0, 0, 0, 500, 0, 9999, 0]);
        let turns = plan_turns(&backlogs, LowPriorityThrottle::Off);
        let order = turns.iter().map(|turn| (turn.lane.priority, turn.share));
        let expected = [
            (Priority::Critical, 1.0),
            (Priority::Normal, 0.25),
            (Priority::High, 1.0),
            (Priority::Normal, 1.0),
            (Priority::Low, 1.0),
        ];
        assert_eq!(order.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn low_is_reduced_and_paused() {
        let waiting = [false, false, false, false, false, false, true, true];
        let shares = |low_throttle| {
            let turns = plan_turns(&backlogs(waiting, [0; 8]), low_throttle);
            turns.iter().map(|turn| turn.share).collect::<Vec<_>>()
        };
        assert_eq!(shares(LowPriorityThrottle::Off), [1.0, 0.25]);
        assert_eq!(shares(LowPriorityThrottle::Reduced), [0.25, 0.25]);
        assert!(shares(LowPriorityThrottle::Paused).is_empty());
    }
}
