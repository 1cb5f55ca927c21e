//! What a social user's tokens are: ours, from the pool, and the provider's refresh token, which is
//! kept sealed.

use postern_common::token::oidc::IdToken;
use postern_common::{Problem, Secret};

use super::{Social, SocialFault};
use crate::auth::{Auth, cache_away};
use crate::pool::SignIn;
use crate::pool::admin::AdminPool;
use crate::pool::fault::{Fault, Operation};
use crate::random;
use crate::store::SocialIdentity;
use crate::temporary_token::TokensUnavailable;
use crate::token_set::TokenSet;

// === impl Auth ===

impl Auth {
    /// Keeps the provider's refresh token, sealed to provider, subject and user.
    pub(super) async fn keep_provider_token(
        &self,
        social: &Social,
        id: &IdToken,
        user_id: &str,
        token: &str,
    ) -> Result<(), SocialFault> {
        let context = [
            social.config.provider.as_str(),
            &id.issuer,
            &id.subject,
            user_id,
        ];
        let sealed = social.config.ring.seal(&context, token.as_bytes());
        let saved = self
            .store
            .save_social_token(&id.issuer, &id.subject, &sealed, self.clock.now())
            .await;
        Ok(saved.map_err(Problem::from)?)
    }

    /// Tokens of the pool for a user whom nobody has a password for: one is set, used once and
    /// forgotten, by one sign-in at a time. Else why there are none.
    pub(super) async fn social_tokens(
        &self,
        identity: &SocialIdentity,
    ) -> Result<Result<TokenSet, TokensUnavailable>, SocialFault> {
        let Some(admin) = &self.pool.admin else {
            return Ok(Err(TokensUnavailable::NotConfigured));
        };
        let Some(username) = &identity.username else {
            return Ok(Err(TokensUnavailable::NoAccount));
        };
        if !identity.social_only {
            return Ok(Err(TokensUnavailable::PasswordRequired));
        }
        let guard = self.lock_social("password", username).await?;
        let sign_in = Box::pin(self.one_time_sign_in(admin, username));
        guard.run(sign_in).await.map_err(cache_away)?.map(Ok)
    }

    async fn one_time_sign_in(
        &self,
        admin: &AdminPool,
        username: &str,
    ) -> Result<TokenSet, SocialFault> {
        let password = Secret::from(random::password());
        match admin.set_password(username, password.expose()).await {
            Err(Fault::UserNotFound) => return Err(SocialFault::AccessDenied),
            set => set.map_err(|fault| fault.problem(Operation::Admin))?,
        }
        match self.pool.sign_in(username, &password).await {
            Ok(SignIn::Tokens(tokens)) => Ok(self.admit(tokens)?.set),
            Ok(SignIn::Challenge(_)) => Err(SocialFault::AccessDenied),
            // Disabled, or deleted in the meantime.
            Err(Fault::NotAuthorized | Fault::UserNotFound) => Err(SocialFault::AccessDenied),
            Err(fault) => Err(fault.problem(Operation::SignIn).into()),
        }
    }
}
