//! What every sign-in ends with.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::clock::Timestamp;
use serde::{Deserialize, Serialize};

/// The tokens of a signed-in user, as a client reads them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenSet {
    /// Sent as Bearer token.
    pub(crate) access_token: String,
    /// Who the user is, for the client.
    pub(crate) id_token: String,
    /// Our own sealed form of the pool's refresh token.
    pub(crate) refresh_token: String,
    /// The access token's own `exp`, RFC 3339 with milliseconds.
    pub(crate) expires_at: String,
}

/// What the pool gave for a sign-in.
#[derive(Clone)]
pub(crate) struct PoolTokens {
    pub(crate) access_token: String,
    pub(crate) id_token: String,
    /// Absent on a refresh where the pool does not rotate.
    pub(crate) refresh_token: Option<String>,
    pub(crate) claims: Claims,
}

/// The claims of an access token that we need ourselves. They come straight from the pool over our
/// own connection, so that the signature is not checked again here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Claims {
    pub(crate) exp: i64,
    pub(crate) sub: String,
    /// The pool's real user name, over which secret hashes are made after sign-in.
    pub(crate) username: String,
}

// === impl Claims ===

impl Claims {
    /// `None` when the text is not a JWT with these claims.
    pub(crate) fn of(token: &str) -> Option<Self> {
        let payload = token.split('.').nth(1)?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }

    pub(crate) fn expires_at(&self) -> Timestamp {
        Timestamp::from_unix_seconds(self.exp)
    }
}

// === impl PoolTokens ===

impl PoolTokens {
    /// The set that the client gets, with our own refresh token.
    pub(crate) fn into_set(self, refresh_token: String) -> TokenSet {
        TokenSet {
            access_token: self.access_token,
            id_token: self.id_token,
            refresh_token,
            expires_at: self.claims.expires_at().to_string(),
        }
    }
}

impl std::fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenSet(until {})", self.expires_at)
    }
}

impl std::fmt::Debug for PoolTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolTokens(of {})", self.claims.sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expires_at_is_the_tokens_own_exp() {
        let payload =
            URL_SAFE_NO_PAD.encode(r#"{"exp":1795159800,"sub":"s","username":"u","scope":"x"}"#);
        let claims = Claims::of(&format!("h.{payload}.s")).expect("claims");
        assert_eq!(claims.expires_at().to_string(), "2026-11-20T07:30:00.000Z");
        assert!(Claims::of("no token").is_none());
    }
}
