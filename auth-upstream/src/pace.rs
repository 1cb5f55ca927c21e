//! An attempt that is not looked at is answered after as long as one that is: otherwise the time would tell that
//! the limits hold somebody back, and with it who was tried before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::abuse::Door;
use crate::random;

/// How many durations are remembered for each door: recent enough to follow the load.
const MEMORY: usize = 64;
/// The timer counts whole milliseconds and is late rather than early; the rest is waited for in turns.
const COARSE: Duration = Duration::from_micros(1500);

/// How long the last wrong guesses took.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<BTreeMap<&'static str, VecDeque<Duration>>>);

// === impl Pace ===

impl Pace {
    /// A wrong guess was looked at and took so long.
    pub(crate) fn note(&self, door: Door, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = all.entry(door.name()).or_default();
        if recent.len() == MEMORY {
            recent.pop_front();
        }
        recent.push_back(took);
    }

    /// Waits until as much time has passed since `began` as one of the last guesses took, by chance.
    pub(crate) async fn keep(&self, door: Door, began: Instant) {
        let Some(took) = self.sample(door) else { return };
        let end = began + took;
        sleep_until(end.checked_sub(COARSE).unwrap_or(end)).await;
        while Instant::now() < end {
            tokio::task::yield_now().await;
        }
    }

    fn sample(&self, door: Door) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = all.get(door.name())?;
        let [chance] = random::bytes::<1>();
        recent.get(usize::from(chance) % recent.len().max(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_attempt_takes_as_long_as_one_of_the_last() {
        let pace = Pace::default();
        assert_eq!(pace.sample(Door::Password), None, "nothing is known yet");
        pace.note(Door::Password, COARSE);
        for _ in 0..MEMORY {
            pace.note(Door::Password, Duration::from_millis(90));
        }
        assert_eq!(pace.sample(Door::Password), Some(Duration::from_millis(90)));
        assert_eq!(pace.sample(Door::Reset), None);
    }
}
