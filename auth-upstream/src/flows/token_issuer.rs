//! Conversion of a completed sign-in step into the client's tokens, or into the next challenge.

use std::sync::Arc;

use postern_core::email::EmailAddress;
use postern_core::{Clock, Code, Problem};

use super::challenge_session::{
    CHALLENGE_TTL, CONFIRMATION_TTL, ChallengeSession, SocialLink, address_unproven,
    challenge_required, confirmation_required,
};
use super::grant::RefreshGrant;
use super::security_stamps::StampSnapshot;
use super::social::AuthorizedUser;
use super::token_set::TokenSet;
use crate::crypto::KeyRing;
use crate::pool::{PoolChallenge, PoolTokens, UserPool};
use crate::telemetry::{Completed, log_limited, log_outage};

/// Issues tokens and challenge sessions.
#[derive(Clone, Debug)]
pub(crate) struct TokenIssuer {
    pool: Arc<UserPool>,
    key_ring: Arc<KeyRing>,
    clock: Clock,
}

/// A user who has signed in, with the tokens for the client.
#[derive(Debug)]
pub(crate) struct SignedInUser {
    pub(crate) subject: String,
    pub(crate) tokens: TokenSet,
}

// === impl TokenIssuer ===

impl TokenIssuer {
    pub(crate) fn new(pool: Arc<UserPool>, key_ring: Arc<KeyRing>, clock: Clock) -> Self {
        Self {
            pool,
            key_ring,
            clock,
        }
    }

    /// Seals the refresh token of a sign-in.
    pub(super) fn issue(&self, tokens: PoolTokens) -> Result<SignedInUser, Problem> {
        let Some(token) = tokens.refresh_token.clone() else {
            log_limited!(error, "app client of the pool issues no refresh tokens");
            return Err(Code::IdpMisconfigured.into());
        };
        let (username, subject) = (tokens.claims.username.clone(), tokens.claims.sub.clone());
        let grant = RefreshGrant {
            username,
            subject: subject.clone(),
            client_id: self.pool.client_id().to_owned(),
            token,
        };
        Ok(SignedInUser {
            subject,
            tokens: TokenSet::new(tokens, grant.seal(&self.key_ring)),
        })
    }

    /// Returns the problem that asks for the response to a challenge.
    pub(super) fn challenge_required(
        &self,
        challenge: &PoolChallenge,
        email: Option<&EmailAddress>,
        link: Option<&SocialLink>,
        stamps: StampSnapshot,
    ) -> Problem {
        let expires_at = self.clock.now().plus(CHALLENGE_TTL);
        let session = ChallengeSession::for_challenge(challenge, email, link, stamps, expires_at);
        challenge_required(challenge, &session.seal(&self.key_ring))
    }

    /// Returns the problem that asks for the code that was sent to the address of a social identity.
    pub(super) fn address_unproven(
        &self,
        user: &AuthorizedUser,
        email: &EmailAddress,
        stamps: StampSnapshot,
    ) -> Problem {
        let expires_at = self.clock.now().plus(CHALLENGE_TTL);
        let session = ChallengeSession::for_address(user, email, stamps, expires_at);
        address_unproven(email, &session.seal(&self.key_ring))
    }

    /// Returns the problem that asks for the code that was sent to the address.
    pub(super) fn confirmation_required(
        &self,
        email: &EmailAddress,
        registration: &str,
    ) -> Problem {
        let expires_at = self.clock.now().plus(CONFIRMATION_TTL);
        let session = ChallengeSession::for_confirmation(email, registration, expires_at);
        confirmation_required(&session.seal(&self.key_ring))
    }

    /// Revokes the tokens of a sign-in whose client does not get them, best effort.
    pub(super) async fn discard(&self, signed_in: &SignedInUser) {
        let Some(grant) = RefreshGrant::open(&self.key_ring, &signed_in.tokens.refresh_token)
        else {
            return;
        };
        if let Err(error) = self.pool.revoke(&grant.token).await {
            log_outage!("identity_pool", %error, "refresh token of a rejected sign-in not revoked at the pool");
        }
    }
}

// === impl SignedInUser ===

impl From<SignedInUser> for Completed<TokenSet> {
    fn from(signed_in: SignedInUser) -> Self {
        Self {
            subject: signed_in.subject,
            value: signed_in.tokens,
        }
    }
}
