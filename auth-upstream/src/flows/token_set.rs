//! The tokens in responses to clients.

use postern_core::{Code, Problem};
use serde::{Deserialize, Serialize};

use super::Flows;
use super::grant::RefreshGrant;
use crate::pool::PoolTokens;
use crate::telemetry::{Completed, log_limited, log_outage};

pub(super) type SignedInUser = Completed<TokenSet>;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenSet {
    pub(crate) access_token: String,
    pub(crate) id_token: String,
    /// This service's refresh token, which contains the pool's, sealed.
    pub(crate) refresh_token: String,
    /// The `exp` claim of the access token, in RFC 3339 format with milliseconds.
    pub(crate) expires_at: String,
}

// === impl Flows ===

impl Flows {
    pub(super) fn issue(&self, tokens: PoolTokens) -> Result<SignedInUser, Problem> {
        let Some(token) = tokens.refresh_token.clone() else {
            log_limited!(error, "app client of the pool issues no refresh tokens");
            return Err(Code::IdpMisconfigured.into());
        };
        let subject = tokens.claims.sub.clone();
        let grant = RefreshGrant {
            username: tokens.claims.username.clone(),
            subject: subject.clone(),
            client_id: self.pool.client_id().to_owned(),
            token,
        };
        let value = TokenSet::new(tokens, grant.seal(&self.key_ring));
        Ok(Completed { subject, value })
    }

    /// Revokes the tokens of a sign-in whose client does not get them, best effort.
    pub(super) async fn discard(&self, signed_in: &SignedInUser) {
        let token = &signed_in.value.refresh_token;
        let Some(grant) = RefreshGrant::open(&self.key_ring, token) else {
            return;
        };
        if let Err(error) = self.pool.revoke(&grant.token).await {
            log_outage!("identity_pool", %error, "refresh token of a rejected sign-in not revoked at the pool");
        }
    }
}

// === impl TokenSet ===

impl TokenSet {
    pub(super) fn new(tokens: PoolTokens, refresh_token: String) -> Self {
        Self {
            access_token: tokens.access_token,
            id_token: tokens.id_token,
            refresh_token,
            expires_at: tokens.claims.expires_at().to_string(),
        }
    }
}

impl std::fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenSet(until {})", self.expires_at)
    }
}
