//! The status of an issuer's keys for the admin listener.

use std::time::Duration;

use serde::Serialize;

use crate::backoff::{Backoff, Delays, jittered};
use crate::clock::{Period, Timestamp};

/// The status of one issuer's keys, as the admin listener shows it: with the `kid`s of the usable keys
/// (`/jwks/status`), or with the keys (`/admin/keys`).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JwksStatus<K = String> {
    /// `iss`.
    pub issuer: String,
    /// URL that the keys are fetched from.
    pub url: String,
    /// Whether tokens of this issuer can be verified.
    pub usable: bool,
    /// The usable keys, sorted by `kid`.
    pub keys: Vec<K>,
    /// Skipped keys, with the reason.
    pub skipped: Vec<SkippedKey>,
    /// Age of the key set in seconds.
    pub age_s: Option<u64>,
    /// Time of the last successful fetch of this process.
    pub last_refresh: Option<String>,
    /// Error of the last failed fetch.
    pub last_error: Option<String>,
    /// Time of the last failed fetch.
    pub last_error_at: Option<String>,
    /// Time of the next background refresh.
    pub next_refresh: String,
}

/// A key of the set that is not used.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SkippedKey {
    /// `kid`, if the key has one.
    pub key_id: Option<String>,
    /// The reason why the key is not used.
    pub reason: &'static str,
}

/// Results of the fetches, and the time of the next one.
pub(super) struct FetchProgress {
    /// Until the next fetch.
    pub(super) pause: Period,
    pub(super) last_success: Option<Timestamp>,
    pub(super) last_error: Option<&'static str>,
    pub(super) last_error_at: Option<Timestamp>,
    delays: Delays,
}

const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(30);
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
/// The part by which a lifetime is reduced at random, so that replicas do not fetch simultaneously.
const JITTER: f64 = 0.2;

impl FetchProgress {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            pause: Period::new(now, Duration::ZERO),
            last_success: None,
            last_error: None,
            last_error_at: None,
            delays: RETRY_DELAYS.delays(),
        }
    }

    pub(super) fn last_attempt_succeeded(&self) -> bool {
        self.delays.failures() == 0 && self.last_success.is_some()
    }

    /// Schedules the next refresh after `lifetime`, with jitter. Returns the number of failures
    /// since the last success.
    pub(super) fn succeeded(&mut self, at: Timestamp, lifetime: Duration) -> u32 {
        let failures = self.delays.failures();
        self.delays.reset();
        self.last_success = Some(at);
        self.pause = Period::new(at, jittered(lifetime.max(MIN_REFRESH_INTERVAL), JITTER));
        failures
    }

    /// Schedules the next attempt with exponential backoff and jitter. Returns the number of
    /// failures since the last success.
    pub(super) fn failed(&mut self, at: Timestamp, error: &'static str) -> u32 {
        self.last_error = Some(error);
        self.last_error_at = Some(at);
        self.pause = Period::new(at, self.delays.next_delay());
        self.delays.failures()
    }
}
