//! Exponential backoff with jitter, for every call that is repeated after a failure.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Delays that double with each consecutive failure, from a first delay up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub initial: Duration,
    /// The maximum delay.
    pub max: Duration,
}

/// The delays of a loop that repeats a failing call. With jitter, so that the loops of several
/// replicas do not call at the same time.
#[derive(Debug)]
pub struct Delays {
    backoff: Backoff,
    failures: u32,
}

/// The part by which [`Delays`] are reduced at random.
const DELAY_JITTER: f64 = 0.5;

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

    /// Returns the delays of a loop that has not failed yet.
    #[must_use]
    pub const fn delays(self) -> Delays {
        Delays {
            backoff: self,
            failures: 0,
        }
    }

    /// Repeats a call while its outcome is a temporary failure, and returns the last outcome.
    pub async fn retry<T, F: Future<Output = T>>(
        self,
        max_attempts: u32,
        mut call: impl FnMut() -> F,
        is_temporary: impl Fn(&T) -> bool,
    ) -> T {
        let mut delays = self.delays();
        loop {
            let outcome = call().await;
            if delays.failures + 1 >= max_attempts || !is_temporary(&outcome) {
                return outcome;
            }
            sleep(delays.next_delay()).await;
        }
    }
}

// === impl Delays ===

impl Delays {
    /// Returns the delay after one more failure: that of [`Backoff::delay`] or, by chance, down to
    /// half of it.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        jittered(self.backoff.delay(self.failures), DELAY_JITTER)
    }

    /// Waits after one more failure. Returns `false` as soon as `stop` is cancelled.
    pub async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let delay = sleep(self.next_delay());
        stop.run_until_cancelled(delay).await.is_some()
    }

    /// Begins anew after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of failures since the last success.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
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
    use std::cell::Cell;

    use super::*;
    use tokio::time::Instant;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

    #[test]
    fn delay_doubles_up_to_its_maximum() {
        let delays = [1, 2, 3, 4, 5, 6, 7].map(|failures| BACKOFF.delay(failures).as_secs());
        assert_eq!(delays, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(BACKOFF.delay(0), BACKOFF.initial);
        assert_eq!(BACKOFF.delay(u32::MAX), BACKOFF.max);
        let unbounded = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(unbounded.delay(2), Duration::MAX);
    }

    #[test]
    fn delays_have_jitter_and_begin_anew_after_a_success() {
        let mut delays = BACKOFF.delays();
        for _ in 0..2 {
            for whole in [2, 4, 8, 16, 32, 60, 60].map(Duration::from_secs) {
                let delay = delays.next_delay();
                assert!((whole / 2..=whole).contains(&delay), "{delay:?}");
            }
            assert_eq!(delays.failures(), 7);
            delays.reset();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wait_ends_after_the_delay_or_at_the_shutdown() {
        let (mut delays, stop) = (BACKOFF.delays(), CancellationToken::new());
        let started_at = Instant::now();
        assert!(delays.wait(&stop).await);
        assert!((1.0..=2.01).contains(&started_at.elapsed().as_secs_f64()));
        let started_at = Instant::now();
        let shutdown = async {
            sleep(Duration::from_secs(1)).await;
            stop.cancel();
        };
        let (is_over, ()) = tokio::join!(delays.wait(&stop), shutdown);
        assert!(!is_over && !delays.wait(&stop).await);
        assert!((1.0..1.01).contains(&started_at.elapsed().as_secs_f64()));
    }

    #[tokio::test(start_paused = true)]
    async fn only_temporary_failures_are_retried() {
        for (failing_calls, expected_calls) in [(0, 1), (1, 2), (9, 3)] {
            let calls = Cell::new(0);
            let call = || {
                calls.set(calls.get() + 1);
                std::future::ready(calls.get())
            };
            let started_at = Instant::now();
            let outcome = BACKOFF.retry(3, call, |call| *call <= failing_calls).await;
            assert_eq!((outcome, calls.get()), (expected_calls, expected_calls));
            let longest = [0, 2, 6][expected_calls - 1];
            let waited_s = started_at.elapsed().as_secs_f64();
            assert!((0.5 * f64::from(longest)..=f64::from(longest) + 0.01).contains(&waited_s));
        }
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
