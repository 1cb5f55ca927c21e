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
#[derive(Debug)]
pub(crate) struct ThrottleController {
    clock: Clock,
    state: LowPriorityThrottle,
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
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Reduced => 1,
            Self::Paused => 2,
        }
    }

    /// Returns the throttle of a level.
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
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: LowPriorityThrottle::Off,
            lower_load_since: None,
            slowest_claim: Duration::ZERO,
        }
    }

    pub(crate) fn state(&self) -> LowPriorityThrottle {
        self.state
    }

    /// Records the duration of a claim.
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
    fn throttle_rises_at_once_and_falls_by_levels() {
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
    fn new_load_restarts_the_recovery_time() {
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
    fn half_open_breaker_reduces_low_after_recovery_time() {
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
