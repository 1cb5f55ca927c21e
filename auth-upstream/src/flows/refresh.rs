//! `POST /auth/tokens/refresh`: rotation of refresh tokens.
//!
//! A refresh token is used once. Within the grace, the same token gets the same new tokens from any
//! replica, with one call to the pool: a client may have lost the response, or have several tabs
//! open. After the grace, reuse revokes the whole family, because one of two holders of the token
//! has stolen it. The shared cache contains the response under the digest of the used token, and
//! the state of the family.
//!
//! The state of a family is changed by compare-and-set, in the epoch of the cache in which it was
//! read. If the state has changed when the pool responds, the refresh revokes the new token at the
//! pool and reads the state again. A refresh in flight therefore never undoes a logout or a
//! revocation.

use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::{Cache, CacheError, Change, LockGuard, MemoryShare};
use postern_common::clock::Timestamp;
use postern_common::{Clock, Code, Problem};

use super::grant::RefreshGrant;
use super::revocation::TokenRevoker;
use super::token_family::{TokenFamily, family_key};
use super::token_set::TokenSet;
use super::{cache_unavailable, run_to_completion};
use crate::client::ClientContext;
use crate::config::RefreshSettings;
use crate::crypto::{KeyRing, VaultPurpose, sha256_hex};
use crate::pool::UserPool;
use crate::pool::error::PoolCall;
use crate::telemetry::{AuditLog, AuditedResult, Completed, Operation};

/// The time for which one caller may rotate a token while others wait for its response.
const ROTATION_LOCK_TTL: Duration = Duration::from_secs(10);
/// The time between two polls of a waiting caller.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum number of polls: 9 s in all, longer than a call to the pool may take.
const MAX_POLLS: u32 = 450;
/// Delays before a change of a family is retried while the cache is unavailable. After the last
/// one, the refresh fails.
const COMMIT_RETRY_DELAYS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
];
/// Part of a cache in memory that the families of one user may use: 1/64, 1 MiB by default.
const FAMILY_SHARE_DIVISOR: usize = 64;
/// The window in which the refreshes of a family are counted.
const REFRESH_QUOTA_WINDOW: Duration = Duration::from_secs(10 * 60);

/// Refreshes tokens.
#[derive(Clone, Debug)]
pub(crate) struct RefreshFlow {
    pub(crate) pool: Arc<UserPool>,
    pub(crate) cache: Cache,
    pub(crate) key_ring: Arc<KeyRing>,
    pub(crate) revoker: TokenRevoker,
    pub(crate) settings: RefreshSettings,
    pub(crate) audit: AuditLog,
    pub(crate) clock: Clock,
}

/// A refresh token that a client presents, sealed and opened.
#[derive(Clone, Copy, Debug)]
struct PresentedToken<'a> {
    sealed: &'a str,
    grant: &'a RefreshGrant,
}

/// The cached state of a presented token.
struct CachedState {
    /// The response that the token got before, within the grace.
    replay: Option<TokenSet>,
    family: Option<TokenFamily>,
    /// The encoded family.
    stored: Option<Vec<u8>>,
    /// The epoch of the cache in which the family was read.
    epoch: String,
}

/// A change of a family, conditional on the state that was read.
struct FamilyUpdate<'a> {
    read: &'a CachedState,
    family: TokenFamily,
}

/// The result of a rotation.
enum RotationOutcome {
    Rotated(TokenSet),
    /// The family changed meanwhile, or is in another epoch: it must be read again.
    Conflict,
}

/// The number of refreshes in the present quota window.
#[derive(Clone, Copy, Debug)]
struct QuotaCount {
    count: u32,
    /// Start of the window in milliseconds since the epoch.
    counted_from: i64,
}

// === impl RefreshFlow ===

impl RefreshFlow {
    /// Exchanges a refresh token for new tokens.
    ///
    /// # Errors
    /// `invalid_refresh_token` for a foreign, used, revoked or expired token; `rate_limited` above
    /// the quota; `unavailable` while the cache or the pool fails. The token remains valid then,
    /// unless the pool has rotated it already.
    pub(crate) async fn refresh(
        &self,
        client: &ClientContext,
        token: &str,
    ) -> AuditedResult<TokenSet> {
        let (flow, owned_client, token) = (self.clone(), client.clone(), token.to_owned());
        let outcome =
            run_to_completion(async move { flow.rotate_once(&owned_client, &token).await }).await;
        self.audit.complete(client, Operation::Refresh, outcome)
    }

    async fn rotate_once(
        &self,
        client: &ClientContext,
        token: &str,
    ) -> Result<Completed<TokenSet>, Problem> {
        let grant = RefreshGrant::open(&self.key_ring, token).ok_or(Code::InvalidRefreshToken)?;
        if grant.client_id != self.pool.client_id() {
            return Err(Code::InvalidRefreshToken.into());
        }
        let presented = PresentedToken {
            sealed: token,
            grant: &grant,
        };
        for _ in 0..MAX_POLLS {
            let (mut guard, cached) = self.lock_rotation(presented).await?;
            if matches!(cached.family, Some(TokenFamily::Revoked { .. })) {
                return Err(Code::InvalidRefreshToken.into());
            }
            // The previous holder of the lock may have stored a response.
            if let Some(tokens) = cached.replay {
                if let Some(guard) = guard {
                    guard.release().await;
                }
                return Ok(Completed {
                    subject: grant.subject,
                    value: tokens,
                });
            }
            if let Some(guard) = &mut guard
                && let RotationOutcome::Rotated(tokens) =
                    self.rotate(client, guard, presented, cached).await?
            {
                return Ok(Completed {
                    subject: grant.subject,
                    value: tokens,
                });
            }
            drop(guard);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(Code::Unavailable.into())
    }

    /// Acquires the rotation lock of a token, unless another caller holds it, and reads the cached
    /// state in the same round trip.
    async fn lock_rotation(
        &self,
        presented: PresentedToken<'_>,
    ) -> Result<(Option<LockGuard>, CachedState), Problem> {
        let purpose = VaultPurpose::RefreshReplay;
        let token = presented.sealed;
        let lock = format!("postern:auth:refresh-lock:{}", sha256_hex(token));
        let keys = [
            &*family_key(&presented.grant.family),
            &*purpose.cache_key(token),
        ];
        let (guard, found) = self
            .cache
            .lock_and_get(&lock, ROTATION_LOCK_TTL, keys)
            .await
            .map_err(cache_unavailable)?;
        let [stored, replay] = found.values;
        let replay = replay.and_then(|sealed| purpose.open(token, &sealed));
        let cached = CachedState {
            replay: replay.and_then(|plain| serde_json::from_slice(&plain).ok()),
            family: stored.as_deref().map(TokenFamily::from_bytes).transpose()?,
            stored,
            epoch: found.epoch,
        };
        Ok((guard, cached))
    }

    /// Rotates a token under its lock. The new tokens are stored before the client gets them.
    async fn rotate(
        &self,
        client: &ClientContext,
        guard: &mut LockGuard,
        presented: PresentedToken<'_>,
        cached: CachedState,
    ) -> Result<RotationOutcome, Problem> {
        let grant = presented.grant;
        if let Some(TokenFamily::Alive { generation, .. }) = cached.family
            && generation > grant.generation
        {
            self.revoke_reused_family(client, grant).await?;
            return Err(Code::InvalidRefreshToken.into());
        }
        let quota = self.count_refresh(cached.family.as_ref())?;
        let tokens = self.pool.refresh(&grant.username, &grant.token).await;
        let tokens = tokens.map_err(|error| error.problem(PoolCall::Refresh))?;
        let rotated = tokens.refresh_token.clone();
        let next = grant.next(rotated.clone());
        let newest = next.seal(&self.key_ring);
        let set = TokenSet::new(tokens, newest.clone());
        let update = FamilyUpdate {
            read: &cached,
            family: TokenFamily::Alive {
                generation: next.generation,
                newest,
                count: quota.count,
                counted_from: quota.counted_from,
            },
        };
        let committed = self.commit(guard, presented, &set, update).await;
        if let Ok(true) = committed {
            return Ok(RotationOutcome::Rotated(set));
        }
        // No client gets the new token. A pool that does not rotate has issued none: its one token
        // is revoked with the family.
        if let Some(rotated) = rotated {
            self.revoker.discard(rotated).await;
        }
        committed
            .map(|_| RotationOutcome::Conflict)
            .map_err(cache_unavailable)
    }

    /// Counts one more refresh of a family.
    ///
    /// # Errors
    /// `rate_limited` if the quota is used up.
    fn count_refresh(&self, family: Option<&TokenFamily>) -> Result<QuotaCount, Problem> {
        let now = self.clock.now();
        match family {
            Some(TokenFamily::Alive {
                count,
                counted_from,
                ..
            }) if now < Timestamp(*counted_from).plus(REFRESH_QUOTA_WINDOW) => {
                if *count >= self.settings.quota {
                    let window_end = Timestamp(*counted_from).plus(REFRESH_QUOTA_WINDOW);
                    let wait_s = window_end.0.saturating_sub(now.0) / 1000 + 1;
                    let wait_s = u32::try_from(wait_s).unwrap_or(u32::MAX);
                    return Err(Problem::new(Code::RateLimited).retry_after(wait_s));
                }
                Ok(QuotaCount {
                    count: count + 1,
                    counted_from: *counted_from,
                })
            }
            _ => Ok(QuotaCount {
                count: 1,
                counted_from: now.0,
            }),
        }
    }

    /// Stores the new state of a family and the response for repeated requests. Returns false if
    /// the family is not in the state in which it was read.
    async fn commit(
        &self,
        guard: &mut LockGuard,
        presented: PresentedToken<'_>,
        set: &TokenSet,
        update: FamilyUpdate<'_>,
    ) -> Result<bool, CacheError> {
        let purpose = VaultPurpose::RefreshReplay;
        let plain = serde_json::to_vec(set).expect("the struct serializes to JSON");
        let replay = purpose.seal(presented.sealed, &plain);
        let replay_key = purpose.cache_key(presented.sealed);
        let key = family_key(&presented.grant.family);
        let family = update.family.to_bytes();
        let change = Change {
            key: &key,
            epoch: &update.read.epoch,
            expected: update.read.stored.as_deref(),
            value: &family,
            ttl: self.settings.lifetime,
            owner: Some(MemoryShare {
                name: &presented.grant.subject,
                divisor: FAMILY_SHARE_DIVISOR,
            }),
        };
        let entries = [(&*replay_key, replay.as_bytes(), self.settings.grace)];
        let mut outcome = guard.commit(&change, &entries).await;
        for delay in COMMIT_RETRY_DELAYS {
            if outcome.is_ok() {
                break;
            }
            tokio::time::sleep(delay).await;
            outcome = guard.commit(&change, &entries).await;
        }
        outcome
    }

    /// Revokes a family of which a used token was presented after the grace.
    async fn revoke_reused_family(
        &self,
        client: &ClientContext,
        grant: &RefreshGrant,
    ) -> Result<(), Problem> {
        let mark = self.revoker.mark_revoked(grant).await;
        if let Some(newest) = mark.newest {
            self.revoker.discard(newest).await;
        }
        mark.outcome?;
        self.audit.record(
            client,
            Operation::RefreshReuse,
            &grant.subject,
            "family_revoked",
        );
        Ok(())
    }
}
