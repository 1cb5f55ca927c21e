//! The content of this service's refresh tokens.
//!
//! A refresh token is opaque to clients. It contains, sealed, the pool's refresh token, the user name
//! and the app client, so that clients send nothing else and the pool's token never leaves this
//! process in clear.

use serde::{Deserialize, Serialize};

use crate::crypto::KeyRing;

const REFRESH_TOKEN_CONTEXT: [&str; 1] = ["postern refresh token"];

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefreshGrant {
    pub(crate) username: String,
    pub(crate) subject: String,
    pub(crate) client_id: String,
    pub(crate) token: String,
}

// === impl RefreshGrant ===

impl RefreshGrant {
    /// Returns the grant with the token of a refresh. `token` is `None` if the pool does not rotate
    /// refresh tokens; the present one remains valid then.
    pub(crate) fn with_token(self, token: Option<String>) -> Self {
        Self {
            token: token.unwrap_or(self.token),
            ..self
        }
    }

    pub(crate) fn seal(&self, key_ring: &KeyRing) -> String {
        key_ring.seal_json(&REFRESH_TOKEN_CONTEXT, self)
    }

    /// Opens a refresh token. Returns `None` unless it was sealed with one of the keys.
    pub(crate) fn open(key_ring: &KeyRing, token: &str) -> Option<Self> {
        key_ring.open_json(&REFRESH_TOKEN_CONTEXT, token)
    }
}

impl std::fmt::Debug for RefreshGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefreshGrant")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::{SealingKey, random};

    fn key_ring() -> KeyRing {
        KeyRing::new(SealingKey::new(&random::bytes()), Vec::new())
    }

    #[test]
    fn refresh_token_is_opaque_and_opens_with_its_key_only() {
        let keys = key_ring();
        let grant = RefreshGrant {
            username: "u-1".into(),
            subject: "s-1".into(),
            client_id: "client".into(),
            token: "pool-token".into(),
        };
        let token = grant.seal(&keys);
        assert!(!token.contains("pool-token") && !token.contains("u-1"));
        assert_eq!(RefreshGrant::open(&keys, &token), Some(grant.clone()));
        assert_eq!(RefreshGrant::open(&key_ring(), &token), None);
        assert_eq!(RefreshGrant::open(&keys, "pool-token"), None);
        assert_eq!(grant.clone().with_token(None).token, "pool-token");
        assert_eq!(grant.with_token(Some("new".into())).token, "new");
    }
}
