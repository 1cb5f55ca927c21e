//! `POST /auth/tokens/refresh`.
//!
//! A refresh token is used once. The same token again within the grace gets the same new tokens,
//! from any replica, with one call to the pool: a client that lost the answer, or a browser with
//! three tabs, is no thief. After the grace, the whole family is revoked, because one of two
//! holders is. What is remembered is in the shared cache: the answer under the old token's digest,
//! and the family's newest generation.
//!
//! The state of a family is changed by compare-and-set only, in the epoch of the cache in which it
//! was read, except to `Revoked`, which is final. A refresh that finds the state changed when the
//! pool has answered revokes what it got at the pool and looks again: a logout, or a revocation, is
//! never undone by a refresh that was in flight.

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
use crate::pool::fault::Operation;
use crate::seal::hex;
use crate::token_set::TokenSet;
use crate::vault::Drawer;

/// How long one caller may take to rotate a token while the others wait for its answer.
const ROTATION: Duration = Duration::from_secs(10);
/// How often and how long the others look. 9 s in all: longer than a call to the pool may take.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOKS: u32 = 450;
/// Waits before a change to a family is tried again while the cache is away. After the last, the
/// refresh fails.
const COMMIT_BACKOFF: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
];
/// The span over which the refreshes of a family are counted.
const QUOTA_WINDOW: Duration = Duration::from_secs(10 * 60);

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
        /// What was the newest refresh token, sealed: whoever repeats a logout has it revoked once
        /// more.
        newest: Option<String>,
        /// The pool has revoked it, too: no further call is needed.
        #[serde(default)]
        is_at_pool: bool,
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

// === impl Family ===

impl Family {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an enum of texts is JSON")
    }

    /// What nobody can read may be `Revoked`: it is refused.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        serde_json::from_slice(bytes).map_err(|_| Code::InvalidRefreshToken.into())
    }

    pub(crate) fn newest(&self) -> Option<&str> {
        match self {
            Self::Alive { newest, .. } => Some(newest),
            Self::Revoked { newest, .. } => newest.as_deref(),
        }
    }
}

// === impl Auth ===

impl Auth {
    /// New tokens for a refresh token.
    ///
    /// # Errors
    /// `invalid_refresh_token` for whatever is not ours, used, revoked or expired; `unavailable`
    /// while cache or pool are away. The token stays good then, unless the pool has rotated it
    /// already.
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
                && let Rotation::Done(set) =
                    self.rotate(visitor, guard, (token, &grant), found).await?
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
        let (guard, found) = self
            .cache
            .lock_and_get(&lock, ROTATION, wanted)
            .await
            .map_err(cache_away)?;
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
        let family = Family::Alive {
            generation: next.generation,
            newest,
            count,
            counted_from,
        };
        let remembered = self
            .remember(guard, (token, grant), &set, (&found, &family))
            .await;
        if let Ok(true) = remembered {
            return Ok(Rotation::Done(set));
        }
        // Nobody gets it. Where the pool does not rotate, it is the one token of the family, which
        // lives as long as that.
        if let Some(rotated) = rotated {
            self.discard_at_pool(rotated).await;
        }
        remembered.map(|_| Rotation::Overtaken).map_err(cache_away)
    }

    /// The count of refreshes of a family with one more, and since when, unless there were too
    /// many.
    fn within_quota(&self, family: Option<&Family>) -> Result<(u32, i64), Problem> {
        let (now, window) = (self.clock.now(), QUOTA_WINDOW);
        match family {
            Some(Family::Alive {
                count,
                counted_from,
                ..
            }) if now < Timestamp(*counted_from).plus(window) => {
                if *count >= self.refresh.quota {
                    let wait = Timestamp(*counted_from)
                        .plus(window)
                        .0
                        .saturating_sub(now.0)
                        / 1000
                        + 1;
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
        let replay = drawer.seal(
            token,
            &serde_json::to_vec(set).expect("a struct of texts is JSON"),
        );
        let (entry, key, family) = (
            drawer.entry(token),
            family_key(&grant.family),
            family.to_bytes(),
        );
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
    async fn revoke_family(
        self: &Arc<Self>,
        visitor: &Visitor,
        grant: &Grant,
    ) -> Result<(), Problem> {
        let marked = self.mark_revoked(&grant.family).await;
        if let Some(newest) = marked.newest {
            self.discard_at_pool(newest).await;
        }
        marked.outcome?;
        audit::record(visitor, Act::RefreshReuse, &grant.subject, "family_revoked");
        self.metrics.count(Act::RefreshReuse, "family_revoked");
        Ok(())
    }
}

/// Runs to its end in a task of its own: a client that goes away leaves no token at the pool that
/// nobody knows of.
pub(crate) async fn in_full<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|_| Err(Code::Internal.into()))
}

pub(crate) fn family_key(family: &str) -> String {
    format!("postern:auth:family:{family}")
}
