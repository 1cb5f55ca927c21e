//! `POST /auth/logout`: revokes a refresh token at the pool.

use std::sync::Arc;

use postern_core::{Code, Problem};

use super::grant::RefreshGrant;
use super::{Flows, run_to_completion};
use crate::client::ClientContext;
use crate::telemetry::{AuditedResult, Completed, Operation};

// === impl Flows ===

impl Flows {
    /// Revokes the refresh tokens of the sign-in to which a token belongs. Succeeds for an invalid
    /// token, which grants nothing. Completes even if the client disconnects.
    pub(crate) async fn logout(
        self: &Arc<Self>,
        client: &ClientContext,
        token: &str,
    ) -> AuditedResult<()> {
        let outcome = match RefreshGrant::open(&self.key_ring, token) {
            Some(grant) => {
                let flows = Arc::clone(self);
                run_to_completion(async move { flows.revoke_grant(grant).await }).await
            }
            None => Ok(Completed::new("", ())),
        };
        self.audit.complete(client, Operation::Logout, outcome)
    }

    async fn revoke_grant(&self, grant: RefreshGrant) -> Result<Completed<()>, Problem> {
        if let Err(fault) = self.pool.revoke(&grant.token).await
            && fault.code() != Code::InvalidRefreshToken
        {
            return Err(fault.into());
        }
        Ok(Completed::new(grant.subject, ()))
    }
}
