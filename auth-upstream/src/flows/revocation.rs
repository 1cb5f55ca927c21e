//! Revocation of token families in the shared cache, and of refresh tokens at the pool.
//!
//! A family that is known to be revoked at the pool causes no further call. Until then, revocations
//! of one family make a bounded number of calls, including retries, and the number of background
//! retries is bounded for the process.

use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::{Cache, Change, MemoryShare};
use postern_common::{Code, Problem};
use tokio::sync::Semaphore;

use super::grant::RefreshGrant;
use super::token_family::{TokenFamily, family_key};
use super::{cache_unavailable, is_not_evaluated};
use crate::crypto::KeyRing;
use crate::pool::UserPool;
use crate::pool::error::{PoolCall, PoolError};
use crate::protection::FallbackCache;
use crate::telemetry::log_limited;

/// The maximum number of revocations that wait for a retry. Others are not retried.
const MAX_PENDING_RETRIES: usize = 64;
/// The maximum number of attempts to change a family that refreshes change concurrently. Each of
/// those refreshes needs a call to the pool.
const MAX_CHANGE_ATTEMPTS: u32 = 20;
/// Delays before a revocation is retried at a pool that is unavailable or throttles.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];
/// The maximum number of revocation calls for one family within [`REVOCATION_CALL_WINDOW`].
const MAX_CALLS_PER_FAMILY: u64 = 5;
const REVOCATION_CALL_WINDOW: Duration = Duration::from_secs(REVOCATION_CALL_WINDOW_S as u64);
const REVOCATION_CALL_WINDOW_S: u32 = 10 * 60;

/// Part of a cache in memory that the revocations of one user may use: 1/16, 4 MiB by default, or
/// about 16,000 in [`TokenRevoker::family_ttl`]. Beyond it a revocation fails, and none is evicted;
/// the revocation of a family that was refreshed needs no room of its own, because it replaces a
/// larger entry.
const REVOCATION_SHARE_DIVISOR: usize = 16;

/// Revokes token families and refresh tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenRevoker {
    pool: Arc<UserPool>,
    cache: Cache,
    counters: FallbackCache,
    key_ring: Arc<KeyRing>,
    /// The time for which a family is kept after its last change.
    family_ttl: Duration,
    retry_permits: Arc<Semaphore>,
}

/// The result of marking a family as revoked.
pub(super) struct FamilyMark {
    /// The pool's newest token of the family, to be revoked whether or not marking succeeded.
    pub(super) newest: Option<String>,
    /// Whether the pool had revoked the family before.
    pub(super) is_revoked_at_pool: bool,
    pub(super) outcome: Result<(), Problem>,
}

/// A family that is revoked, and the name of the user's share of revocations.
#[derive(Clone, Debug)]
pub(super) struct RevokedFamily {
    family: String,
    share: String,
}

/// Tokens to be revoked at the pool.
pub(super) struct Revocation {
    /// The family that is revoked; `None` for a token that no client has.
    pub(super) family: Option<RevokedFamily>,
    /// Remaining tokens. The last one is revoked first.
    pub(super) tokens: Vec<String>,
}

/// The reason for which tokens remain valid at the pool.
enum RevocationError {
    Pool(PoolError),
    TooManyCalls,
}

// === impl FamilyMark ===

impl FamilyMark {
    fn failed(newest: Option<String>, problem: Problem) -> Self {
        Self {
            newest,
            is_revoked_at_pool: false,
            outcome: Err(problem),
        }
    }
}

// === impl RevokedFamily ===

impl RevokedFamily {
    pub(super) fn of(grant: &RefreshGrant) -> Self {
        Self {
            family: grant.family.clone(),
            share: format!("revoked:{}", grant.subject),
        }
    }
}

// === impl TokenRevoker ===

impl TokenRevoker {
    pub(crate) fn new(
        pool: Arc<UserPool>,
        cache: Cache,
        counters: FallbackCache,
        key_ring: Arc<KeyRing>,
        family_ttl: Duration,
    ) -> Self {
        Self {
            pool,
            cache,
            counters,
            key_ring,
            family_ttl,
            retry_permits: Arc::new(Semaphore::new(MAX_PENDING_RETRIES)),
        }
    }

    /// Marks the family of a token as revoked in the cache.
    pub(super) async fn mark_revoked(&self, grant: &RefreshGrant) -> FamilyMark {
        let revoked_family = RevokedFamily::of(grant);
        let key = family_key(&revoked_family.family);
        for _ in 0..MAX_CHANGE_ATTEMPTS {
            let found = match self.cache.get_with_epoch(&key).await {
                Ok(found) => found,
                Err(error) => return FamilyMark::failed(None, cache_unavailable(error)),
            };
            let [stored] = found.values;
            // An entry that cannot be decoded is replaced: it is rejected everywhere.
            let before = stored
                .as_deref()
                .and_then(|stored| TokenFamily::from_bytes(stored).ok());
            let newest = before.as_ref().and_then(TokenFamily::newest);
            let token = newest
                .and_then(|newest| RefreshGrant::open(&self.key_ring, newest))
                .map(|grant| grant.token);
            if let Some(TokenFamily::Revoked { is_at_pool, .. }) = before {
                return FamilyMark {
                    newest: token,
                    is_revoked_at_pool: is_at_pool,
                    outcome: Ok(()),
                };
            }
            let revoked = TokenFamily::Revoked {
                newest: newest.map(str::to_owned),
                is_at_pool: false,
            };
            let change = Change {
                epoch: &found.epoch,
                expected: stored.as_deref(),
                value: &revoked.to_bytes(),
                ..self.change(&key, &revoked_family)
            };
            match self.cache.compare_and_set(&change).await {
                Ok(true) => {
                    return FamilyMark {
                        newest: token,
                        is_revoked_at_pool: false,
                        outcome: Ok(()),
                    };
                }
                Ok(false) => {}
                // The change may have been made. A later revocation may not find this token.
                Err(error) => return FamilyMark::failed(token, cache_unavailable(error)),
            }
        }
        FamilyMark::failed(None, Code::Unavailable.into())
    }

    /// Records that the pool has revoked a family. Returns false if the family is no longer marked
    /// as revoked.
    pub(super) async fn mark_revoked_at_pool(
        &self,
        family: &RevokedFamily,
    ) -> Result<bool, Problem> {
        let key = family_key(&family.family);
        for _ in 0..MAX_CHANGE_ATTEMPTS {
            let found = self.cache.get_with_epoch(&key).await;
            let found = found.map_err(cache_unavailable)?;
            let [stored] = found.values;
            match stored
                .as_deref()
                .and_then(|stored| TokenFamily::from_bytes(stored).ok())
            {
                Some(TokenFamily::Revoked {
                    is_at_pool: false, ..
                }) => {}
                Some(TokenFamily::Revoked {
                    is_at_pool: true, ..
                }) => return Ok(true),
                Some(TokenFamily::Alive { .. }) | None => return Ok(false),
            }
            let revoked = TokenFamily::Revoked {
                newest: None,
                is_at_pool: true,
            }
            .to_bytes();
            let change = Change {
                epoch: &found.epoch,
                expected: stored.as_deref(),
                value: &revoked,
                ..self.change(&key, family)
            };
            // If the cache fails, the next logout makes one unnecessary call to the pool.
            if self.cache.compare_and_set(&change).await.unwrap_or(true) {
                return Ok(true);
            }
        }
        Err(Code::Unavailable.into())
    }

    /// Returns a change of a family, without its values.
    fn change<'a>(&self, key: &'a str, family: &'a RevokedFamily) -> Change<'a> {
        Change {
            key,
            epoch: "",
            expected: None,
            value: b"",
            ttl: self.family_ttl,
            owner: Some(MemoryShare {
                name: &family.share,
                divisor: REVOCATION_SHARE_DIVISOR,
            }),
        }
    }

    /// Revokes tokens at the pool. If the pool is unavailable or throttles, retries in the
    /// background, also when the client disconnects.
    ///
    /// # Errors
    /// `rate_limited` after [`MAX_CALLS_PER_FAMILY`] calls; the problem codes of pool errors.
    pub(super) async fn revoke_at_pool(&self, mut revocation: Revocation) -> Result<(), Problem> {
        match self.try_revoke(&mut revocation).await {
            Ok(()) => Ok(()),
            Err(RevocationError::TooManyCalls) => {
                Err(Problem::new(Code::RateLimited).retry_after(REVOCATION_CALL_WINDOW_S))
            }
            Err(RevocationError::Pool(error)) => {
                let problem = error.problem(PoolCall::Revoke);
                if is_not_evaluated(problem.code()) {
                    self.retry_in_background(revocation);
                }
                Err(problem)
            }
        }
    }

    /// Makes one call for each remaining token. A token that the pool does not know counts as
    /// revoked.
    async fn try_revoke(&self, revocation: &mut Revocation) -> Result<(), RevocationError> {
        while let Some(token) = revocation.tokens.last() {
            if let Some(family) = &revocation.family {
                let key = format!("postern:auth:family-calls:{}", family.family);
                let calls = self.counters.increment(&key, REVOCATION_CALL_WINDOW).await;
                if calls > MAX_CALLS_PER_FAMILY {
                    return Err(RevocationError::TooManyCalls);
                }
            }
            match self.pool.revoke(token).await {
                Err(error) if error.code(PoolCall::Revoke) != Code::InvalidRefreshToken => {
                    return Err(RevocationError::Pool(error));
                }
                Ok(()) | Err(_) => drop(revocation.tokens.pop()),
            }
        }
        Ok(())
    }

    fn retry_in_background(&self, mut revocation: Revocation) {
        let Ok(permit) = Arc::clone(&self.retry_permits).try_acquire_owned() else {
            log_limited!(
                warn,
                "refresh token revocation not retried, too many retries are waiting"
            );
            return;
        };
        let revoker = self.clone();
        postern_common::trace::spawn(async move {
            for delay in RETRY_DELAYS {
                tokio::time::sleep(delay).await;
                if revoker.is_revoked_at_pool(&revocation).await {
                    return;
                }
                if revoker.try_revoke(&mut revocation).await.is_ok() {
                    if let Some(family) = &revocation.family {
                        // If this fails, the next logout makes one unnecessary call to the pool.
                        let _ = revoker.mark_revoked_at_pool(family).await;
                    }
                    return;
                }
            }
            log_limited!(
                warn,
                "refresh token not revoked at the pool, retries exhausted"
            );
            drop(permit);
        });
    }

    /// Returns whether another logout has revoked the family at the pool meanwhile.
    async fn is_revoked_at_pool(&self, revocation: &Revocation) -> bool {
        let Some(family) = &revocation.family else {
            return false;
        };
        let stored = self
            .cache
            .get(&family_key(&family.family))
            .await
            .ok()
            .flatten();
        let family = stored.and_then(|stored| TokenFamily::from_bytes(&stored).ok());
        matches!(
            family,
            Some(TokenFamily::Revoked {
                is_at_pool: true,
                ..
            })
        )
    }

    /// Revokes a token at the pool that no client has, best effort.
    pub(super) async fn discard(&self, token: String) {
        let revocation = Revocation {
            family: None,
            tokens: vec![token],
        };
        if let Err(problem) = self.revoke_at_pool(revocation).await {
            log_limited!(
                warn,
                code = problem.code().as_str(),
                "refresh token not revoked at the pool"
            );
        }
    }
}
