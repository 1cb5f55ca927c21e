//! The tokens in responses to clients.

use serde::{Deserialize, Serialize};

use crate::pool::PoolTokens;

/// The tokens of a signed-in user, as serialized for clients.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenSet {
    /// The pool's access token.
    pub(crate) access_token: String,
    /// The pool's ID token.
    pub(crate) id_token: String,
    /// This service's refresh token, which contains the pool's, sealed.
    pub(crate) refresh_token: String,
    /// The `exp` claim of the access token, in RFC 3339 format with milliseconds.
    pub(crate) expires_at: String,
}

// === impl TokenSet ===

impl TokenSet {
    /// Combines tokens of the pool with this service's refresh token.
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
