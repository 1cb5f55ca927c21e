use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::delivery::pool::BreakerState;

/// Whether LOW flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LowPriorityThrottle {
    /// Like any other class.
    #[default]
    Off,
    /// With a share.
    Reduced,
    /// Not at all.
    Paused,
}

/// Closes under load at once, and opens step by step only after calm: without that it would swing.
#[derive(Debug)]
pub(crate) struct ThrottleController {
    clock: Clock,
    state: LowPriorityThrottle,
    /// Since when the load has asked for less than the present state.
    lower_load_since: Option<Timestamp>,
    /// The slowest claim since the last update.
    slowest_claim: Duration,
}

/// How long the load must be lower before the controller opens by one step.
const RECOVERY_TIME: Duration = Duration::from_secs(5);
/// Age of the oldest notification above LOW that waits: throttle, pause.
const OLDEST_WAITING_LIMITS: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(5));
/// Time of a claim: throttle, pause.
const CLAIM_TIME_LIMITS: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(1));

// === impl LowPriorityThrottle ===

impl LowPriorityThrottle {
    /// Why a LOW notification waits, in the status document.
    #[must_use]
    pub(crate) fn wait_reason(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::Reduced => Some("LOW_THROTTLED"),
            Self::Paused => Some("LOW_PAUSED"),
        }
    }

    /// For the metric: 0 open, 1 throttled, 2 paused.
    #[must_use]
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Reduced => 1,
            Self::Paused => 2,
        }
    }

    /// From the metric's number.
    #[must_use]
    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Off,
            1 => Self::Reduced,
            _ => Self::Paused,
        }
    }

    const fn next_lower(self) -> Self {
        match self {
            Self::Off | Self::Reduced => Self::Off,
            Self::Paused => Self::Reduced,
        }
    }
}

// === impl ThrottleController ===

impl ThrottleController {
    /// Open.
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: LowPriorityThrottle::Off,
            lower_load_since: None,
            slowest_claim: Duration::ZERO,
        }
    }

    /// The state since the last update.
    #[must_use]
    pub(crate) fn state(&self) -> LowPriorityThrottle {
        self.state
    }

    /// How long a claim took.
    pub(crate) fn record_claim(&mut self, took: Duration) {
        self.slowest_claim = self.slowest_claim.max(took);
    }

    /// Looks at the load: how long the oldest above LOW has waited, and how the providers stand.
    /// While they wait for one to see whether they work again, that may be a LOW: there may be
    /// nothing else.
    pub(crate) fn update(
        &mut self,
        oldest: Duration,
        providers: BreakerState,
    ) -> LowPriorityThrottle {
        let claim = std::mem::take(&mut self.slowest_claim);
        let wanted = if matches!(providers, BreakerState::Open(_))
            || oldest > OLDEST_WAITING_LIMITS.1
            || claim > CLAIM_TIME_LIMITS.1
        {
            LowPriorityThrottle::Paused
        } else if providers == BreakerState::HalfOpen
            || oldest > OLDEST_WAITING_LIMITS.0
            || claim > CLAIM_TIME_LIMITS.0
        {
            LowPriorityThrottle::Reduced
        } else {
            LowPriorityThrottle::Off
        };
        if wanted >= self.state {
            self.state = wanted;
            self.lower_load_since = None;
            return self.state;
        }
        let now = self.clock.now();
        let since = *self.lower_load_since.get_or_insert(now);
        if now.since(since) >= RECOVERY_TIME {
            self.state = self.state.next_lower();
            self.lower_load_since = Some(now);
        }
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_at_once_and_opens_step_by_step_after_calm() {
        let clock = Clock::manual(Timestamp(1));
        let mut controller = ThrottleController::new(clock.clone());
        assert_eq!(
            controller.update(Duration::from_secs(2), BreakerState::Closed),
            LowPriorityThrottle::Reduced
        );
        assert_eq!(
            controller.update(Duration::ZERO, BreakerState::Open(RECOVERY_TIME)),
            LowPriorityThrottle::Paused
        );
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.push(controller.update(Duration::ZERO, BreakerState::Closed));
            clock.advance(Duration::from_secs(1));
        }
        let expected = [
            [LowPriorityThrottle::Paused; 5],
            [LowPriorityThrottle::Reduced; 5],
        ]
        .concat();
        assert_eq!(seen[..10], expected[..]);
        assert_eq!(seen[10..], [LowPriorityThrottle::Off; 2]);
    }

    #[test]
    fn a_new_load_starts_the_calm_again() {
        let clock = Clock::manual(Timestamp(1));
        let mut controller = ThrottleController::new(clock.clone());
        controller.update(Duration::from_secs(9), BreakerState::Closed);
        controller.update(Duration::ZERO, BreakerState::Closed);
        clock.advance(Duration::from_secs(4));
        controller.update(Duration::from_secs(9), BreakerState::Closed);
        clock.advance(Duration::from_secs(4));
        controller.record_claim(Duration::from_secs(2));
        assert_eq!(
            controller.update(Duration::ZERO, BreakerState::Closed),
            LowPriorityThrottle::Paused
        );
    }

    #[test]
    fn providers_that_wait_for_a_probe_are_given_one_after_calm() {
        let clock = Clock::manual(Timestamp(1));
        let mut controller = ThrottleController::new(clock.clone());
        controller.update(Duration::ZERO, BreakerState::Open(RECOVERY_TIME));
        assert_eq!(
            controller.update(Duration::ZERO, BreakerState::HalfOpen),
            LowPriorityThrottle::Paused
        );
        for _ in 0..3 {
            clock.advance(RECOVERY_TIME);
            assert_eq!(
                controller.update(Duration::ZERO, BreakerState::HalfOpen),
                LowPriorityThrottle::Reduced
            );
        }
    }
}
