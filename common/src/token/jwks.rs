//! The keys of one issuer, kept fresh off the request path.
//!
//! A request reads a snapshot. It waits only when its `kid` is not in it: then one refetch, shared
//! by all who wait and bounded by a budget, decides between "no such key" (401) and "cannot tell"
//! (503).

mod disk;
mod document;
mod fetch;
mod status;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jsonwebtoken::Algorithm;
use jsonwebtoken::crypto::JwtVerifier as _;
use tokio::sync::{Mutex, OnceCell, Semaphore};
use url::Url;

use super::Refusal;
use super::jwk::Key;
use crate::clock::{Clock, Timestamp};
use document::Document;
use fetch::Fetcher;
use status::Progress;
pub use status::{JwksStatus, SkippedKey};

/// How the keys of every issuer are kept. See [`super::VerifierOptions`] for units and reasons.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) clock: Clock,
    pub(super) dir: Option<PathBuf>,
    pub(super) refresh: Duration,
    pub(super) refresh_max: Duration,
    pub(super) max_staleness: Duration,
    pub(super) fetch_timeout: Duration,
    pub(super) refetch_burst: u32,
    pub(super) refetch_interval: Duration,
}

/// The keys of one issuer.
pub(super) struct Source {
    issuer: Arc<str>,
    settings: Settings,
    fetcher: Fetcher,
    snapshot: ArcSwap<Snapshot>,
    /// Whoever holds it may fetch: single flight.
    flight: Mutex<Budget>,
    /// Fetches begun so far, and the number of the last one that ended: who waited through one that
    /// began after it asked needs no other. One that was given up with its request never ends.
    begun: AtomicU64,
    ended: AtomicU64,
    waiting: Semaphore,
    warmed: OnceCell<()>,
    progress: std::sync::Mutex<Progress>,
}

/// Keys by `kid`.
type Keys = HashMap<String, Arc<Key>, ahash::RandomState>;

#[derive(Default)]
struct Snapshot {
    keys: Keys,
    unnamed: Vec<Arc<Key>>,
    skipped: Vec<SkippedKey>,
    fetched_at: Option<Timestamp>,
}

/// Refetches that unknown `kid`s may cause: a bucket that fills by one each interval.
struct Budget {
    left: u32,
    filled_at: Timestamp,
}

/// Requests of one issuer that wait for a refetch at once; more are told to come back.
const MAX_WAITING: usize = 512;

/// What a request that cannot be decided is told, in seconds.
const RETRY_AFTER_S: u32 = 1;

const UNAVAILABLE: Refusal = Refusal::KeysUnavailable {
    retry_after_s: RETRY_AFTER_S,
};

// === impl Source ===

impl Source {
    pub(super) fn new(issuer: Arc<str>, url: Url, settings: Settings) -> Self {
        let now = settings.clock.now();
        Self {
            issuer,
            fetcher: Fetcher::new(url, settings.fetch_timeout),
            snapshot: ArcSwap::default(),
            flight: Mutex::new(Budget {
                left: settings.refetch_burst,
                filled_at: now,
            }),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            waiting: Semaphore::new(MAX_WAITING),
            warmed: OnceCell::new(),
            progress: std::sync::Mutex::new(Progress::new(now)),
            settings,
        }
    }

    pub(super) fn url(&self) -> &Url {
        self.fetcher.url()
    }

    /// The key, if the snapshot has it and is not too old.
    pub(super) fn find(&self, key_id: &str) -> Option<Arc<Key>> {
        let snapshot = self.snapshot.load();
        let key = snapshot.keys.get(key_id)?;
        key.is_good_at(self.settings.clock.now())
            .then(|| Arc::clone(key))
    }

    /// The key, after a refetch if it must be.
    pub(super) async fn obtain(&self, key_id: &str) -> Result<Arc<Key>, Refusal> {
        if let Some(key) = self.find(key_id) {
            return Ok(key);
        }
        let seen = self.begun.load(Ordering::Acquire);
        let _place = self.waiting.try_acquire().map_err(|_| UNAVAILABLE)?;
        self.warm().await;
        let mut budget = self.flight.lock().await;
        if let Some(key) = self.find(key_id) {
            return Ok(key);
        }
        if self.ended.load(Ordering::Acquire) <= seen {
            self.pay(&mut budget).await;
            self.fetch().await;
        }
        self.find(key_id).ok_or_else(|| self.verdict_on_absence())
    }

    /// The key for a token that names none: the only one of its algorithm. OpenID Connect Core 1.0
    /// section 10.1 demands a `kid` only where the set has several.
    ///
    /// # Errors
    /// [`Refusal::KeyIdMissing`] where there are several.
    pub(super) fn only(&self, algorithm: Algorithm) -> Result<Arc<Key>, Refusal> {
        let (snapshot, now) = (self.snapshot.load(), self.settings.clock.now());
        let keys = snapshot.keys.values().chain(&snapshot.unnamed);
        let mut suitable = keys.filter(|key| key.algorithm() == algorithm && key.is_good_at(now));
        match (suitable.next(), suitable.next()) {
            (Some(key), None) => Ok(Arc::clone(key)),
            (Some(_), Some(_)) => Err(Refusal::KeyIdMissing),
            (None, _) => Err(self.verdict_on_absence()),
        }
    }

    /// Fetches again for a token that no known key has signed, as [`Source::obtain`] does.
    pub(super) async fn refetch(&self) {
        let seen = self.begun.load(Ordering::Acquire);
        let mut budget = self.flight.lock().await;
        if self.ended.load(Ordering::Acquire) <= seen {
            self.pay(&mut budget).await;
            self.fetch().await;
        }
    }

    /// A set that was just read does not have the key: there is none. Any older set says nothing.
    fn verdict_on_absence(&self) -> Refusal {
        if self.progress().last_attempt_succeeded() {
            Refusal::KeyUnknown
        } else {
            UNAVAILABLE
        }
    }

    async fn pay(&self, budget: &mut Budget) {
        let interval = self.settings.refetch_interval;
        budget.fill(
            self.settings.clock.now(),
            interval,
            self.settings.refetch_burst,
        );
        if budget.left == 0 {
            tokio::time::sleep(interval).await;
        } else {
            budget.left -= 1;
        }
    }

    /// Fetches now, whatever is due.
    pub(super) async fn refresh(&self) {
        self.warm().await;
        let _budget = self.flight.lock().await;
        self.fetch().await;
    }

    /// Fetches if that is due; of many who come at once, one does.
    pub(super) async fn refresh_if_due(&self) {
        if !self.is_due() {
            return;
        }
        self.warm().await;
        let _budget = self.flight.lock().await;
        if self.is_due() {
            self.fetch().await;
        }
    }

    fn is_due(&self) -> bool {
        self.due_at() <= self.settings.clock.now()
    }

    /// When the next background refresh is due.
    pub(super) fn due_at(&self) -> Timestamp {
        self.progress().due_at
    }

    /// Whether there is a set that may verify.
    pub(super) fn is_usable(&self) -> bool {
        let fetched_at = self.snapshot.load().fetched_at;
        fetched_at
            .is_some_and(|at| self.settings.clock.now() < at.plus(self.settings.max_staleness))
    }

    /// Reads the last good set from disk, once, unless a fetch was first.
    pub(super) async fn warm(&self) {
        self.warmed.get_or_init(|| self.load_from_disk()).await;
    }

    async fn load_from_disk(&self) {
        let Some(dir) = &self.settings.dir else {
            return;
        };
        let Some(saved) = disk::load(dir, &self.issuer, self.url()).await else {
            return;
        };
        if let Ok(document) = Document::read(saved.body.as_bytes()) {
            let fetched_at = Timestamp(saved.fetched_at_ms).min(self.settings.clock.now());
            self.adopt(document, fetched_at);
        }
    }

    async fn fetch(&self) {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let started_at = self.settings.clock.now();
        let fetched = self.fetcher.fetch().await;
        let outcome = fetched.and_then(|answer| Ok((Document::read(&answer.body)?, answer)));
        match outcome {
            Ok((document, answer)) => {
                self.adopt(document, started_at);
                let lives = answer
                    .max_age
                    .unwrap_or(self.settings.refresh)
                    .min(self.settings.refresh_max);
                self.progress().succeeded(started_at, lives);
                if let Some(dir) = &self.settings.dir {
                    disk::save(dir, &self.issuer, self.url(), started_at, &answer.body).await;
                }
            }
            Err(fault) => {
                tracing::warn!(
                    issuer = &*self.issuer,
                    fault,
                    "the keys could not be refreshed"
                );
                self.progress().failed(started_at, fault);
            }
        }
        self.ended.store(number, Ordering::Release);
    }

    /// Makes a set the snapshot. A key that stayed the same stays the same object, so that what was
    /// verified with it stays remembered; one that is gone verifies nothing from this moment.
    fn adopt(&self, document: Document, fetched_at: Timestamp) {
        let until = fetched_at.plus(self.settings.max_staleness);
        let before = self.snapshot.load();
        let mut keys: Keys = Keys::default();
        for (key_id, key) in document.keys {
            let key = match before.keys.get(&key_id) {
                Some(known) if known.is_same_as(&key) => Arc::clone(known),
                Some(_) | None => Arc::new(key),
            };
            key.keep_until(until);
            keys.insert(key_id, key);
        }
        let unnamed: Vec<Arc<Key>> = document.unnamed.into_iter().map(Arc::new).collect();
        unnamed.iter().for_each(|key| key.keep_until(until));
        let stays = |key_id: &String, known: &Arc<Key>| {
            keys.get(key_id)
                .is_some_and(|kept| Arc::ptr_eq(kept, known))
        };
        let gone: Vec<&String> = before
            .keys
            .iter()
            .filter(|(key_id, known)| !stays(key_id, known))
            .map(|(key_id, _)| key_id)
            .collect();
        let come = keys.len() + gone.len() - before.keys.len();
        if come + gone.len() > 0 || document.skipped != before.skipped {
            let (issuer, count, skipped) = (&*self.issuer, keys.len(), document.skipped.len());
            tracing::info!(
                issuer,
                keys = count,
                come,
                gone = gone.len(),
                skipped,
                "the keys have changed"
            );
        }
        for key_id in gone {
            before.keys[key_id].retire();
        }
        let skipped = document.skipped;
        self.snapshot.store(Arc::new(Snapshot {
            keys,
            unnamed,
            skipped,
            fetched_at: Some(fetched_at),
        }));
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// For the admin listener.
    pub(super) fn status(&self) -> JwksStatus {
        let snapshot = self.snapshot.load();
        let mut keys: Vec<String> = snapshot.keys.keys().cloned().collect();
        keys.sort();
        let age = snapshot
            .fetched_at
            .map(|at| self.settings.clock.now().since(at).as_secs());
        let progress = self.progress();
        JwksStatus {
            issuer: self.issuer.to_string(),
            url: self.url().to_string(),
            usable: self.is_usable(),
            keys,
            skipped: snapshot.skipped.clone(),
            age_s: age,
            last_success: progress.last_success.map(|at| at.to_string()),
            last_error: progress.last_error.map(str::to_owned),
            last_error_at: progress.last_error_at.map(|at| at.to_string()),
            next_refresh: progress.due_at.to_string(),
        }
    }
}

// === impl Budget ===

impl Budget {
    fn fill(&mut self, now: Timestamp, interval: Duration, burst: u32) {
        let intervals = now.since(self.filled_at).as_millis() / interval.as_millis().max(1);
        if intervals > 0 {
            let earned = u32::try_from(intervals).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(burst);
            self.filled_at = now;
        }
    }
}
