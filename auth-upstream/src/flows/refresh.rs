//! `POST /auth/tokens/refresh`: one call to the pool.
//!
//! Rotation, its grace period and the detection of reuse are the pool's. This service stores
//! nothing, so that refreshing needs neither the cache nor the database.

use postern_core::{Code, Problem};

use super::Flows;
use super::grant::RefreshGrant;
use super::token_set::TokenSet;
use crate::client::ClientContext;
use crate::pool::error::PoolError;
use crate::telemetry::{AuditedResult, Completed, Operation};

// === impl Flows ===

impl Flows {
    /// Exchanges a refresh token for new tokens. The refresh token among them is a new one if the
    /// pool rotates.
    pub(crate) async fn refresh(
        &self,
        client: &ClientContext,
        token: &str,
    ) -> AuditedResult<TokenSet> {
        let grant = RefreshGrant::open(&self.key_ring, token)
            .filter(|grant| grant.client_id == self.pool.client_id());
        let outcome = match grant {
            Some(grant) => self.refresh_grant(client, grant).await,
            None => Err(Code::InvalidRefreshToken.into()),
        };
        self.audit.complete(client, Operation::Refresh, outcome)
    }

    async fn refresh_grant(
        &self,
        client: &ClientContext,
        grant: RefreshGrant,
    ) -> Result<Completed<TokenSet>, Problem> {
        let refreshed = self.pool.refresh(&grant.username, &grant.token).await;
        let tokens = refreshed.map_err(|fault| {
            if fault.error == PoolError::TokenReused {
                let (operation, outcome) = (Operation::RefreshReuse, fault.code().as_str());
                let subject = &grant.subject;
                self.audit.record(client, operation, subject, outcome);
            }
            Problem::from(fault)
        })?;
        let subject = grant.subject.clone();
        let next = grant.with_token(tokens.refresh_token.clone());
        let refreshed = TokenSet::new(tokens, next.seal(&self.key_ring));
        Ok(Completed::new(subject, refreshed))
    }
}
