//! The retry policy: when a failed attempt is repeated.

use std::time::Duration;

use postern_core::backoff::Backoff;
use postern_core::clock::Timestamp;
use serde::Deserialize;

use crate::notification::Priority;

/// The class of a failure, which decides about further attempts. The table of error codes assigns
/// it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FailureClass {
    /// The attempt will fail again: the address or the message is invalid.
    Permanent,
    /// The attempt may succeed later.
    Transient,
    /// The provider asks for a lower rate.
    Throttled,
    /// The account or the settings are wrong: the attempt succeeds after an operator has corrected
    /// them.
    Configuration,
}

/// The retry policy of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    /// Maximum of the delay after each attempt.
    pub(crate) backoff: Backoff,
    /// Maximum number of attempts.
    pub(crate) attempts: i32,
    /// Maximum time from acceptance (or from the scheduled time, or from a replay) to the start of
    /// an attempt.
    pub(crate) window: Duration,
}

impl RetryPolicy {
    /// Returns the policy of a priority. Urgent notifications are retried sooner and given up
    /// sooner: a late sign-in code is useless.
    pub(crate) fn of(priority: Priority) -> Self {
        let (base_s, cap_s, attempts, window_s) = match priority {
            Priority::Critical => (1, 60, 30, 6 * 3600),
            Priority::High => (5, 300, 25, 24 * 3600),
            Priority::Normal => (15, 1800, 20, 72 * 3600),
            Priority::Low => (60, 3600, 15, 72 * 3600),
        };
        Self {
            backoff: Backoff::new(Duration::from_secs(base_s), Duration::from_secs(cap_s)),
            attempts,
            window: Duration::from_secs(window_s),
        }
    }

    /// Returns when attempt `attempt + 1` is due, or `None` if there is none. Exponential backoff
    /// with full jitter: `random` in 0..1 chooses a point of the whole delay, so that simultaneous
    /// failures are not repeated simultaneously. `at_least` is the provider's `Retry-After`.
    pub(crate) fn next_attempt(
        &self,
        attempt: i32,
        class: FailureClass,
        times: RetryTimes,
        random: f64,
    ) -> Option<Timestamp> {
        if class == FailureClass::Permanent || attempt >= self.attempts {
            return None;
        }
        let ceiling = self.backoff.delay(u32::try_from(attempt).unwrap_or(1));
        let floor = match class {
            FailureClass::Configuration => Duration::from_secs(60),
            FailureClass::Throttled => self.backoff.initial,
            FailureClass::Permanent | FailureClass::Transient => Duration::from_millis(100),
        };
        let wait = ceiling.mul_f64(random.clamp(0.0, 1.0)).max(floor);
        self.within(times, wait.max(times.at_least.unwrap_or_default()))
    }

    /// Returns when to check again a notification for which no provider could be called, because
    /// the circuit breakers are open for `left`. The delay grows with the time waited, so that long
    /// outages with many waiting notifications cost little. This is not an attempt; only the window
    /// bounds it.
    pub(crate) fn next_check(
        &self,
        left: Duration,
        times: RetryTimes,
        random: f64,
    ) -> Option<Timestamp> {
        let waited = times.now.since(times.began);
        let wait = (waited / 2).min(MAX_EXTRA_CHECK_DELAY);
        let wait = wait.mul_f64(random.clamp(0.0, 1.0));
        self.within(times, left.max(MIN_CHECK_DELAY) + wait)
    }

    fn within(&self, times: RetryTimes, wait: Duration) -> Option<Timestamp> {
        let earliest = times.earliest.plus(wait);
        let is_in_time = earliest <= times.began.plus(self.window)
            && times.expires_at.is_none_or(|end| earliest < end);
        is_in_time.then_some(times.now.plus(wait))
    }
}

/// Minimum delay of such a check, and maximum delay in addition to the time that the circuit
/// breakers are open.
const MIN_CHECK_DELAY: Duration = Duration::from_secs(1);
const MAX_EXTRA_CHECK_DELAY: Duration = Duration::from_secs(300);

/// The times that bound the next attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTimes {
    pub(crate) now: Timestamp,
    /// The same by the earlier of the clocks, which decides that the time is over.
    pub(crate) earliest: Timestamp,
    /// The time of acceptance, of the scheduled delivery, or of the last replay.
    pub(crate) began: Timestamp,
    /// The time at which the notification expires.
    pub(crate) expires_at: Option<Timestamp>,
    /// The provider's `Retry-After`.
    pub(crate) at_least: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn times(at_least: Option<Duration>) -> RetryTimes {
        RetryTimes {
            now: Timestamp(10_000),
            earliest: Timestamp(10_000),
            began: Timestamp(0),
            expires_at: None,
            at_least,
        }
    }

    proptest! {
        #[test]
        fn retry_delay_is_within_its_bounds(attempt in 1..40i32, random in 0.0..1.0f64, wish in 0..400u64) {
            for priority in Priority::ALL {
                let policy = RetryPolicy::of(priority);
                let at_least = Duration::from_secs(wish);
                match policy.next_attempt(attempt, FailureClass::Transient, times(Some(at_least)), random) {
                    Some(due) => {
                        let wait = due.since(Timestamp(10_000));
                        prop_assert!(wait >= at_least && wait <= policy.backoff.max.max(at_least));
                        prop_assert!(attempt < policy.attempts);
                    }
                    None => prop_assert!(attempt >= policy.attempts),
                }
            }
        }
    }

    #[test]
    fn delay_doubles_and_permanent_failures_are_not_retried() {
        let policy = RetryPolicy::of(Priority::Normal);
        let ended = RetryTimes {
            expires_at: Some(Timestamp(12_000)),
            ..times(None)
        };
        for (attempt, class, times, wait) in [
            (1, FailureClass::Transient, times(None), Some(15_000)),
            (2, FailureClass::Transient, times(None), Some(30_000)),
            (3, FailureClass::Transient, times(None), Some(60_000)),
            (19, FailureClass::Transient, times(None), Some(1_800_000)),
            (20, FailureClass::Transient, times(None), None),
            (1, FailureClass::Permanent, times(None), None),
            (1, FailureClass::Transient, ended, None),
        ] {
            let due = policy.next_attempt(attempt, class, times, 1.0);
            assert_eq!(due.map(|due| due.0 - 10_000), wait, "{attempt} {class:?}");
        }
    }
}
