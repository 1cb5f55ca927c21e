//! `POST /auth/logout`, and the revocation of refresh tokens at the pool.
//!
//! A family that is known to be revoked at the pool causes no further call. Until then the logouts
//! of one family make a bounded number of calls, retries included, and the tasks that retry are
//! bounded for the whole process.

use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::Change;
use postern_common::{Code, Problem};

use crate::audit::Act;
use crate::auth::{Auth, Visitor, cache_away, is_unseen};
use crate::grant::Grant;
use crate::log_limit::log_limited;
use crate::pool::fault::{Fault, Operation};
use crate::refresh::{Family, family_key, in_full};

/// Revocations that wait to be retried at once; what fails beyond that is not retried.
pub(crate) const MAX_REVOCATION_RETRIES: usize = 64;
/// How often a family is read again because a refresh has changed it meanwhile: each costs that one
/// a call to the pool.
const MARK_TRIES: u32 = 20;
/// How often a logout begins anew because a fail-over has lost its mark.
const END_TRIES: u32 = 3;
/// Waits before a revocation is retried at a pool that is unavailable or throttles.
const REVOKE_BACKOFF: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];
/// Calls to the pool that the logouts of one family make within [`CALL_WINDOW`].
const MAX_CALLS_PER_FAMILY: u64 = 5;
const CALL_WINDOW: Duration = Duration::from_secs(CALL_WINDOW_S as u64);
const CALL_WINDOW_S: u32 = 10 * 60;

/// A family that was to be marked as revoked.
pub(crate) struct Marked {
    /// The pool's newest token of it, to be revoked there, whether or not the mark could be made.
    pub(crate) newest: Option<String>,
    /// The pool has revoked it before.
    is_at_pool: bool,
    pub(crate) outcome: Result<(), Problem>,
}

/// Tokens to be revoked at the pool.
struct Revocation {
    /// The family that a logout ends; none for a token that no client has.
    family: Option<String>,
    /// The last one is revoked first.
    tokens: Vec<String>,
}

/// Why tokens are not revoked yet.
enum Unrevoked {
    Refused(Fault),
    TooManyCalls,
}

// === impl Marked ===

impl Marked {
    fn failed(newest: Option<String>, problem: Problem) -> Self {
        Self {
            newest,
            is_at_pool: false,
            outcome: Err(problem),
        }
    }
}

// === impl Auth ===

impl Auth {
    /// Ends the family that a refresh token belongs to. A token that is not good any more is logged
    /// out already.
    ///
    /// # Errors
    /// `rate_limited` after too many calls to the pool for this family; what the cache's and the
    /// pool's faults map to.
    pub(crate) async fn logout(
        self: &Arc<Self>,
        visitor: &Visitor,
        token: &str,
    ) -> Result<(), Problem> {
        let (auth, token) = (Arc::clone(self), token.to_owned());
        let outcome = in_full(async move { auth.end_family(&token).await }).await;
        self.ended(visitor, Act::SignOut, outcome.map(|subject| (subject, ())))
    }

    async fn end_family(self: &Arc<Self>, token: &str) -> Result<String, Problem> {
        let Some(grant) = Grant::open(&self.ring, token) else {
            return Ok(String::new());
        };
        for _ in 0..END_TRIES {
            let marked = self.mark_revoked(&grant.family).await;
            if marked.is_at_pool {
                return Ok(grant.subject);
            }
            // Without the cache the token at hand is revoked at least.
            let newest = marked.newest.filter(|newest| *newest != grant.token);
            let tokens = newest.into_iter().chain([grant.token.clone()]).collect();
            let revoked = self
                .revoke_at_pool(Revocation {
                    family: Some(grant.family.clone()),
                    tokens,
                })
                .await;
            marked.outcome?;
            revoked?;
            // A fail-over meanwhile may have lost the mark, and a refresh may have gone on without
            // it.
            if self.note_revoked_at_pool(&grant.family).await? {
                return Ok(grant.subject);
            }
        }
        Err(Code::Unavailable.into())
    }

    /// Makes a family `Revoked`, which is final.
    pub(crate) async fn mark_revoked(&self, family: &str) -> Marked {
        let key = family_key(family);
        for _ in 0..MARK_TRIES {
            let found = match self.cache.get_with_epoch(&key).await {
                Ok(found) => found,
                Err(error) => return Marked::failed(None, cache_away(error)),
            };
            let [stored] = found.values;
            // What cannot be read is refused everywhere: it ends as well.
            let before = stored
                .as_deref()
                .and_then(|stored| Family::from_bytes(stored).ok());
            let newest = before.as_ref().and_then(Family::newest);
            let token = newest
                .and_then(|newest| Grant::open(&self.ring, newest))
                .map(|grant| grant.token);
            if let Some(Family::Revoked { is_at_pool, .. }) = before {
                return Marked {
                    newest: token,
                    is_at_pool,
                    outcome: Ok(()),
                };
            }
            let revoked = Family::Revoked {
                newest: newest.map(str::to_owned),
                is_at_pool: false,
            };
            let revoked = revoked.to_bytes();
            let change = self.change(&key, (&found.epoch, stored.as_deref()), &revoked);
            match self.cache.compare_and_set(&change).await {
                Ok(true) => {
                    return Marked {
                        newest: token,
                        is_at_pool: false,
                        outcome: Ok(()),
                    };
                }
                Ok(false) => {}
                // It may have been done, and the next one who reads may not learn of this token.
                Err(error) => return Marked::failed(token, cache_away(error)),
            }
        }
        Marked::failed(None, Code::Unavailable.into())
    }

    /// Notes that the pool has revoked the family, so that it is not called again. False if the
    /// family is not marked as revoked any more.
    async fn note_revoked_at_pool(&self, family: &str) -> Result<bool, Problem> {
        let key = family_key(family);
        for _ in 0..MARK_TRIES {
            let found = self.cache.get_with_epoch(&key).await.map_err(cache_away)?;
            let [stored] = found.values;
            match stored
                .as_deref()
                .and_then(|stored| Family::from_bytes(stored).ok())
            {
                Some(Family::Revoked {
                    is_at_pool: false, ..
                }) => {}
                Some(Family::Revoked {
                    is_at_pool: true, ..
                }) => return Ok(true),
                Some(Family::Alive { .. }) | None => return Ok(false),
            }
            let noted = Family::Revoked {
                newest: None,
                is_at_pool: true,
            }
            .to_bytes();
            let change = self.change(&key, (&found.epoch, stored.as_deref()), &noted);
            // Without the note the next logout calls the pool once more.
            if self.cache.compare_and_set(&change).await.unwrap_or(true) {
                return Ok(true);
            }
        }
        Err(Code::Unavailable.into())
    }

    fn change<'a>(
        &self,
        key: &'a str,
        (epoch, expected): (&'a str, Option<&'a [u8]>),
        value: &'a [u8],
    ) -> Change<'a> {
        // A logout is never refused for want of a share.
        Change {
            key,
            epoch,
            expected,
            value,
            ttl: self.refresh.lifetime,
            owner: None,
        }
    }

    /// Revokes tokens at the pool. What fails because the pool is unavailable or throttles is
    /// retried for a while, whatever the caller does.
    async fn revoke_at_pool(self: &Arc<Self>, mut revocation: Revocation) -> Result<(), Problem> {
        match self.revoke(&mut revocation).await {
            Ok(()) => Ok(()),
            Err(Unrevoked::TooManyCalls) => {
                Err(Problem::new(Code::RateLimited).retry_after(CALL_WINDOW_S))
            }
            Err(Unrevoked::Refused(fault)) => {
                let problem = fault.problem(Operation::Revoke);
                if is_unseen(problem.code()) {
                    self.retry_in_background(revocation);
                }
                Err(problem)
            }
        }
    }

    /// Makes one call for each token that is left. A pool that does not know a token any more has
    /// revoked it.
    async fn revoke(&self, revocation: &mut Revocation) -> Result<(), Unrevoked> {
        while let Some(token) = revocation.tokens.last() {
            if let Some(family) = &revocation.family {
                let key = format!("postern:auth:family-calls:{family}");
                if self.abuse.count(&key, CALL_WINDOW).await > MAX_CALLS_PER_FAMILY {
                    return Err(Unrevoked::TooManyCalls);
                }
            }
            match self.pool.revoke(token).await {
                Err(fault) if fault.code(Operation::Revoke) != Code::InvalidRefreshToken => {
                    return Err(Unrevoked::Refused(fault));
                }
                Ok(()) | Err(_) => drop(revocation.tokens.pop()),
            }
        }
        Ok(())
    }

    fn retry_in_background(self: &Arc<Self>, mut revocation: Revocation) {
        let Ok(permit) = Arc::clone(&self.revocations).try_acquire_owned() else {
            log_limited!(
                warn,
                "refresh token revocation not retried, too many retries are waiting"
            );
            return;
        };
        let auth = Arc::clone(self);
        tokio::spawn(async move {
            for wait in REVOKE_BACKOFF {
                tokio::time::sleep(wait).await;
                if auth.is_done(&revocation).await {
                    return;
                }
                if auth.revoke(&mut revocation).await.is_ok() {
                    if let Some(family) = &revocation.family {
                        // Without the note the next logout calls the pool once more.
                        let _ = auth.note_revoked_at_pool(family).await;
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

    /// Whether another logout has revoked the family at the pool meanwhile.
    async fn is_done(&self, revocation: &Revocation) -> bool {
        let Some(family) = &revocation.family else {
            return false;
        };
        let stored = self.cache.get(&family_key(family)).await.ok().flatten();
        let family = stored.and_then(|stored| Family::from_bytes(&stored).ok());
        matches!(
            family,
            Some(Family::Revoked {
                is_at_pool: true,
                ..
            })
        )
    }

    /// Revokes a token at the pool that nobody may use.
    pub(crate) async fn discard_at_pool(self: &Arc<Self>, token: String) {
        if let Err(problem) = self
            .revoke_at_pool(Revocation {
                family: None,
                tokens: vec![token],
            })
            .await
        {
            log_limited!(
                warn,
                code = problem.code().as_str(),
                "refresh token not revoked at the pool"
            );
        }
    }
}
