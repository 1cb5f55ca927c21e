//! The breaker between us and the pool: after some failures in a row calls fail at once, and one at a time tries
//! whether the pool is back. A pool that hangs costs its callers one deadline, not one each.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_cognitoidentityprovider::config::http::HttpResponse;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use postern_common::Clock;
use postern_common::clock::Timestamp;

use super::fault::Fault;

/// Failures in a row that close the gate.
const THRESHOLD: u32 = 3;
/// How long it stays closed; doubled by each try that fails, up to the second number.
const CLOSED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Lets calls through, or not.
#[derive(Debug)]
pub(crate) struct Gate {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    failures: u32,
    /// No call before this instant, once there were too many failures.
    closed_until: Timestamp,
    patience: Duration,
}

// === impl Gate ===

impl Gate {
    pub(crate) fn new(clock: Clock) -> Self {
        let state = State { failures: 0, closed_until: Timestamp(i64::MIN), patience: CLOSED.0 };
        Self { clock, state: Mutex::new(state) }
    }

    /// Makes the call, unless the gate is closed.
    pub(crate) async fn call<T, E: ProvideErrorMetadata>(
        &self,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Fault> {
        if !self.is_open() {
            return Err(Fault::Unavailable("it failed just now and was not asked"));
        }
        let outcome = Box::pin(call).await.map_err(|error| Fault::of(&error));
        self.note(matches!(outcome, Err(Fault::Unavailable(_))));
        outcome
    }

    /// The one that finds the time over tries; the others wait for its outcome.
    fn is_open(&self) -> bool {
        let mut state = self.lock();
        if state.failures < THRESHOLD {
            return true;
        }
        let now = self.clock.now();
        if now < state.closed_until {
            return false;
        }
        state.closed_until = now.plus(state.patience);
        true
    }

    fn note(&self, failed: bool) {
        let mut state = self.lock();
        if !failed {
            state.failures = 0;
            state.patience = CLOSED.0;
            return;
        }
        state.failures = state.failures.saturating_add(1);
        if state.failures >= THRESHOLD {
            state.closed_until = self.clock.now().plus(state.patience);
            state.patience = (state.patience * 2).min(CLOSED.1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_three_failures_one_at_a_time_tries() {
        let clock = Clock::manual(Timestamp(0));
        let gate = Gate::new(clock.clone());
        for _ in 0..3 {
            assert!(gate.is_open());
            gate.note(true);
        }
        assert!(!gate.is_open());
        clock.advance(Duration::from_millis(500));
        assert!(gate.is_open(), "the one that tries");
        assert!(!gate.is_open(), "the others wait");
        gate.note(true);
        clock.advance(Duration::from_millis(999));
        assert!(!gate.is_open(), "twice as long");
        clock.advance(Duration::from_millis(1));
        assert!(gate.is_open());
        gate.note(false);
        assert!(gate.is_open() && gate.is_open());
    }
}
