//! Verification of Bearer tokens.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use arc_swap::ArcSwap;
use futures_util::future::join_all;

use super::cache::{CachedResult, TokenCache};
use super::digest::{TokenDigest, TokenHasher};
use super::jwk::VerificationKey;
use super::jwks::{JwksStatus, KeySource, PublicKeyInfo};
use super::jws::CompactJws;
use super::strict_json::StrictObject;
use super::trust::{self, IssuerTrust, TokenTimes};
use super::{Caller, Issuer, TokenError, TokenLimits};
use crate::clock::{Clock, Period, Timestamp};
use crate::log_limited;

/// Verifies Bearer tokens of the trusted issuers. One instance per process.
pub struct Verifier {
    options: VerifierOptions,
    trusted: ArcSwap<TrustedIssuers>,
    /// Incremented by each change of the trusted issuers; cached results of earlier generations are
    /// ignored.
    generation: AtomicU32,
    hasher: TokenHasher,
    accepted: TokenCache,
    rejected: TokenCache,
}

/// Options of a [`Verifier`]. The defaults suit production.
#[derive(Clone, Debug)]
pub struct VerifierOptions {
    /// Clock for `exp`, `nbf`, `iat` and key ages.
    pub clock: Clock,
    /// Maximum bytes of the token cache. Default 40 MiB, about 100,000 tokens. 0 disables the
    /// cache.
    pub cache_bytes: usize,
    /// Directory in which key sets are saved across restarts. Default none.
    pub jwks_dir: Option<PathBuf>,
    /// Limits of the tokens.
    pub limits: TokenLimits,
    /// Timeout of one fetch. Default 5 s.
    pub fetch_timeout: Duration,
    /// Interval between refetches that unknown `kid`s cause, after a burst. Default 1 s.
    pub refetch_interval: Duration,
}

#[derive(Default)]
struct TrustedIssuers {
    generation: u32,
    issuers: PoolsByIssuer,
}

/// Issuers by `iss`.
type PoolsByIssuer = HashMap<Box<str>, TrustedPool, ahash::RandomState>;

/// New trusted issuers with their keys, see [`Verifier::prepare`].
pub struct PreparedIssuers(PoolsByIssuer);

#[derive(Clone)]
struct TrustedPool {
    issuer: Issuer,
    trust: Arc<IssuerTrust>,
    source: Arc<KeySource>,
}

/// Maximum cache bytes for rejected tokens, or an eighth of the cache if that is less.
const MAX_REFUSED_BYTES: usize = 4 * 1024 * 1024;

/// Time for which a rejected token is cached, so that repeated invalid tokens cost no signature
/// verification.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// Maximum length of a `kid` in the log, which a client chooses.
const MAX_LOGGED_KEY_ID_CHARS: usize = 64;

/// Maximum interval between two checks for due refreshes.
const MAX_REFRESH_CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Default for VerifierOptions {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            cache_bytes: 40 * 1024 * 1024,
            jwks_dir: None,
            limits: TokenLimits::default(),
            fetch_timeout: Duration::from_secs(5),
            refetch_interval: Duration::from_secs(1),
        }
    }
}

impl Verifier {
    /// Returns the leeway for times of tokens.
    #[must_use]
    pub fn leeway(&self) -> Duration {
        self.options.limits.leeway
    }

    /// Creates a verifier without keys. They are fetched by [`Verifier::run`],
    /// [`Verifier::refresh_now`], or for the first token.
    ///
    /// # Panics
    /// If the system has no random bytes, without which the cache would be unsafe.
    #[must_use]
    pub fn new(issuers: Vec<Issuer>, options: VerifierOptions) -> Arc<Self> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).expect("the system provides random bytes");
        let verifier = Self {
            trusted: ArcSwap::default(),
            generation: AtomicU32::new(0),
            hasher: TokenHasher::new(&secret),
            accepted: TokenCache::new(options.cache_bytes),
            rejected: TokenCache::new((options.cache_bytes / 8).min(MAX_REFUSED_BYTES)),
            options,
        };
        verifier.adopt(PreparedIssuers(verifier.pools(issuers)));
        Arc::new(verifier)
    }

    /// Fetches the keys of new issuers ahead of [`Verifier::adopt`]. An issuer that does not
    /// respond within `fetch_timeout` is retried later.
    pub async fn prepare(&self, issuers: Vec<Issuer>) -> PreparedIssuers {
        let pools = self.pools(issuers);
        let new_pools = pools.values().filter(|pool| !pool.source.is_usable());
        join_all(new_pools.map(|pool| pool.source.refresh())).await;
        PreparedIssuers(pools)
    }

    /// Replaces the trusted issuers. Cached results are discarded if an issuer changes; keys are
    /// kept for issuers whose JWKS URL is unchanged.
    pub fn adopt(&self, PreparedIssuers(issuers): PreparedIssuers) {
        let before = self.trusted.load();
        let is_unchanged = |pool: &TrustedPool| {
            let known = before.issuers.get(pool.issuer.issuer.as_str());
            known.is_some_and(|known| known.issuer == pool.issuer)
        };
        if issuers.len() == before.issuers.len() && issuers.values().all(is_unchanged) {
            return;
        }
        let generation = before.generation.wrapping_add(1);
        self.trusted.store(Arc::new(TrustedIssuers {
            generation,
            issuers,
        }));
        self.generation.store(generation, Ordering::Release);
    }

    fn pools(&self, issuers: Vec<Issuer>) -> PoolsByIssuer {
        let before = self.trusted.load();
        let pool = |issuer: Issuer| {
            let trust = Arc::new(IssuerTrust::new(&issuer));
            let known = before.issuers.get(issuer.issuer.as_str());
            let source = match known.filter(|pool| *pool.source.url() == issuer.jwks_url) {
                Some(pool) => Arc::clone(&pool.source),
                None => {
                    let (name, url) = (Arc::clone(&trust.issuer), issuer.jwks_url.clone());
                    Arc::new(KeySource::new(name, url, self.options.clone()))
                }
            };
            let name = issuer.issuer.as_str().into();
            let pool = TrustedPool {
                issuer,
                trust,
                source,
            };
            (name, pool)
        };
        issuers.into_iter().map(pool).collect()
    }

    /// Returns the cached result for a token, without I/O, signature verification or allocation.
    /// Returns `None` if [`Verifier::verify`] must decide.
    #[must_use]
    pub fn verify_cached(&self, token: &str) -> Option<Result<Caller, TokenError>> {
        if let Err(error) = self.options.limits.check_length(token) {
            return Some(Err(error));
        }
        self.find_cached(self.hasher.digest(token), self.options.clock.now())
    }

    fn find_cached(
        &self,
        digest: TokenDigest,
        now: Timestamp,
    ) -> Option<Result<Caller, TokenError>> {
        let generation = self.generation.load(Ordering::Acquire);
        let accepted = self.accepted.get(digest, now, generation);
        accepted.or_else(|| self.rejected.get(digest, now, generation))
    }

    /// Verifies a token and returns the caller. Waits only if the issuer's keys must be fetched.
    ///
    /// # Errors
    /// Returns the reason why the token is rejected. [`TokenError::KeysUnavailable`] says nothing
    /// about the token.
    pub async fn verify(&self, token: &str) -> Result<Caller, TokenError> {
        self.verify_at(token, self.options.clock.now()).await
    }

    /// As [`Verifier::verify`], with the time of the request for cached results.
    pub async fn verify_at(&self, token: &str, now: Timestamp) -> Result<Caller, TokenError> {
        self.options.limits.check_length(token)?;
        let digest = self.hasher.digest(token);
        match self.find_cached(digest, now) {
            Some(outcome) => outcome,
            None => self.verify_unseen(token, digest).await,
        }
    }

    async fn verify_unseen(&self, token: &str, digest: TokenDigest) -> Result<Caller, TokenError> {
        let jws = CompactJws::read(token)?;
        let key_id = jws.key_id.as_deref().ok_or(TokenError::KeyIdMissing)?;
        let claims = jws.claims()?;
        let trusted = self.trusted.load_full();
        let name = trust::text(&claims, "iss")?;
        let has_alias = |pool: &&TrustedPool| pool.issuer.rules.alias.as_deref() == Some(name);
        let issuers = &trusted.issuers;
        let pool = issuers
            .get(name)
            .or_else(|| issuers.values().find(has_alias))
            .ok_or(TokenError::Issuer)?;
        let key = match pool.source.find(key_id) {
            Some(key) => Ok(key),
            None => pool.source.obtain(key_id).await,
        };
        let outcome = key.and_then(|key| Ok((self.check(&jws, &claims, &key, &pool.trust)?, key)));
        if let Err(error) = &outcome {
            let now_s = self.options.clock.now().unix_seconds();
            log_operator_fault(*error, &pool.issuer.issuer, key_id, &claims, now_s);
        }
        self.remember(digest, outcome, trusted.generation)
    }

    fn check(
        &self,
        jws: &CompactJws<'_>,
        claims: &StrictObject<'_>,
        key: &VerificationKey,
        trust: &IssuerTrust,
    ) -> Result<Caller, TokenError> {
        key.check(jws)?;
        trust::check_types(claims)?;
        let (times, now) = (TokenTimes::read(claims)?, self.options.clock.now());
        times.check(now.unix_seconds(), self.options.limits.leeway_s())?;
        trust.decide(claims, times)
    }

    fn remember(
        &self,
        digest: TokenDigest,
        outcome: Result<(Caller, Arc<VerificationKey>), TokenError>,
        generation: u32,
    ) -> Result<Caller, TokenError> {
        match outcome {
            Ok((caller, key)) => {
                let accepted = CachedResult::Accepted {
                    caller: caller.clone(),
                    key,
                };
                self.accepted.insert(digest, accepted, generation);
                Ok(caller)
            }
            Err(error) => {
                if error.is_permanent() {
                    let period = Period::new(self.options.clock.now(), NEGATIVE_TTL);
                    let rejected = CachedResult::Rejected { error, period };
                    self.rejected.insert(digest, rejected, generation);
                }
                Err(error)
            }
        }
    }

    /// Refreshes the keys until shutdown. Spawned once per process.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        join_all(self.sources().iter().map(|source| source.load_saved())).await;
        while !shutdown.is_cancelled() {
            self.refresh_due().await;
            let pause = tokio::time::sleep(self.next_check());
            shutdown.run_until_cancelled(pause).await;
        }
    }

    /// Fetches the keys of every issuer now and returns when all fetches have completed.
    pub async fn refresh_now(&self) {
        join_all(self.sources().iter().map(|source| source.refresh())).await;
    }

    /// Fetches the keys of the issuers that are due, as [`Verifier::run`] does periodically.
    pub async fn refresh_due(&self) {
        join_all(self.sources().iter().map(|source| source.refresh_if_due())).await;
    }

    fn next_check(&self) -> Duration {
        let now = self.options.clock.now();
        let sources = self.sources();
        let due = sources.iter().map(|source| source.due_at().since(now));
        let next = due.min().unwrap_or(MAX_REFRESH_CHECK_INTERVAL);
        next.clamp(Duration::from_millis(100), MAX_REFRESH_CHECK_INTERVAL)
    }

    /// Returns whether tokens of this issuer can be verified.
    #[must_use]
    pub fn can_verify(&self, issuer: &str) -> bool {
        let trusted = self.trusted.load();
        let pool = trusted.issuers.get(issuer);
        pool.is_some_and(|pool| pool.source.is_usable())
    }

    /// Returns the status of every issuer's keys, sorted by issuer, for the admin listener
    /// (`/jwks/status`).
    #[must_use]
    pub fn status(&self) -> Vec<JwksStatus> {
        self.sources().iter().map(|it| it.status()).collect()
    }

    /// Returns the public keys of every issuer, sorted by issuer, for the admin API.
    #[must_use]
    pub fn issuer_keys(&self) -> Vec<JwksStatus<PublicKeyInfo>> {
        self.sources().iter().map(|it| it.issuer_keys()).collect()
    }

    /// Returns the number of cached tokens and their bytes, for metrics.
    #[must_use]
    pub fn cache_size(&self) -> (usize, usize) {
        let (accepted, rejected) = (self.accepted.size(), self.rejected.size());
        (accepted.0 + rejected.0, accepted.1 + rejected.1)
    }

    /// Returns the key sets of all issuers, sorted by issuer.
    fn sources(&self) -> Vec<Arc<KeySource>> {
        let trusted = self.trusted.load();
        let mut pools: Vec<&TrustedPool> = trusted.issuers.values().collect();
        pools.sort_by(|one, other| one.issuer.issuer.cmp(&other.issuer.issuer));
        pools.iter().map(|pool| Arc::clone(&pool.source)).collect()
    }
}

/// Logs rejections of which the cause can be a fault of the installation rather than of the client: the
/// issuer signs with a key that its JWKS lacks, or its clock is ahead. Every token can claim to be of
/// a trusted issuer, so the number of events is limited.
fn log_operator_fault(
    error: TokenError,
    issuer: &str,
    key_id: &str,
    claims: &StrictObject<'_>,
    now_s: i64,
) {
    if error == TokenError::KeyUnknown {
        let key_id: String = key_id.chars().take(MAX_LOGGED_KEY_ID_CHARS).collect();
        log_limited!(warn, issuer, ?key_id, "token key not found");
    } else if error == TokenError::NotYetValid
        && let Ok(times) = TokenTimes::read(claims)
    {
        let ahead_s = times.valid_from.saturating_sub(now_s);
        log_limited!(warn, issuer, ahead_s, "token not yet valid");
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier({})", self.trusted.load().issuers.len())
    }
}
