//! Exponential backoff with jitter.

use std::time::Duration;

/// Delays that double with each consecutive failure, from a first delay up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub initial: Duration,
    /// The maximum delay.
    pub max: Duration,
}

/// The delays of one series of failures.
#[derive(Debug)]
pub struct Delays {
    backoff: Backoff,
    failures: u32,
}

/// Doublings after which every delay in use has reached its maximum.
const MAX_DOUBLINGS: u32 = 31;

// === impl Backoff ===

impl Backoff {
    /// Creates a backoff from its first and its maximum delay.
    #[must_use]
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max }
    }

    /// Returns the delay after a number of consecutive failures, of which there is at least one.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// Returns the sequence of the delays after the first, the second, … failure.
    #[must_use]
    pub const fn delays(self) -> Delays {
        Delays {
            backoff: self,
            failures: 0,
        }
    }
}

// === impl Delays ===

impl Delays {
    /// Returns the delay after one more failure.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures)
    }
}

/// Returns `duration` reduced at random by up to the fraction `part`, so that simultaneous failures
/// are not repeated simultaneously; unchanged if the system has no random bytes.
#[must_use]
pub fn jittered(duration: Duration, part: f64) -> Duration {
    duration.mul_f64(1.0 - part + part * random_fraction())
}

/// Returns a random number from 0 to 1, both included; 1 if the system has no random bytes.
#[must_use]
pub fn random_fraction() -> f64 {
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

    #[test]
    fn delay_doubles_up_to_its_maximum() {
        let mut delays = BACKOFF.delays();
        let delays = [(); 7].map(|()| delays.next_delay().as_secs());
        assert_eq!(delays, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(BACKOFF.delay(0), BACKOFF.initial);
        assert_eq!(BACKOFF.delay(u32::MAX), BACKOFF.max);
        let unbounded = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(unbounded.delay(2), Duration::MAX);
    }

    #[test]
    fn jitter_reduces_by_at_most_its_part() {
        let whole = Duration::from_millis(100);
        let times: Vec<_> = std::iter::repeat_with(|| jittered(whole, 0.8))
            .take(1_000)
            .collect();
        assert!(times.iter().all(|time| (whole / 5..=whole).contains(time)));
        let early = times
            .iter()
            .filter(|time| **time < whole.mul_f64(0.6))
            .count();
        assert!(
            (300..700).contains(&early),
            "{early} of 1000 in the first half"
        );
        assert_eq!(jittered(whole, 0.0), whole);
    }
}
