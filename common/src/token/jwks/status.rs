use std::time::Duration;

use serde::Serialize;

use crate::clock::Timestamp;

/// The keys of one issuer as the admin listener shows them (`/jwks/status`).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JwksStatus {
    /// `iss`.
    pub issuer: String,
    /// Where the keys are fetched from.
    pub url: String,
    /// Whether tokens of this issuer can be verified now.
    pub usable: bool,
    /// The `kid`s in use.
    pub keys: Vec<String>,
    /// Keys of the set that cannot be used, with the reason.
    pub skipped: Vec<SkippedKey>,
    /// Seconds since the set in use was fetched.
    pub age_s: Option<u64>,
    /// When a fetch last succeeded in this process.
    pub last_success: Option<String>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// When it went wrong.
    pub last_error_at: Option<String>,
    /// When the next background refresh is due.
    pub next_refresh: String,
}

/// A key that a set has and that is not used.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SkippedKey {
    /// Its `kid`, where it has one.
    pub key_id: Option<String>,
    /// Why it is not used.
    pub reason: &'static str,
}

/// What became of the fetches, and when the next one is due.
pub(super) struct Progress {
    pub(super) due_at: Timestamp,
    pub(super) last_success: Option<Timestamp>,
    pub(super) last_error: Option<&'static str>,
    pub(super) last_error_at: Option<Timestamp>,
    failures: u32,
}

const REFRESH_MIN: Duration = Duration::from_secs(30);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

impl Progress {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            due_at: now,
            last_success: None,
            last_error: None,
            last_error_at: None,
            failures: 0,
        }
    }

    pub(super) fn last_attempt_succeeded(&self) -> bool {
        self.failures == 0 && self.last_success.is_some()
    }

    /// The next refresh comes after `lives`, less a jitter, so that a fleet does not come at once.
    pub(super) fn succeeded(&mut self, at: Timestamp, lives: Duration) {
        self.failures = 0;
        self.last_success = Some(at);
        self.due_at = at.plus(less_jitter(lives.max(REFRESH_MIN)));
    }

    /// The next attempt comes soon, then later and later up to a minute.
    pub(super) fn failed(&mut self, at: Timestamp, fault: &'static str) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(fault);
        self.last_error_at = Some(at);
        let backoff = Duration::from_secs(1 << self.failures.min(6)).min(BACKOFF_MAX);
        self.due_at = at.plus(less_jitter(backoff));
    }
}

/// Up to a fifth less. Without a random source the jitter is none, which is harmless.
fn less_jitter(duration: Duration) -> Duration {
    let fraction = getrandom::u32().map_or(0.0, |random| f64::from(random) / f64::from(u32::MAX));
    duration.mul_f64(1.0 - 0.2 * fraction)
}
