//! Equal response times for evaluated and throttled attempts.
//!
//! Without padding, the fast response to a throttled attempt would reveal that the limits apply,
//! and so which accounts were tried before. Both kinds of responses end on a tick of the timer,
//! which counts whole milliseconds, so that differences below a millisecond are hidden as well.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::AttemptKind;
use crate::crypto::random;

/// The number of recent durations kept for each kind of attempt; few, to follow the load.
const SAMPLES_PER_KIND: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct ResponseTimePadding(Mutex<BTreeMap<&'static str, VecDeque<Duration>>>);

// === impl ResponseTimePadding ===

impl ResponseTimePadding {
    /// Records the duration of a failed attempt that was evaluated, and waits for the next tick of
    /// the timer.
    pub(crate) async fn record(&self, kind: AttemptKind, started_at: Instant) {
        let now = Instant::now();
        self.add_sample(kind, now.duration_since(started_at));
        sleep_until(now).await;
    }

    /// Waits until as much time has passed since `started_at` as a recent failed attempt took that
    /// is chosen at random.
    pub(crate) async fn pad(&self, kind: AttemptKind, started_at: Instant) {
        let duration = self.random_sample(kind).unwrap_or_default();
        sleep_until(started_at + duration).await;
    }

    fn add_sample(&self, kind: AttemptKind, duration: Duration) {
        let mut samples = self.0.lock();
        let recent = samples.entry(kind.name()).or_default();
        if recent.len() == SAMPLES_PER_KIND {
            recent.pop_front();
        }
        recent.push_back(duration);
    }

    fn random_sample(&self, kind: AttemptKind) -> Option<Duration> {
        let samples = self.0.lock();
        let recent = samples.get(kind.name())?;
        let [index] = random::bytes::<1>();
        recent
            .get(usize::from(index) % recent.len().max(1))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use super::*;

    #[test]
    fn padding_is_a_recent_duration_of_the_same_kind() {
        let padding = ResponseTimePadding::default();
        assert_eq!(padding.random_sample(AttemptKind::Password), None);
        padding.add_sample(AttemptKind::Password, Duration::from_millis(1));
        for _ in 0..SAMPLES_PER_KIND {
            padding.add_sample(AttemptKind::Password, Duration::from_millis(90));
        }
        assert_eq!(
            padding.random_sample(AttemptKind::Password),
            Some(Duration::from_millis(90))
        );
        assert_eq!(padding.random_sample(AttemptKind::ResetCode), None);
    }

    #[tokio::test]
    async fn padding_waits_on_the_timer_without_polling() {
        let padding = ResponseTimePadding::default();
        padding.add_sample(AttemptKind::Password, Duration::from_millis(50));
        let (started_at, mut polls) = (Instant::now(), 0);
        let mut waiting = pin!(padding.pad(AttemptKind::Password, started_at));
        poll_fn(|context| {
            polls += 1;
            waiting.as_mut().poll(context)
        })
        .await;
        assert!(started_at.elapsed() >= Duration::from_millis(50));
        assert!(polls <= 3, "{polls} polls");
    }
}
