//! `POST /auth/logout`: revokes a token family.

use std::sync::Arc;

use postern_common::{Code, Problem};

use super::grant::RefreshGrant;
use super::revocation::{Revocation, RevokedFamily, TokenRevoker};
use super::run_to_completion;
use crate::client::ClientContext;
use crate::crypto::KeyRing;
use crate::telemetry::{AuditLog, AuditedResult, Completed, Operation};

/// The maximum number of times that a logout marks its family as revoked. A cache fail-over may
/// lose the mark, so that it is set again.
const MAX_LOGOUT_ATTEMPTS: u32 = 3;

/// Revokes token families.
#[derive(Clone, Debug)]
pub(crate) struct LogoutFlow {
    pub(crate) revoker: TokenRevoker,
    pub(crate) key_ring: Arc<KeyRing>,
    pub(crate) audit: AuditLog,
}

// === impl LogoutFlow ===

impl LogoutFlow {
    /// Revokes the family of a refresh token. Succeeds for an invalid token, which grants nothing.
    ///
    /// # Errors
    /// `rate_limited` after too many calls to the pool for this family; `unavailable` if the cache
    /// fails or has lost the mark [`MAX_LOGOUT_ATTEMPTS`] times; the problem codes of pool errors.
    pub(crate) async fn logout(&self, client: &ClientContext, token: &str) -> AuditedResult<()> {
        let (flow, token) = (self.clone(), token.to_owned());
        let outcome = run_to_completion(async move { flow.revoke_family(&token).await }).await;
        let completed = outcome.map(|subject| Completed { subject, value: () });
        self.audit.complete(client, Operation::Logout, completed)
    }

    /// Revokes the family of a token and returns the user's subject, which is empty for an invalid
    /// token.
    async fn revoke_family(&self, token: &str) -> Result<String, Problem> {
        let Some(grant) = RefreshGrant::open(&self.key_ring, token) else {
            return Ok(String::new());
        };
        for _ in 0..MAX_LOGOUT_ATTEMPTS {
            let mark = self.revoker.mark_revoked(&grant).await;
            if mark.is_revoked_at_pool {
                return Ok(grant.subject);
            }
            // The presented token is revoked even if the cache fails.
            let newest = mark.newest.filter(|newest| *newest != grant.token);
            let tokens = newest.into_iter().chain([grant.token.clone()]).collect();
            let family = RevokedFamily::of(&grant);
            let revocation = Revocation {
                family: Some(family.clone()),
                tokens,
            };
            let revoked = self.revoker.revoke_at_pool(revocation).await;
            mark.outcome?;
            revoked?;
            // A fail-over may have lost the mark, so that a concurrent refresh may have succeeded.
            if self.revoker.mark_revoked_at_pool(&family).await? {
                return Ok(grant.subject);
            }
        }
        Err(Code::Unavailable.into())
    }
}
