//! Tokens of the pool for social users.

use std::sync::Arc;

use postern_common::Secret;

use super::super::exchange::TokensUnavailable;
use super::super::token_issuer::TokenIssuer;
use super::super::token_set::TokenSet;
use super::super::user_locks::UserLocks;
use super::SocialError;
use crate::crypto::random;
use crate::pool::admin::PoolAdmin;
use crate::pool::error::{PoolCall, PoolError};
use crate::pool::{SignInStep, UserPool};
use crate::store::SocialIdentity;

/// Issues tokens for social users with one-time passwords.
#[derive(Clone, Debug)]
pub(crate) struct SocialTokenIssuer {
    pub(crate) pool: Arc<UserPool>,
    pub(crate) issuer: TokenIssuer,
    pub(crate) locks: UserLocks,
}

// === impl SocialTokenIssuer ===

impl SocialTokenIssuer {
    /// Issues tokens for a user without a password of their own: sets a random password, signs in
    /// with it and discards it. Sign-ins of one user are serialized by a lock. Returns the reason
    /// if the user cannot get tokens.
    pub(super) async fn issue(
        &self,
        identity: &SocialIdentity,
    ) -> Result<Result<TokenSet, TokensUnavailable>, SocialError> {
        let Some(admin) = &self.pool.admin else {
            return Ok(Err(TokensUnavailable::NotConfigured));
        };
        let Some(username) = &identity.username else {
            return Ok(Err(TokensUnavailable::NoAccount));
        };
        if !identity.social_only {
            return Ok(Err(TokensUnavailable::PasswordRequired));
        }
        let sign_in = Box::pin(self.sign_in_once(admin, username));
        let tokens = self.locks.with_one_time_password(username, sign_in).await;
        tokens.map(Ok)
    }

    async fn sign_in_once(
        &self,
        admin: &PoolAdmin,
        username: &str,
    ) -> Result<TokenSet, SocialError> {
        let password = Secret::from(random::password());
        match admin.set_password(username, password.expose()).await {
            Err(PoolError::UserNotFound) => return Err(SocialError::AccessDenied),
            outcome => outcome.map_err(|error| error.problem(PoolCall::Admin))?,
        }
        match self.pool.sign_in(username, &password).await {
            Ok(SignInStep::Tokens(tokens)) => Ok(self.issuer.issue(tokens)?.tokens),
            Ok(SignInStep::Challenge(_)) => Err(SocialError::AccessDenied),
            // The user was disabled or deleted meanwhile.
            Err(PoolError::NotAuthorized | PoolError::UserNotFound) => {
                Err(SocialError::AccessDenied)
            }
            Err(error) => Err(error.problem(PoolCall::SignIn).into()),
        }
    }
}
