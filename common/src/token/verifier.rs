use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use futures_util::future::join_all;

use super::cache::{Cache, Outcome};
use super::jwk::Key;
use super::jwks::{JwksStatus, Settings, Source};
use super::jws::Jws;
use super::mark::Marker;
use super::strict::Object;
use super::trust::{self, Times, Trust};
use super::{Caller, Issuer, MAX_TOKEN_BYTES, Refusal};
use crate::clock::{Clock, Timestamp};

/// Verifies Bearer tokens of the trusted issuers. One per process, shared.
pub struct Verifier {
    settings: Settings,
    leeway_s: i64,
    negative_ttl: Duration,
    trusted: ArcSwap<Trusted>,
    /// Counts the changes of the trust; what was remembered under an earlier one is not used.
    generation: AtomicU32,
    marker: Marker,
    accepted: Cache,
    refused: Cache,
}

/// How a [`Verifier`] works. The defaults suit production.
#[derive(Clone, Debug)]
pub struct VerifierOptions {
    /// The time.
    pub clock: Clock,
    /// Bytes that remembered tokens may take; default 40 MiB, some 100,000 tokens. 0 remembers
    /// none.
    pub cache_bytes: usize,
    /// Where the last good keys are kept across restarts; default none.
    pub jwks_dir: Option<PathBuf>,
    /// How far `nbf` and `iat` may be ahead of the clock, in seconds; default and most 5 (the
    /// contract).
    pub leeway_s: u32,
    /// How long keys are used before a refresh if the issuer does not say; default 5 min.
    pub refresh: Duration,
    /// The longest that an issuer may say: a key that was removed verifies at most so long; default
    /// 15 min.
    pub refresh_max: Duration,
    /// How long the last good keys are used while the issuer is away; default 24 h. Then 503, never
    /// 401.
    pub max_staleness: Duration,
    /// Deadline of one fetch of keys; default 5 s.
    pub fetch_timeout: Duration,
    /// How many refetches unknown `kid`s may cause at once; default 4.
    pub refetch_burst: u32,
    /// How often they may cause one after that; default 1 s.
    pub refetch_interval: Duration,
    /// How long a refused token is remembered; default 5 s. A flood of one bad token costs no
    /// signature work.
    pub negative_ttl: Duration,
}

#[derive(Default)]
struct Trusted {
    generation: u32,
    issuers: Pools,
}

/// By `iss`.
type Pools = HashMap<Box<str>, Pool, ahash::RandomState>;

/// Whom to trust next, with keys that are there already: [`Verifier::prepare`].
pub struct Prepared(Pools);

#[derive(Clone)]
struct Pool {
    issuer: Issuer,
    trust: Arc<Trust>,
    source: Arc<Source>,
}

/// A leeway above this is refused by the contract.
const MAX_LEEWAY_S: u32 = 5;

/// Refused tokens may take at most this, or an eighth of the cache.
const MAX_REFUSED_BYTES: usize = 4 * 1024 * 1024;

/// The background refresh looks at least this often whether something is due.
const TICK: Duration = Duration::from_secs(5);

impl Default for VerifierOptions {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            cache_bytes: 40 * 1024 * 1024,
            jwks_dir: None,
            leeway_s: MAX_LEEWAY_S,
            refresh: Duration::from_secs(5 * 60),
            refresh_max: Duration::from_secs(15 * 60),
            max_staleness: Duration::from_secs(24 * 60 * 60),
            fetch_timeout: Duration::from_secs(5),
            refetch_burst: 4,
            refetch_interval: Duration::from_secs(1),
            negative_ttl: Duration::from_secs(5),
        }
    }
}

impl VerifierOptions {
    pub(super) fn into_settings(self) -> Settings {
        Settings {
            clock: self.clock,
            dir: self.jwks_dir,
            refresh: self.refresh,
            refresh_max: self.refresh_max,
            max_staleness: self.max_staleness,
            fetch_timeout: self.fetch_timeout,
            refetch_burst: self.refetch_burst,
            refetch_interval: self.refetch_interval,
        }
    }
}

// === impl Verifier ===

impl Verifier {
    /// A verifier that knows whom to trust and has no keys yet: they come with [`Verifier::run`],
    /// [`Verifier::refresh_now`], or the first token.
    ///
    /// # Panics
    /// If the system has no random bytes: nothing that is remembered would be safe.
    #[must_use]
    pub fn new(issuers: Vec<Issuer>, options: VerifierOptions) -> Arc<Self> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).expect("a system that serves has random bytes");
        let verifier = Self {
            leeway_s: options.leeway_s.min(MAX_LEEWAY_S).into(),
            negative_ttl: options.negative_ttl,
            trusted: ArcSwap::default(),
            generation: AtomicU32::new(0),
            marker: Marker::new(&secret),
            accepted: Cache::new(options.cache_bytes),
            refused: Cache::new((options.cache_bytes / 8).min(MAX_REFUSED_BYTES)),
            settings: options.into_settings(),
        };
        verifier.replace_issuers(issuers);
        Arc::new(verifier)
    }

    /// Changes whom to trust. Everything remembered is forgotten, unless nothing changes; the keys
    /// of an issuer that stays at its address stay.
    pub fn replace_issuers(&self, issuers: Vec<Issuer>) {
        self.adopt(Prepared(self.pools(issuers)));
    }

    /// Fetches the keys of issuers that are not trusted yet, so that they are there when
    /// [`Verifier::adopt`] changes the trust. One that does not answer within `fetch_timeout` is
    /// tried again later.
    pub async fn prepare(&self, issuers: Vec<Issuer>) -> Prepared {
        let pools = self.pools(issuers);
        let fresh = pools.values().filter(|pool| !pool.source.is_usable());
        join_all(fresh.map(|pool| pool.source.refresh())).await;
        Prepared(pools)
    }

    /// As [`Verifier::replace_issuers`].
    pub fn adopt(&self, Prepared(issuers): Prepared) {
        let before = self.trusted.load();
        let stays = |pool: &Pool| {
            before
                .issuers
                .get(pool.issuer.issuer.as_str())
                .is_some_and(|known| known.issuer == pool.issuer)
        };
        if issuers.len() == before.issuers.len() && issuers.values().all(stays) {
            return;
        }
        let generation = before.generation.wrapping_add(1);
        self.trusted.store(Arc::new(Trusted {
            generation,
            issuers,
        }));
        self.generation.store(generation, Ordering::Release);
    }

    fn pools(&self, issuers: Vec<Issuer>) -> Pools {
        let before = self.trusted.load();
        let pool = |issuer: Issuer| {
            let trust = Arc::new(Trust::new(&issuer));
            let known = before
                .issuers
                .get(issuer.issuer.as_str())
                .filter(|pool| *pool.source.url() == issuer.jwks_url);
            let source = match known {
                Some(pool) => Arc::clone(&pool.source),
                None => {
                    let (name, url) = (Arc::clone(&trust.issuer), issuer.jwks_url.clone());
                    Arc::new(Source::new(name, url, self.settings.clone()))
                }
            };
            (
                issuer.issuer.as_str().into(),
                Pool {
                    issuer,
                    trust,
                    source,
                },
            )
        };
        issuers.into_iter().map(pool).collect()
    }

    /// The outcome for a token that was seen before: no I/O, no signature work, no allocation.
    /// `None` says that
    /// [`Verifier::verify`] must look.
    #[must_use]
    pub fn verify_cached(&self, token: &str) -> Option<Result<Caller, Refusal>> {
        self.verify_cached_at(token, self.settings.clock.now())
    }

    /// As [`Verifier::verify_cached`], for a caller that has the time at hand: it is read once for
    /// a request.
    #[must_use]
    pub fn verify_cached_at(&self, token: &str, now: Timestamp) -> Option<Result<Caller, Refusal>> {
        if token.len() > MAX_TOKEN_BYTES {
            return Some(Err(Refusal::TooLong));
        }
        let (mark, generation) = (
            self.marker.mark(token),
            self.generation.load(Ordering::Acquire),
        );
        self.accepted
            .get(mark, now, generation)
            .or_else(|| self.refused.get(mark, now, generation))
    }

    /// Who is calling with this token. Waits only if the issuer's keys must be fetched for it.
    ///
    /// # Errors
    /// Why the token is refused; [`Refusal::KeysUnavailable`] says nothing about the token.
    pub async fn verify(&self, token: &str) -> Result<Caller, Refusal> {
        match self.verify_cached(token) {
            Some(outcome) => outcome,
            None => self.verify_unseen(token).await,
        }
    }

    /// As [`Verifier::verify`], for a token that [`Verifier::verify_cached`] has just not found: it
    /// is not looked for again.
    ///
    /// # Errors
    /// As [`Verifier::verify`].
    pub async fn verify_unseen(&self, token: &str) -> Result<Caller, Refusal> {
        let jws = Jws::read(token)?;
        let key_id = jws.key_id.as_deref().ok_or(Refusal::KeyIdMissing)?;
        let claims = jws.claims()?;
        let trusted = self.trusted.load_full();
        let pool = trusted
            .issuers
            .get(trust::text(&claims, "iss")?)
            .ok_or(Refusal::Issuer)?;
        let key = match pool.source.find(key_id) {
            Some(key) => Ok(key),
            None => pool.source.obtain(key_id).await,
        };
        let outcome = key.and_then(|key| Ok((self.judge(&jws, &claims, &key, &pool.trust)?, key)));
        self.remember(token, outcome, trusted.generation)
    }

    fn judge(
        &self,
        jws: &Jws<'_>,
        claims: &Object<'_>,
        key: &Key,
        trust: &Trust,
    ) -> Result<Caller, Refusal> {
        key.check(jws)?;
        trust::check_types(claims)?;
        let times = Times::read(claims)?;
        times.check(self.settings.clock.now().unix_seconds(), self.leeway_s)?;
        trust.decide(claims, times)
    }

    fn remember(
        &self,
        token: &str,
        outcome: Result<(Caller, Arc<Key>), Refusal>,
        generation: u32,
    ) -> Result<Caller, Refusal> {
        let mark = self.marker.mark(token);
        match outcome {
            Ok((caller, key)) => {
                self.accepted.insert(
                    mark,
                    Outcome::Accepted {
                        caller: caller.clone(),
                        key,
                    },
                    generation,
                );
                Ok(caller)
            }
            Err(refusal) => {
                if refusal.lasts() {
                    let until = self.settings.clock.now().plus(self.negative_ttl);
                    self.refused
                        .insert(mark, Outcome::Refused { refusal, until }, generation);
                }
                Err(refusal)
            }
        }
    }

    /// Keeps the keys fresh until the stop. Spawn it once per process.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        join_all(self.sources().iter().map(|source| source.warm())).await;
        while !shutdown.is_cancelled() {
            self.refresh_due().await;
            tokio::select! {
                () = tokio::time::sleep(self.next_look()) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// Fetches the keys of every issuer, due or not, and returns when all are done.
    pub async fn refresh_now(&self) {
        join_all(self.sources().iter().map(|source| source.refresh())).await;
    }

    /// Fetches the keys of the issuers that are due: one turn of [`Verifier::run`].
    pub async fn refresh_due(&self) {
        join_all(self.sources().iter().map(|source| source.refresh_if_due())).await;
    }

    fn next_look(&self) -> Duration {
        let now = self.settings.clock.now();
        let next = self
            .sources()
            .iter()
            .map(|source| source.due_at().since(now))
            .min();
        next.unwrap_or(TICK).clamp(Duration::from_millis(100), TICK)
    }

    /// Whether the tokens of this issuer can be verified.
    #[must_use]
    pub fn can_verify(&self, issuer: &str) -> bool {
        self.trusted
            .load()
            .issuers
            .get(issuer)
            .is_some_and(|pool| pool.source.is_usable())
    }

    /// The keys of every issuer, for the admin listener (`/jwks/status`), in the order of their
    /// names.
    #[must_use]
    pub fn status(&self) -> Vec<JwksStatus> {
        let mut all: Vec<JwksStatus> = self
            .sources()
            .iter()
            .map(|source| source.status())
            .collect();
        all.sort_by(|one, other| one.issuer.cmp(&other.issuer));
        all
    }

    /// Remembered tokens, and the bytes that they are counted with, for the metrics.
    #[must_use]
    pub fn cache_size(&self) -> (usize, usize) {
        let (accepted, refused) = (self.accepted.size(), self.refused.size());
        (accepted.0 + refused.0, accepted.1 + refused.1)
    }

    fn sources(&self) -> Vec<Arc<Source>> {
        self.trusted
            .load()
            .issuers
            .values()
            .map(|pool| Arc::clone(&pool.source))
            .collect()
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("issuers", &self.0.len())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier")
            .field("issuers", &self.trusted.load().issuers.len())
            .finish_non_exhaustive()
    }
}
