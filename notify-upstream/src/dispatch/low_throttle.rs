use std::time::Duration;

use postern_core::Clock;
use postern_core::circuit_breaker::BreakerState;
use postern_core::clock::Timestamp;

/// The throttling of LOW notifications by load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LowPriorityThrottle {
    /// LOW is processed without a limit.
    #[default]
    Off,
    /// LOW is processed with a reduced share of the permits.
    Reduced,
    /// LOW is not processed.
    Paused,
}

/// Controls the throttle of one channel. Throttles at once under load and recovers one level at a
/// time after a stable period, which prevents oscillation.
pub(crate) struct ThrottleController {
    clock: Clock,
    pub(super) state: LowPriorityThrottle,
    /// The time since when the load has required less throttling than the current level.
    lower_load_since: Option<Timestamp>,
    /// The duration of the slowest claim since the last update.
    slowest_claim: Duration,
}

/// Time for which the load must be lower before the throttle is lowered by one level.
const RECOVERY_TIME: Duration = Duration::from_secs(5);
/// Age of the oldest waiting notification above LOW that reduces LOW, and that pauses it.
const OLDEST_WAITING_LIMITS: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(5));
/// Duration of a claim that reduces LOW, and that pauses it.
const CLAIM_TIME_LIMITS: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(1));

// === impl LowPriorityThrottle ===

impl LowPriorityThrottle {
    /// Returns the reason for the status document, if LOW is throttled.
    pub(crate) fn wait_reason(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::Reduced => Some("LOW_THROTTLED"),
            Self::Paused => Some("LOW_PAUSED"),
        }
    }

    /// Returns the level as exported by the metric: 0 off, 1 reduced, 2 paused.
    pub(crate) const fn code(self) -> i64 {
        self as i64
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
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: LowPriorityThrottle::Off,
            lower_load_since: None,
            slowest_claim: Duration::ZERO,
        }
    }

    pub(crate) fn record_claim(&mut self, took: Duration) {
        self.slowest_claim = self.slowest_claim.max(took);
    }

    /// Updates the throttle from the age of the oldest waiting notification above LOW and the
    /// circuit breakers of the channel. With half-open circuit breakers LOW is only reduced,
    /// because the probe may have to be a LOW notification.
    pub(crate) fn update(
        &mut self,
        oldest: Duration,
        providers: BreakerState,
    ) -> LowPriorityThrottle {
        let claim = std::mem::take(&mut self.slowest_claim);
        let by_providers = match providers {
            BreakerState::Closed => LowPriorityThrottle::Off,
            BreakerState::HalfOpen => LowPriorityThrottle::Reduced,
            BreakerState::Open(_) => LowPriorityThrottle::Paused,
        };
        let by_time = |time: Duration, limits: (Duration, Duration)| match time {
            _ if time > limits.1 => LowPriorityThrottle::Paused,
            _ if time > limits.0 => LowPriorityThrottle::Reduced,
            _ => LowPriorityThrottle::Off,
        };
        let by_age = by_time(oldest, OLDEST_WAITING_LIMITS);
        let wanted = by_providers
            .max(by_age)
            .max(by_time(claim, CLAIM_TIME_LIMITS));
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

    /// Checks the throttle after each step: the seconds since the one before, the age in seconds of
    /// the oldest row, and the circuit breaker.
    fn check(steps: &[(u64, u64, BreakerState, LowPriorityThrottle)]) {
        let clock = Clock::manual(Timestamp(1));
        let mut controller = ThrottleController::new(clock.clone());
        for (number, &(seconds, age_s, breaker, expected)) in steps.iter().enumerate() {
            clock.advance(Duration::from_secs(seconds));
            let found = controller.update(Duration::from_secs(age_s), breaker);
            assert_eq!(found, expected, "step {number}");
        }
    }

    #[test]
    fn throttle_rises_at_once_and_falls_by_levels() {
        use BreakerState::{Closed, HalfOpen, Open};
        use LowPriorityThrottle::{Off, Paused, Reduced};
        check(&[
            (0, 2, Closed, Reduced),
            (0, 0, Open(RECOVERY_TIME), Paused),
            (0, 0, Closed, Paused),
            (4, 0, Closed, Paused),
            (1, 0, Closed, Reduced),
            (4, 0, Closed, Reduced),
            (1, 0, Closed, Off),
            (9, 0, Closed, Off),
        ]);
        check(&[
            (0, 0, Open(RECOVERY_TIME), Paused),
            (0, 0, HalfOpen, Paused),
            (5, 0, HalfOpen, Reduced),
            (5, 0, HalfOpen, Reduced),
            (5, 0, HalfOpen, Reduced),
        ]);
    }

    #[test]
    fn new_load_restarts_the_recovery_time() {
        let clock = Clock::manual(Timestamp(1));
        let mut controller = ThrottleController::new(clock.clone());
        for (age_s, seconds) in [(9, 0), (0, 4), (9, 4)] {
            controller.update(Duration::from_secs(age_s), BreakerState::Closed);
            clock.advance(Duration::from_secs(seconds));
        }
        controller.record_claim(Duration::from_secs(2));
        let throttle = controller.update(Duration::ZERO, BreakerState::Closed);
        assert_eq!(throttle, LowPriorityThrottle::Paused);
    }
}
