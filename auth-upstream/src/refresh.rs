//! `POST /auth/tokens/refresh` and `POST /auth/logout`.
//!
//! A refresh token is used once. The same token again within the grace gets the same new tokens, from any
//! replica, with one call to the pool: a client that lost the answer, or a browser with three tabs, is no thief.
//! After the grace, the whole family is revoked, because one of two holders is. What is remembered stands in
//! the shared cache: the answer under the old token's digest, and the family's newest generation.

use std::time::Duration;

use postern_common::cache::Guard;
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

/// What is remembered of a family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Family {
    /// Its newest token has this generation.
    Alive {
        generation: u64,
        /// The newest refresh token, sealed, to be revoked if an older one is used again.
        newest: String,
    },
    /// Nothing of it works any more.
    Revoked,
}

/// What is remembered when a token is shown.
struct Remembered {
    /// The answer that this token got already, within the grace.
    replay: Option<TokenSet>,
    family: Option<Family>,
}

// === impl Family ===

impl Family {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an enum of texts is JSON")
    }
}

// === impl Auth ===

impl Auth {
    /// New tokens for a refresh token.
    ///
    /// # Errors
    /// `invalid_refresh_token` for whatever is not ours, used, revoked or expired; `unavailable` while cache or
    /// pool are away, and the token stays good then.
    pub(crate) async fn refresh(&self, visitor: &Visitor, token: &str) -> Result<TokenSet, Problem> {
        let outcome = self.rotate_once(visitor, token).await;
        self.ended(visitor, Act::Refresh, outcome)
    }

    async fn rotate_once(&self, visitor: &Visitor, token: &str) -> Result<(String, TokenSet), Problem> {
        let grant = Grant::open(&self.ring, token).ok_or(Code::InvalidRefreshToken)?;
        if grant.client_id != self.pool.client_id() {
            return Err(Code::InvalidRefreshToken.into());
        }
        for _ in 0..LOOKS {
            let (guard, found) = self.lock_rotation(token, &grant).await?;
            // Whoever had the lock before may have answered already.
            if let Some(set) = found.replay {
                if let Some(guard) = guard {
                    guard.release().await;
                }
                return Ok((grant.subject, set));
            }
            if let Some(guard) = guard {
                return match self.rotate_locked(visitor, &grant, found.family).await {
                    Ok((set, family)) => {
                        self.remember(guard, token, &grant, &set, &family).await;
                        Ok((grant.subject, set))
                    }
                    Err(problem) => {
                        guard.release().await;
                        Err(problem)
                    }
                };
            }
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
        let wanted = [&*drawer.entry(token), &*family_key(&grant.family)];
        let (guard, [replay, family]) =
            self.cache.lock_and_get(&lock, ROTATION, wanted).await.map_err(cache_away)?;
        let replay = replay.and_then(|sealed| drawer.open(token, &sealed));
        let found = Remembered {
            replay: replay.and_then(|plain| serde_json::from_slice(&plain).ok()),
            family: family.and_then(|plain| serde_json::from_slice(&plain).ok()),
        };
        Ok((guard, found))
    }

    /// Under the lock: new tokens, and what is to be remembered of their family.
    async fn rotate_locked(
        &self,
        visitor: &Visitor,
        grant: &Grant,
        family: Option<Family>,
    ) -> Result<(TokenSet, Family), Problem> {
        match family {
            Some(Family::Revoked) => return Err(Code::InvalidRefreshToken.into()),
            Some(Family::Alive { generation, newest }) if generation > grant.generation => {
                self.revoke_family(visitor, grant, &newest).await?;
                return Err(Code::InvalidRefreshToken.into());
            }
            Some(Family::Alive { .. }) | None => {}
        }
        let tokens = self.pool.refresh(&grant.username, &grant.token).await;
        let tokens = tokens.map_err(|fault| fault.problem(Operation::Refresh))?;
        let next = grant.next(tokens.refresh_token.clone());
        let newest = next.seal(&self.ring);
        let set = tokens.into_set(newest.clone());
        Ok((set, Family::Alive { generation: next.generation, newest }))
    }

    /// The pool has rotated already: a cache that fails now costs the replay, not the answer.
    async fn remember(&self, guard: Guard, token: &str, grant: &Grant, set: &TokenSet, family: &Family) {
        let drawer = Drawer::RefreshReplay;
        let replay = drawer.seal(token, &serde_json::to_vec(set).expect("a struct of texts is JSON"));
        let (entry, key, family) = (drawer.entry(token), family_key(&grant.family), family.to_bytes());
        let kept =
            [(&*entry, replay.as_bytes(), self.refresh.grace), (&*key, &*family, self.refresh.lifetime)];
        if let Err(error) = guard.release_after(&kept).await {
            tracing::warn!(%error, "a refreshed token cannot be remembered");
        }
    }

    /// One of two holders of this family is a thief: nobody keeps it.
    async fn revoke_family(&self, visitor: &Visitor, grant: &Grant, newest: &str) -> Result<(), Problem> {
        self.set_family(&grant.family, &Family::Revoked).await.map_err(cache_away)?;
        audit::record(visitor, Act::RefreshReuse, &grant.subject, "family_revoked");
        self.metrics.count(Act::RefreshReuse, "family_revoked");
        if let Some(newest) = Grant::open(&self.ring, newest)
            && let Err(fault) = self.pool.revoke(&newest.token).await
        {
            tracing::warn!(%fault, "the pool did not revoke a token that was used twice");
        }
        Ok(())
    }

    /// Ends the family that a refresh token belongs to. A token that is not good any more is logged out already.
    pub(crate) async fn logout(&self, visitor: &Visitor, token: &str) -> Result<(), Problem> {
        let outcome = self.end_family(token).await;
        self.ended(visitor, Act::SignOut, outcome.map(|subject| (subject, ())))
    }

    async fn end_family(&self, token: &str) -> Result<String, Problem> {
        let Some(grant) = Grant::open(&self.ring, token) else { return Ok(String::new()) };
        let newest = match self.family(&grant.family).await? {
            Some(Family::Revoked) => return Ok(grant.subject),
            Some(Family::Alive { newest, .. }) => Grant::open(&self.ring, &newest),
            None => None,
        };
        self.set_family(&grant.family, &Family::Revoked).await.map_err(cache_away)?;
        let newest = newest.map_or_else(|| grant.token.clone(), |newest| newest.token);
        match self.pool.revoke(&newest).await {
            Ok(()) => Ok(grant.subject),
            Err(fault) if fault.code(Operation::Revoke) == Code::InvalidRefreshToken => Ok(grant.subject),
            Err(fault) => Err(fault.problem(Operation::Revoke)),
        }
    }

    async fn family(&self, family: &str) -> Result<Option<Family>, Problem> {
        let found = self.cache.get(&family_key(family)).await.map_err(cache_away)?;
        Ok(found.and_then(|plain| serde_json::from_slice(&plain).ok()))
    }

    async fn set_family(
        &self,
        family: &str,
        state: &Family,
    ) -> Result<(), postern_common::cache::CacheError> {
        self.cache.set(&family_key(family), &state.to_bytes(), self.refresh.lifetime).await
    }
}

fn family_key(family: &str) -> String {
    format!("postern:auth:family:{family}")
}
