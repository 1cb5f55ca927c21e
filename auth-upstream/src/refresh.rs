//! `POST /auth/tokens/refresh` and `POST /auth/logout`.
//!
//! A refresh token is used once. The same token again within the grace gets the same new tokens, from any
//! replica, with one call to the pool: a client that lost the answer, or a browser with three tabs, is no thief.
//! After the grace, the whole family is revoked, because one of two holders is. What is remembered is in the shared cache:
//! the answer under the old token's digest, and the family's newest generation.
//!
//! The state of a family is changed by compare-and-set only, in the epoch of the cache in which it was read, except to
//! `Revoked`, which is final. A refresh that finds the state changed when the pool has answered revokes what it got at the
//! pool and looks again: a logout, or a revocation, is never undone by a refresh that was in flight.

use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::{CacheError, Change, Guard};
use postern_common::clock::Timestamp;
use postern_common::{Code, Problem};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::audit::{self, Act};
use crate::auth::{Auth, Visitor, cache_away};
use crate::grant::Grant;
use crate::pool::fault::{Fault, Operation};
use crate::seal::hex;
use crate::token_set::TokenSet;
use crate::vault::Drawer;

/// How long one caller may take to rotate a token while the others wait for its answer.
const ROTATION: Duration = Duration::from_secs(10);
/// How often and how long the others look. 9 s in all: longer than a call to the pool may take.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOKS: u32 = 450;
/// Waits before a change to a family is tried again while the cache is away. After the last, the refresh fails.
const COMMIT_BACKOFF: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1_500)];
/// The span over which the refreshes of a family are counted.
const QUOTA_WINDOW: Duration = Duration::from_secs(10 * 60);
/// How often a family is read again because a refresh has changed it meanwhile: each costs that one a call to the pool.
const MARK_TRIES: u32 = 20;
/// How often a logout begins anew because a fail-over has lost its mark.
const END_TRIES: u32 = 3;
/// Waits before a token that nobody may use is revoked once more at a pool that is away.
const REVOKE_BACKOFF: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// What is remembered of a family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Family {
    /// Its newest token has this generation.
    Alive {
        generation: u64,
        /// The newest refresh token, sealed, to be revoked if an older one is used again.
        newest: String,
        /// How many refreshes there were since `counted_from`, in milliseconds of Unix time.
        #[serde(default)]
        count: u32,
        #[serde(default)]
        counted_from: i64,
    },
    /// Nothing of it works any more.
    Revoked {
        /// What was the newest refresh token, sealed: whoever repeats a logout has it revoked once more.
        newest: Option<String>,
    },
}

/// What is remembered when a token is shown.
struct Remembered {
    /// The answer that this token got already, within the grace.
    replay: Option<TokenSet>,
    family: Option<Family>,
    /// The family as the cache has it.
    stored: Option<Vec<u8>>,
    /// The epoch of the cache in which the family was read.
    epoch: String,
}

/// What became of a rotation.
enum Rotation {
    Done(TokenSet),
    /// The family was changed meanwhile, or its store is another one: it must be read again.
    Overtaken,
}

/// A family that is revoked.
struct Marked {
    /// The pool's newest token of it, to be revoked there.
    newest: Option<String>,
    /// It was not revoked before.
    is_new: bool,
}

// === impl Family ===

impl Family {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an enum of texts is JSON")
    }

    /// What nobody can read may be `Revoked`: it is refused.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        serde_json::from_slice(bytes).map_err(|_| Code::InvalidRefreshToken.into())
    }

    fn newest(&self) -> Option<&str> {
        match self {
            Self::Alive { newest, .. } => Some(newest),
            Self::Revoked { newest } => newest.as_deref(),
        }
    }
}

// === impl Auth ===

impl Auth {
    /// New tokens for a refresh token.
    ///
    /// # Errors
    /// `invalid_refresh_token` for whatever is not ours, used, revoked or expired; `unavailable` while cache or
    /// pool are away. The token stays good then, unless the pool has rotated it already.
    pub(crate) async fn refresh(
        self: &Arc<Self>,
        visitor: &Visitor,
        token: &str,
    ) -> Result<TokenSet, Problem> {
        let (auth, asking, token) = (Arc::clone(self), visitor.clone(), token.to_owned());
        let outcome = in_full(async move { auth.rotate_once(&asking, &token).await }).await;
        self.ended(visitor, Act::Refresh, outcome)
    }

    async fn rotate_once(
        self: &Arc<Self>,
        visitor: &Visitor,
        token: &str,
    ) -> Result<(String, TokenSet), Problem> {
        let grant = Grant::open(&self.ring, token).ok_or(Code::InvalidRefreshToken)?;
        if grant.client_id != self.pool.client_id() {
            return Err(Code::InvalidRefreshToken.into());
        }
        for _ in 0..LOOKS {
            let (mut guard, found) = self.lock_rotation(token, &grant).await?;
            if matches!(found.family, Some(Family::Revoked { .. })) {
                return Err(Code::InvalidRefreshToken.into());
            }
            // Whoever had the lock before may have answered already.
            if let Some(set) = found.replay {
                if let Some(guard) = guard {
                    guard.release().await;
                }
                return Ok((grant.subject, set));
            }
            if let Some(guard) = &mut guard
                && let Rotation::Done(set) = self.rotate(visitor, guard, (token, &grant), found).await?
            {
                return Ok((grant.subject, set));
            }
            drop(guard);
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Err(Code::Unavailable.into())
    }

    /// Takes the lock of this token, unless another rotates it, and tells what is remembered.
    async fn lock_rotation(
        &self,
        token: &str,
        grant: &Grant,
    ) -> Result<(Option<Guard>, Remembered), Problem> {
        let drawer = Drawer::RefreshReplay;
        let lock = format!("postern:auth:refresh-lock:{}", hex(&Sha256::digest(token)));
        let wanted = [&*family_key(&grant.family), &*drawer.entry(token)];
        let (guard, found) = self.cache.lock_and_get(&lock, ROTATION, wanted).await.map_err(cache_away)?;
        let [stored, replay] = found.values;
        let replay = replay.and_then(|sealed| drawer.open(token, &sealed));
        let found = Remembered {
            replay: replay.and_then(|plain| serde_json::from_slice(&plain).ok()),
            family: stored.as_deref().map(Family::from_bytes).transpose()?,
            stored,
            epoch: found.epoch,
        };
        Ok((guard, found))
    }

    /// Under the lock: new tokens, which are remembered before anybody gets them.
    async fn rotate(
        self: &Arc<Self>,
        visitor: &Visitor,
        guard: &mut Guard,
        (token, grant): (&str, &Grant),
        found: Remembered,
    ) -> Result<Rotation, Problem> {
        if let Some(Family::Alive { generation, .. }) = found.family
            && generation > grant.generation
        {
            self.revoke_family(visitor, grant).await?;
            return Err(Code::InvalidRefreshToken.into());
        }
        let (count, counted_from) = self.within_quota(found.family.as_ref())?;
        let tokens = self.pool.refresh(&grant.username, &grant.token).await;
        let tokens = tokens.map_err(|fault| fault.problem(Operation::Refresh))?;
        let rotated = tokens.refresh_token.clone();
        let next = grant.next(rotated.clone());
        let newest = next.seal(&self.ring);
        let set = tokens.into_set(newest.clone());
        let family = Family::Alive { generation: next.generation, newest, count, counted_from };
        let remembered = self.remember(guard, (token, grant), &set, (&found, &family)).await;
        if let Ok(true) = remembered {
            return Ok(Rotation::Done(set));
        }
        // Nobody gets it. Where the pool does not rotate, it is the one token of the family, which lives as long as that.
        if let Some(rotated) = rotated {
            self.discard_at_pool(rotated).await;
        }
        remembered.map(|_| Rotation::Overtaken).map_err(cache_away)
    }

    /// The count of refreshes of a family with one more, and since when, unless there were too many.
    fn within_quota(&self, family: Option<&Family>) -> Result<(u32, i64), Problem> {
        let (now, window) = (self.clock.now(), QUOTA_WINDOW);
        match family {
            Some(Family::Alive { count, counted_from, .. })
                if now < Timestamp(*counted_from).plus(window) =>
            {
                if *count >= self.refresh.quota {
                    let wait = Timestamp(*counted_from).plus(window).0.saturating_sub(now.0) / 1000 + 1;
                    let wait = u32::try_from(wait).unwrap_or(u32::MAX);
                    return Err(Problem::new(Code::RateLimited).retry_after(wait));
                }
                Ok((count + 1, *counted_from))
            }
            _ => Ok((1, now.0)),
        }
    }

    /// Whether the family was as it was read, and is now as it should be.
    async fn remember(
        &self,
        guard: &mut Guard,
        (token, grant): (&str, &Grant),
        set: &TokenSet,
        (found, family): (&Remembered, &Family),
    ) -> Result<bool, CacheError> {
        let drawer = Drawer::RefreshReplay;
        let replay = drawer.seal(token, &serde_json::to_vec(set).expect("a struct of texts is JSON"));
        let (entry, key, family) = (drawer.entry(token), family_key(&grant.family), family.to_bytes());
        let change = Change {
            key: &key,
            epoch: &found.epoch,
            expected: found.stored.as_deref(),
            value: &family,
            ttl: self.refresh.lifetime,
            owner: Some(&grant.subject),
        };
        let kept = [(&*entry, replay.as_bytes(), self.refresh.grace)];
        let mut outcome = guard.commit(&change, &kept).await;
        for wait in COMMIT_BACKOFF {
            if outcome.is_ok() {
                break;
            }
            tokio::time::sleep(wait).await;
            outcome = guard.commit(&change, &kept).await;
        }
        outcome
    }

    /// One of two holders of this family is a thief: nobody keeps it.
    async fn revoke_family(self: &Arc<Self>, visitor: &Visitor, grant: &Grant) -> Result<(), Problem> {
        let newest = self.mark_revoked(&grant.family).await?.newest;
        audit::record(visitor, Act::RefreshReuse, &grant.subject, "family_revoked");
        self.metrics.count(Act::RefreshReuse, "family_revoked");
        if let Some(newest) = newest {
            self.discard_at_pool(newest).await;
        }
        Ok(())
    }

    /// Ends the family that a refresh token belongs to. A token that is not good any more is logged out already.
    pub(crate) async fn logout(self: &Arc<Self>, visitor: &Visitor, token: &str) -> Result<(), Problem> {
        let (auth, token) = (Arc::clone(self), token.to_owned());
        let outcome = in_full(async move { auth.end_family(&token).await }).await;
        self.ended(visitor, Act::SignOut, outcome.map(|subject| (subject, ())))
    }

    async fn end_family(self: &Arc<Self>, token: &str) -> Result<String, Problem> {
        let Some(grant) = Grant::open(&self.ring, token) else { return Ok(String::new()) };
        for _ in 0..END_TRIES {
            let marked = self.mark_revoked(&grant.family).await;
            // Without the cache the token at hand is revoked at least.
            let revoked = self.revoke_at_pool(grant.token.clone()).await;
            let newest = marked?.newest.filter(|newest| *newest != grant.token);
            accepted(revoked)?;
            if let Some(newest) = newest {
                accepted(self.revoke_at_pool(newest).await)?;
            }
            // A fail-over meanwhile may have lost the mark, and a refresh may have gone on without it.
            if !self.mark_revoked(&grant.family).await?.is_new {
                return Ok(grant.subject);
            }
        }
        Err(Code::Unavailable.into())
    }

    /// Makes a family `Revoked`, which is final.
    async fn mark_revoked(self: &Arc<Self>, family: &str) -> Result<Marked, Problem> {
        let key = family_key(family);
        for _ in 0..MARK_TRIES {
            let found = self.cache.get_with_epoch(&key).await.map_err(cache_away)?;
            let [stored] = found.values;
            // What cannot be read is refused everywhere: it ends as well.
            let before = stored.as_deref().and_then(|stored| Family::from_bytes(stored).ok());
            let newest = before.as_ref().and_then(Family::newest);
            let token = newest.and_then(|newest| Grant::open(&self.ring, newest)).map(|grant| grant.token);
            if matches!(before, Some(Family::Revoked { .. })) {
                return Ok(Marked { newest: token, is_new: false });
            }
            let revoked = Family::Revoked { newest: newest.map(str::to_owned) }.to_bytes();
            let change = Change {
                key: &key,
                epoch: &found.epoch,
                expected: stored.as_deref(),
                value: &revoked,
                ttl: self.refresh.lifetime,
                // A logout is never refused for want of a share.
                owner: None,
            };
            match self.cache.compare_and_set(&change).await {
                Ok(true) => return Ok(Marked { newest: token, is_new: true }),
                Ok(false) => {}
                Err(error) => {
                    // It may have been done, and the next one who reads may not learn of this token.
                    if let Some(token) = token {
                        self.discard_at_pool(token).await;
                    }
                    return Err(cache_away(error));
                }
            }
        }
        Err(Code::Unavailable.into())
    }

    /// Revokes a token at the pool. Where the pool is away it is tried again for a while, whatever the caller does.
    async fn revoke_at_pool(self: &Arc<Self>, token: String) -> Result<(), Fault> {
        let outcome = self.pool.revoke(&token).await;
        if let Err(fault) = &outcome
            && fault.code(Operation::Revoke).status().is_server_error()
        {
            let auth = Arc::clone(self);
            tokio::spawn(async move {
                for wait in REVOKE_BACKOFF {
                    tokio::time::sleep(wait).await;
                    if auth.pool.revoke(&token).await.is_ok() {
                        return;
                    }
                }
                tracing::warn!("the pool did not revoke a refresh token");
            });
        }
        outcome
    }

    /// Revokes a token at the pool that nobody may use.
    async fn discard_at_pool(self: &Arc<Self>, token: String) {
        if let Err(fault) = self.revoke_at_pool(token).await {
            tracing::warn!(%fault, "refresh token not revoked at the pool");
        }
    }
}

/// Runs to its end in a task of its own: a client that goes away leaves no token at the pool that nobody knows of.
async fn in_full<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(Code::Internal.into()))
}

/// A pool that does not know the token any more has revoked it.
fn accepted(revoked: Result<(), Fault>) -> Result<(), Problem> {
    match revoked {
        Err(fault) if fault.code(Operation::Revoke) != Code::InvalidRefreshToken => {
            Err(fault.problem(Operation::Revoke))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn family_key(family: &str) -> String {
    format!("postern:auth:family:{family}")
}
