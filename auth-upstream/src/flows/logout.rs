//! `POST /auth/logout`: revokes a refresh token at the pool.

use std::sync::Arc;

use postern_core::{Code, Problem};

use super::grant::RefreshGrant;
use super::{FlowParts, run_to_completion};
use crate::client::ClientContext;
use crate::pool::error::PoolCall;
use crate::telemetry::{AuditedResult, Completed, Operation};

/// Signs users out.
#[derive(Clone, Debug)]
pub(crate) struct LogoutFlow {
    pub(crate) parts: Arc<FlowParts>,
}

// === impl LogoutFlow ===

impl LogoutFlow {
    /// Revokes the refresh tokens of the sign-in to which a token belongs. Succeeds for an invalid
    /// token, which grants nothing. Completes even if the client disconnects.
    ///
    /// # Errors
    /// The problem codes of pool errors: the client repeats the logout.
    pub(crate) async fn logout(&self, client: &ClientContext, token: &str) -> AuditedResult<()> {
        let outcome = match RefreshGrant::open(&self.key_ring, token) {
            Some(grant) => {
                let flow = self.clone();
                run_to_completion(async move { flow.revoke(grant).await }).await
            }
            None => Ok(Completed {
                subject: String::new(),
                value: (),
            }),
        };
        self.audit.complete(client, Operation::Logout, outcome)
    }

    async fn revoke(&self, grant: RefreshGrant) -> Result<Completed<()>, Problem> {
        if let Err(error) = self.pool.revoke(&grant.token).await
            && error.code(PoolCall::Revoke) != Code::InvalidRefreshToken
        {
            return Err(error.problem(PoolCall::Revoke));
        }
        Ok(Completed {
            subject: grant.subject,
            value: (),
        })
    }
}
