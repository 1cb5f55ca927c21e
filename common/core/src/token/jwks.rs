//! The keys of one issuer, refreshed in the background.
//!
//! Requests read a snapshot. A request waits only if its `kid` is not in the snapshot: one refetch,
//! shared by all waiting requests and limited by a budget, decides between an unknown key (401) and
//! unavailable keys (503).

mod disk;
mod document;
mod fetch;
mod keys;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jsonwebtoken::Algorithm;
use tokio::sync::{Mutex, OnceCell, Semaphore};
use url::Url;

use super::jwk::VerificationKey;
use super::{TokenError, VerifierOptions};
use crate::clock::Timestamp;
use crate::log_outage;
use document::JwksDocument;
use fetch::JwksFetcher;
pub use keys::PublicKeyInfo;
use status::FetchProgress;
pub use status::{JwksStatus, SkippedKey};

/// Refresh interval of keys without `Cache-Control: max-age`.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Maximum refresh interval, which bounds how long a removed key is accepted.
const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Maximum age of the last fetched keys while the issuer is unavailable. Then requests get 503, not
/// 401.
const MAX_STALENESS: Duration = Duration::from_secs(24 * 60 * 60);
/// Burst of refetches that unknown `kid`s may cause.
const REFETCH_BURST: u32 = 4;

pub(super) struct KeySource {
    issuer: Arc<str>,
    settings: VerifierOptions,
    fetcher: JwksFetcher,
    snapshot: ArcSwap<KeySnapshot>,
    /// Allows one fetch at a time.
    flight: Mutex<RefetchBudget>,
    /// Number of fetches started, and the number of the last one that completed. A request that
    /// waited through a fetch started after its arrival needs no other. A fetch that is cancelled
    /// with its request never completes.
    started_fetches: AtomicU64,
    completed_fetches: AtomicU64,
    wait_permits: Semaphore,
    loaded: OnceCell<()>,
    progress: parking_lot::Mutex<FetchProgress>,
}

/// Keys by `kid`.
type KeysById = HashMap<String, Arc<VerificationKey>, ahash::RandomState>;

#[derive(Default)]
struct KeySnapshot {
    keys: KeysById,
    unnamed: Vec<Arc<VerificationKey>>,
    skipped: Vec<SkippedKey>,
    fetched_at: Option<Timestamp>,
}

/// Token bucket for refetches caused by unknown `kid`s: one token per interval.
struct RefetchBudget {
    tokens: u32,
    refilled_at: Timestamp,
}

/// Maximum requests per issuer that wait for a refetch; further ones are answered with 503.
const MAX_WAITING: usize = 512;
/// Failed fetches per log event at `warn`, after the first one.
const FAILURES_PER_WARNING: u32 = 10;

// === impl KeySource ===

impl KeySource {
    pub(super) fn new(issuer: Arc<str>, url: Url, settings: VerifierOptions) -> Self {
        let now = settings.clock.now();
        Self {
            issuer,
            fetcher: JwksFetcher::new(url, settings.fetch_timeout),
            snapshot: ArcSwap::default(),
            flight: Mutex::new(RefetchBudget {
                tokens: REFETCH_BURST,
                refilled_at: now,
            }),
            started_fetches: AtomicU64::new(0),
            completed_fetches: AtomicU64::new(0),
            wait_permits: Semaphore::new(MAX_WAITING),
            loaded: OnceCell::new(),
            progress: parking_lot::Mutex::new(FetchProgress::new(now)),
            settings,
        }
    }

    pub(super) fn url(&self) -> &Url {
        &self.fetcher.url
    }

    /// Returns the key if it is in the snapshot and the snapshot is not too old.
    pub(super) fn find(&self, key_id: &str) -> Option<Arc<VerificationKey>> {
        let snapshot = self.snapshot.load();
        let key = snapshot.keys.get(key_id)?;
        let is_valid = key.is_valid_at(self.settings.clock.now());
        is_valid.then(|| Arc::clone(key))
    }

    /// Returns the key, after a refetch if necessary.
    pub(super) async fn obtain(&self, key_id: &str) -> Result<Arc<VerificationKey>, TokenError> {
        if let Some(key) = self.find(key_id) {
            return Ok(key);
        }
        let seen = self.started_fetches.load(Ordering::Acquire);
        let permit = self.wait_permits.try_acquire();
        let _permit = permit.map_err(|_| TokenError::KeysUnavailable)?;
        self.load_saved().await;
        let mut budget = self.flight.lock().await;
        if let Some(key) = self.find(key_id) {
            return Ok(key);
        }
        self.fetch_unless_completed_since(seen, &mut budget).await;
        self.find(key_id).ok_or_else(|| self.missing_key_error())
    }

    /// Returns the only key of an algorithm, for a token without `kid`. OpenID Connect Core 1.0
    /// section 10.1 requires `kid` only if the set has several keys.
    ///
    /// # Errors
    /// [`TokenError::KeyIdMissing`] if there are several keys of this algorithm.
    pub(super) fn only_key(
        &self,
        algorithm: Algorithm,
    ) -> Result<Arc<VerificationKey>, TokenError> {
        let (snapshot, now) = (self.snapshot.load(), self.settings.clock.now());
        let keys = snapshot.keys.values().chain(&snapshot.unnamed);
        let mut suitable = keys.filter(|key| key.algorithm == algorithm && key.is_valid_at(now));
        match (suitable.next(), suitable.next()) {
            (Some(key), None) => Ok(Arc::clone(key)),
            (Some(_), Some(_)) => Err(TokenError::KeyIdMissing),
            (None, _) => Err(self.missing_key_error()),
        }
    }

    /// Fetches again because no known key verifies a token, as [`KeySource::obtain`] does.
    pub(super) async fn refetch(&self) {
        let seen = self.started_fetches.load(Ordering::Acquire);
        let mut budget = self.flight.lock().await;
        self.fetch_unless_completed_since(seen, &mut budget).await;
    }

    /// Fetches, within the budget, unless a fetch that was started later than `seen` has completed.
    async fn fetch_unless_completed_since(&self, seen: u64, budget: &mut RefetchBudget) {
        if self.completed_fetches.load(Ordering::Acquire) > seen {
            return;
        }
        let interval = self.settings.refetch_interval;
        budget.refill(self.settings.clock.now(), interval);
        match budget.tokens {
            0 => tokio::time::sleep(interval).await,
            _ => budget.tokens -= 1,
        }
        self.fetch().await;
    }

    /// If the last fetch succeeded, the key does not exist. An older set does not decide that.
    fn missing_key_error(&self) -> TokenError {
        match self.progress.lock().last_attempt_succeeded() {
            true => TokenError::KeyUnknown,
            false => TokenError::KeysUnavailable,
        }
    }

    /// Fetches now, regardless of the schedule.
    pub(super) async fn refresh(&self) {
        self.load_saved().await;
        let _budget = self.flight.lock().await;
        self.fetch().await;
    }

    /// Fetches if a refresh is due. Of concurrent callers, one fetches.
    pub(super) async fn refresh_if_due(&self) {
        if !self.is_due() {
            return;
        }
        self.load_saved().await;
        let _budget = self.flight.lock().await;
        if self.is_due() {
            self.fetch().await;
        }
    }

    fn is_due(&self) -> bool {
        let pause = self.progress.lock().pause;
        !pause.contains(self.settings.clock.now())
    }

    /// Returns the time of the next background refresh.
    pub(super) fn due_at(&self) -> Timestamp {
        self.progress.lock().pause.until()
    }

    /// Returns whether there is a key set that is not too old.
    pub(super) fn is_usable(&self) -> bool {
        let fetched_at = self.snapshot.load().fetched_at;
        fetched_at.is_some_and(|at| self.settings.clock.now() < at.plus(MAX_STALENESS))
    }

    /// Loads the saved key set from disk once.
    pub(super) async fn load_saved(&self) {
        self.loaded.get_or_init(|| self.load_from_disk()).await;
    }

    async fn load_from_disk(&self) {
        let Some(dir) = &self.settings.jwks_dir else {
            return;
        };
        let Some(saved) = disk::load(dir, &self.issuer, self.url()).await else {
            return;
        };
        if let Ok(document) = JwksDocument::read(saved.body.as_bytes()) {
            let fetched_at = Timestamp(saved.fetched_at_ms).min(self.settings.clock.now());
            self.install(document, fetched_at);
        }
    }

    async fn fetch(&self) {
        let number = self.started_fetches.fetch_add(1, Ordering::AcqRel) + 1;
        let started_at = self.settings.clock.now();
        let fetched = self.fetcher.fetch().await;
        let outcome = fetched.and_then(|answer| Ok((JwksDocument::read(&answer.body)?, answer)));
        match outcome {
            Ok((document, answer)) => {
                self.install(document, started_at);
                let lifetime = answer.max_age.unwrap_or(REFRESH_INTERVAL);
                let lifetime = lifetime.min(MAX_REFRESH_INTERVAL);
                let failures = self.progress.lock().succeeded(started_at, lifetime);
                if failures > 0 {
                    let address = self.url().as_str();
                    tracing::info!(
                        issuer = &*self.issuer,
                        address,
                        failures,
                        "JWKS refresh recovered"
                    );
                }
                if let Some(dir) = &self.settings.jwks_dir {
                    disk::save(dir, &self.issuer, self.url(), started_at, &answer.body).await;
                }
            }
            Err(error) => {
                let failures = self.progress.lock().failed(started_at, error);
                let (issuer, address) = (&*self.issuer, self.url().as_str());
                if failures == 1 || failures.is_multiple_of(FAILURES_PER_WARNING) {
                    let cause = format!("keys of {issuer}");
                    log_outage!(
                        cause,
                        issuer,
                        address,
                        error,
                        failures,
                        "JWKS refresh failed"
                    );
                } else {
                    tracing::debug!(issuer, address, error, failures, "JWKS refresh failed");
                }
            }
        }
        self.completed_fetches.store(number, Ordering::Release);
    }

    /// Installs a key set as the snapshot. An unchanged key remains the same object, so that cached
    /// results of its tokens stay valid; a removed key stops verifying immediately.
    fn install(&self, document: JwksDocument, fetched_at: Timestamp) {
        let until = fetched_at.plus(MAX_STALENESS);
        let before = self.snapshot.load();
        let mut keys: KeysById = KeysById::default();
        for (key_id, key) in document.keys {
            let key = match before.keys.get(&key_id) {
                Some(known) if known.is_same_as(&key) => Arc::clone(known),
                Some(_) | None => {
                    key.set_first_seen(fetched_at);
                    Arc::new(key)
                }
            };
            key.extend_until(until);
            keys.insert(key_id, key);
        }
        let unnamed: Vec<_> = document.unnamed.into_iter().map(Arc::new).collect();
        unnamed.iter().for_each(|key| key.extend_until(until));
        let is_removed = |(key_id, known): &(&String, &Arc<VerificationKey>)| {
            let kept = keys.get(*key_id);
            !kept.is_some_and(|kept| Arc::ptr_eq(kept, known))
        };
        let removed: Vec<_> = before.keys.iter().filter(is_removed).collect();
        let added = keys.len() + removed.len() - before.keys.len();
        if added + removed.len() > 0 || document.skipped != before.skipped {
            let (issuer, count, skipped) = (&*self.issuer, keys.len(), document.skipped.len());
            tracing::info!(
                issuer,
                keys = count,
                added,
                removed = removed.len(),
                skipped,
                "JWKS keys changed"
            );
        }
        for (_, key) in removed {
            key.retire();
        }
        let skipped = document.skipped;
        self.snapshot.store(Arc::new(KeySnapshot {
            keys,
            unnamed,
            skipped,
            fetched_at: Some(fetched_at),
        }));
    }

    /// Returns the status with the `kid`s of the keys.
    pub(super) fn status(&self) -> JwksStatus {
        self.status_with(|key_id, _| key_id.to_owned())
    }

    pub(super) fn issuer_keys(&self) -> JwksStatus<PublicKeyInfo> {
        self.status_with(PublicKeyInfo::of)
    }

    fn status_with<K>(&self, describe: impl Fn(&str, &VerificationKey) -> K) -> JwksStatus<K> {
        let snapshot = self.snapshot.load();
        let mut keys: Vec<_> = snapshot.keys.iter().collect();
        keys.sort_by_key(|(key_id, _)| *key_id);
        let keys = keys.into_iter().map(|(key_id, key)| describe(key_id, key));
        let (fetched_at, now) = (snapshot.fetched_at, self.settings.clock.now());
        let progress = self.progress.lock();
        JwksStatus {
            issuer: self.issuer.to_string(),
            url: self.url().to_string(),
            usable: self.is_usable(),
            keys: keys.collect(),
            skipped: snapshot.skipped.clone(),
            age_s: fetched_at.map(|at| now.since(at).as_secs()),
            last_refresh: progress.last_success.map(|at| at.to_string()),
            last_error: progress.last_error.map(str::to_owned),
            last_error_at: progress.last_error_at.map(|at| at.to_string()),
            next_refresh: progress.pause.until().to_string(),
        }
    }
}

// === impl RefetchBudget ===

impl RefetchBudget {
    fn refill(&mut self, now: Timestamp, interval: Duration) {
        if now.is_set_back(self.refilled_at) {
            self.refilled_at = now;
        }
        let intervals = now.since(self.refilled_at).as_millis() / interval.as_millis().max(1);
        if intervals > 0 {
            let earned = u32::try_from(intervals).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(earned).min(REFETCH_BURST);
            self.refilled_at = now;
        }
    }
}
