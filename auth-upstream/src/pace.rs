//! An attempt that is not looked at is answered after as long as one that is: otherwise the time
//! would tell that the limits hold somebody back, and with it who was tried before. Both end on a
//! tick of the timer, which counts whole milliseconds, so that what lies below them tells nothing
//! either.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::abuse::Door;
use crate::random;

/// How many durations are remembered for each door: recent enough to follow the load.
const MEMORY: usize = 64;

/// How long the last wrong guesses took.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<BTreeMap<&'static str, VecDeque<Duration>>>);

// === impl Pace ===

impl Pace {
    /// A wrong guess was looked at: remembers how long that took, and waits for the next tick of
    /// the timer.
    pub(crate) async fn finish(&self, door: Door, began: Instant) {
        let now = Instant::now();
        self.note(door, now.duration_since(began));
        sleep_until(now).await;
    }

    /// Waits until as much time has passed since `began` as one of the last wrong guesses took, by
    /// chance.
    pub(crate) async fn pad(&self, door: Door, began: Instant) {
        let took = self.sample(door).unwrap_or_default();
        sleep_until(began + took).await;
    }

    fn note(&self, door: Door, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = all.entry(door.name()).or_default();
        if recent.len() == MEMORY {
            recent.pop_front();
        }
        recent.push_back(took);
    }

    fn sample(&self, door: Door) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = all.get(door.name())?;
        let [chance] = random::bytes::<1>();
        recent
            .get(usize::from(chance) % recent.len().max(1))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_held_attempt_takes_as_long_as_one_of_the_last() {
        let pace = Pace::default();
        assert_eq!(pace.sample(Door::Password), None, "nothing is known yet");
        pace.note(Door::Password, Duration::from_millis(1));
        for _ in 0..MEMORY {
            pace.note(Door::Password, Duration::from_millis(90));
        }
        assert_eq!(pace.sample(Door::Password), Some(Duration::from_millis(90)));
        assert_eq!(pace.sample(Door::Reset), None);
    }

    #[tokio::test]
    async fn waiting_is_left_to_the_timer() {
        let pace = Pace::default();
        pace.note(Door::Password, Duration::from_millis(50));
        let (began, mut polls) = (Instant::now(), 0);
        let mut waiting = pin!(pace.pad(Door::Password, began));
        poll_fn(|context| {
            polls += 1;
            waiting.as_mut().poll(context)
        })
        .await;
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert!(polls <= 3, "{polls} polls");
    }
}
