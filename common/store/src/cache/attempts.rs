//! Counters of attempts that are reserved before they are evaluated, with delays.
//!
//! An attempt is counted when it is admitted, so that concurrent attempts do not exceed a limit
//! that is read before and counted after. The count is given back when the attempt is released.
//! Each call changes one key atomically: one script over Redis, one lock in memory.

use std::time::Duration;

use uuid::Uuid;

use super::redis::{millis, script};
use super::{Cache, CacheError, CacheStore};
use postern_core::backoff::Backoff;
use postern_core::clock::Timestamp;

/// The limit of a counter of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptPolicy {
    /// Attempts in a window that cause no increasing delay: delays double with each one beyond.
    pub free: u64,
    /// The count from which on an attempt starts a delay.
    pub delayed_from: u64,
    /// Time after the first attempt for which attempts are counted.
    pub window: Duration,
    /// Delays of the attempts that start one.
    pub delays: Backoff,
}

/// An attempt that has been admitted and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptReservation {
    /// Attempts in the window, this one included.
    pub count: u64,
    token: String,
    /// Token of the first attempt of the window.
    era: String,
}

/// The outcome of a reserved attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The attempt remains counted. The delay for the number of failures starts now, unless a
    /// longer one has started.
    Failed,
    /// The attempt is no longer counted. A delay that it started ends, and one that later attempts
    /// started does not.
    Released,
}

/// A counter, stored as text: the fields in order, separated by spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AttemptState {
    era: String,
    failures: u64,
    /// Reserved attempts without an outcome.
    pending: u64,
    window_end: Timestamp,
    delayed_until: Timestamp,
    /// Token of the attempt that started the delay; `-` if a failure has confirmed it.
    holder: String,
}

/// The holder of a delay that a failure has confirmed, and of no delay.
const NO_HOLDER: &str = "-";

// === impl AttemptPolicy ===

impl AttemptPolicy {
    fn delay_after(&self, count: u64) -> Duration {
        let failures = u32::try_from(count.saturating_sub(self.free)).unwrap_or(u32::MAX);
        self.delays.delay(failures)
    }

    /// Returns the policy as arguments of a script.
    fn arguments(&self) -> [u64; 5] {
        let times = [self.window, self.delays.initial, self.delays.max];
        let [window, initial, max] = times.map(millis);
        [self.free, self.delayed_from, window, initial, max]
    }
}

// === impl AttemptState ===

impl AttemptState {
    fn parse(stored: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(stored).ok()?;
        let fields: Vec<&str> = text.split(' ').collect();
        let [era, failures, pending, window_end, delayed_until, holder] = fields[..] else {
            return None;
        };
        Some(Self {
            era: era.to_owned(),
            failures: failures.parse().ok()?,
            pending: pending.parse().ok()?,
            window_end: Timestamp(window_end.parse().ok()?),
            delayed_until: Timestamp(delayed_until.parse().ok()?),
            holder: holder.to_owned(),
        })
    }

    fn to_text(&self) -> String {
        format!(
            "{} {} {} {} {} {}",
            self.era,
            self.failures,
            self.pending,
            self.window_end.0,
            self.delayed_until.0,
            self.holder
        )
    }

    fn count(&self) -> u64 {
        self.failures.saturating_add(self.pending)
    }

    /// Returns the time until which the counter is stored. One at zero without a delay expires now.
    fn expiry(&self) -> Timestamp {
        if self.count() == 0 {
            return self.delayed_until;
        }
        self.window_end.max(self.delayed_until)
    }

    /// Reads a counter. If the clock was set back, the window is shortened to what the policy
    /// permits, and a delay beyond the maximum is void.
    fn read(stored: Option<&[u8]>, policy: &AttemptPolicy, now: Timestamp) -> Option<Self> {
        let mut state = Self::parse(stored?)?;
        state.window_end = state.window_end.min(now.plus(policy.window));
        if state.delayed_until > now.plus(policy.delays.max) {
            state.delayed_until = Timestamp(0);
        }
        Some(state)
    }

    /// Starts a window, with the delay of the last one, unless the present one continues.
    fn in_window(state: Option<Self>, era: &str, policy: &AttemptPolicy, now: Timestamp) -> Self {
        match state {
            Some(state) if now < state.window_end => state,
            other => Self {
                era: era.to_owned(),
                failures: 0,
                pending: 0,
                window_end: now.plus(policy.window),
                delayed_until: other.map_or(Timestamp(0), |other| other.delayed_until),
                holder: NO_HOLDER.to_owned(),
            },
        }
    }
}

/// Returns the counter with one more attempt, or `None` during a delay.
fn reserve(
    stored: Option<&[u8]>,
    token: &str,
    policy: &AttemptPolicy,
    now: Timestamp,
) -> Option<AttemptState> {
    let state = AttemptState::read(stored, policy, now);
    if state
        .as_ref()
        .is_some_and(|state| now < state.delayed_until)
    {
        return None;
    }
    let mut state = AttemptState::in_window(state, token, policy, now);
    state.pending += 1;
    if state.count() >= policy.delayed_from {
        state.delayed_until = now.plus(policy.delay_after(state.count()));
        token.clone_into(&mut state.holder);
    }
    Some(state)
}

/// Returns the counter with one more failure.
fn fail(
    stored: Option<&[u8]>,
    reservation: &AttemptReservation,
    policy: &AttemptPolicy,
    now: Timestamp,
) -> AttemptState {
    let state = AttemptState::read(stored, policy, now);
    let mut state = AttemptState::in_window(state, &reservation.token, policy, now);
    if state.era == reservation.era {
        state.pending = state.pending.saturating_sub(1);
    }
    state.failures += 1;
    if state.failures >= policy.delayed_from {
        let delayed_until = now.plus(policy.delay_after(state.failures));
        state.delayed_until = state.delayed_until.max(delayed_until);
        NO_HOLDER.clone_into(&mut state.holder);
    }
    state
}

/// Returns the counter without the attempt, or `None` if the window of the attempt has ended.
fn release(
    stored: Option<&[u8]>,
    reservation: &AttemptReservation,
    policy: &AttemptPolicy,
    now: Timestamp,
) -> Option<AttemptState> {
    let mut state = AttemptState::read(stored, policy, now)?;
    if state.era != reservation.era || now >= state.window_end {
        return None;
    }
    state.pending = state.pending.saturating_sub(1);
    let is_held = state.holder != NO_HOLDER;
    if state.holder == reservation.token || (is_held && state.count() < policy.delayed_from) {
        state.delayed_until = Timestamp(0);
        NO_HOLDER.clone_into(&mut state.holder);
    }
    Some(state)
}

// === impl Cache ===

impl Cache {
    /// Admits and counts an attempt. Returns `None` during a delay. Of concurrent callers at the
    /// end of a delay, one is admitted.
    ///
    /// # Errors
    /// As [`Cache::set`]; the attempt may have been counted.
    pub async fn reserve_attempt(
        &self,
        key: &str,
        policy: &AttemptPolicy,
    ) -> Result<Option<AttemptReservation>, CacheError> {
        let (key, token) = (self.key(key), Uuid::new_v4().simple().to_string());
        let reserved = match &self.0.store {
            CacheStore::Memory(memory) => memory.update(&key, |stored, now| {
                let state = reserve(stored, &token, policy, now);
                let reserved = state
                    .as_ref()
                    .map(|state| (state.count(), state.era.clone()));
                (
                    state.map(|state| (state.to_text(), state.expiry())),
                    reserved,
                )
            })?,
            CacheStore::Redis(redis) => {
                let mut script = script::RESERVE_ATTEMPT.key(key);
                script.arg(&token).arg(&policy.arguments());
                let (count, era): (u64, String) = redis.invoke(&script).await?;
                (count > 0).then_some((count, era))
            }
        };
        Ok(reserved.map(|(count, era)| AttemptReservation { count, token, era }))
    }

    /// Records the outcome of a reserved attempt, once.
    ///
    /// # Errors
    /// As [`Cache::set`]; the outcome may have been recorded.
    pub async fn settle_attempt(
        &self,
        key: &str,
        policy: &AttemptPolicy,
        reservation: &AttemptReservation,
        outcome: AttemptOutcome,
    ) -> Result<(), CacheError> {
        let key = self.key(key);
        match &self.0.store {
            CacheStore::Memory(memory) => memory.update(&key, |stored, now| {
                let state = match outcome {
                    AttemptOutcome::Failed => Some(fail(stored, reservation, policy, now)),
                    AttemptOutcome::Released => release(stored, reservation, policy, now),
                };
                (state.map(|state| (state.to_text(), state.expiry())), ())
            }),
            CacheStore::Redis(redis) => {
                let AttemptReservation { token, era, .. } = reservation;
                let is_failure = outcome == AttemptOutcome::Failed;
                let mut script = script::SETTLE_ATTEMPT.key(key);
                script.arg(token).arg(&policy.arguments()).arg(era);
                script.arg(if is_failure { "failed" } else { "released" });
                redis.invoke(&script).await.map(|_: i64| ())
            }
        }
    }

    /// Returns the number of attempts in the present window of a counter whose policy has no
    /// delays.
    pub async fn attempt_count(&self, key: &str) -> Result<u64, CacheError> {
        let stored = self.get(key).await?;
        let state = stored.and_then(|stored| AttemptState::parse(&stored));
        Ok(state.map_or(0, |state| state.count()))
    }
}
