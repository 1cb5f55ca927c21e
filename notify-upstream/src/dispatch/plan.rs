use std::time::Duration;

use super::GateState;
use crate::notification::{Lane, Priority};

/// What is seen of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// The lane.
    pub(crate) lane: Lane,
    /// Whether something may wait there.
    pub(crate) waiting: bool,
    /// How long the oldest has waited, if that is known.
    pub(crate) age: Option<Duration>,
}

/// A lane that may be claimed from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    /// The lane.
    pub(crate) lane: Lane,
    /// Its share of all permits, 0 to 1.
    pub(crate) share: f64,
}

/// Share of all permits that repeats of one priority may have: a provider that fails everything
/// does not keep first attempts waiting.
const REPEATS: f64 = 0.25;
/// Share that a late class gets beside the class above it.
const LATE: f64 = 0.25;
/// Share that LOW gets while it is throttled.
const THROTTLED: f64 = 0.25;

/// How long the oldest of a class may wait before the class is promoted; CRITICAL has nothing above
/// it, LOW no promise.
fn target(priority: Priority) -> Option<Duration> {
    match priority {
        Priority::Critical | Priority::Low => None,
        Priority::High => Some(Duration::from_secs(10)),
        Priority::Normal => Some(Duration::from_secs(120)),
    }
}

/// The lanes that may be claimed from, in order: CRITICAL; then a share for each class that is late
/// for its target; then HIGH, NORMAL and LOW. Within a priority first attempts come before repeats.
#[must_use]
pub(crate) fn plan(sights: &[Sight; Lane::PER_CHANNEL], gate: GateState) -> Vec<Turn> {
    let waiting = || sights.iter().filter(|sight| sight.waiting);
    let share = |lane: Lane| match (lane.retry, lane.priority, gate) {
        (_, Priority::Low, GateState::Paused) => None,
        (true, _, _) => Some(REPEATS),
        (false, Priority::Low, GateState::Throttled) => Some(THROTTLED),
        (false, _, _) => Some(1.0),
    };
    let regular = |wanted: fn(Priority) -> bool| {
        waiting()
            .filter(move |sight| wanted(sight.lane.priority))
            .filter_map(move |sight| {
                Some(Turn {
                    lane: sight.lane,
                    share: share(sight.lane)?,
                })
            })
    };
    let late = waiting()
        .filter(|sight| {
            sight
                .age
                .zip(target(sight.lane.priority))
                .is_some_and(|(age, target)| age > target)
        })
        .map(|sight| Turn {
            lane: sight.lane,
            share: LATE,
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

    fn sights(waiting: [bool; 8], age_s: [u64; 8]) -> [Sight; 8] {
        Lane::of(Channel::Email).map(|lane| Sight {
            lane,
            waiting: waiting[lane.index()],
            age: Some(Duration::from_secs(age_s[lane.index()])),
        })
    }

    proptest! {
        #[test]
        fn the_order_is_strict_while_nobody_is_late(waiting in any::<[bool; 8]>()) {
            let turns = plan(&sights(waiting, [0; 8]), GateState::Open);
            let order: Vec<usize> = turns.iter().map(|turn| turn.lane.index()).collect();
            let expected: Vec<usize> = (0..8).filter(|index| waiting[*index]).collect();
            prop_assert_eq!(order, expected);
        }

        #[test]
        fn critical_is_first_whoever_is_late(waiting in any::<[bool; 8]>(), age in any::<[u16; 8]>()) {
            let turns = plan(&sights(waiting, age.map(u64::from)), GateState::Open);
            let critical = turns.iter().rposition(|turn| turn.lane.priority == Priority::Critical);
            let other = turns.iter().position(|turn| turn.lane.priority != Priority::Critical);
            prop_assert!(critical.is_none() || other.is_none() || critical < other);
        }
    }

    #[test]
    fn a_late_class_is_promoted_below_critical_with_a_share() {
        let waiting = [true, false, true, false, true, false, true, false];
        let turns = plan(
            &sights(waiting, [500, 0, 0, 0, 500, 0, 9999, 0]),
            GateState::Open,
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
        let shares = |gate| {
            plan(&sights(waiting, [0; 8]), gate)
                .iter()
                .map(|turn| turn.share)
                .collect::<Vec<_>>()
        };
        assert_eq!(shares(GateState::Open), [1.0, 0.25]);
        assert_eq!(shares(GateState::Throttled), [0.25, 0.25]);
        assert!(shares(GateState::Paused).is_empty());
    }
}
