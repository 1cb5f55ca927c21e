//! The content of this service's refresh tokens.
//!
//! A refresh token is opaque to clients. It contains, sealed, the pool's refresh token and user
//! name, the app client and the token family, so that clients send nothing else and the pool's
//! token never leaves this process in clear.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::crypto::KeyRing;

/// The sealing context of refresh tokens.
const REFRESH_TOKEN_CONTEXT: [&str; 1] = ["postern refresh token"];

/// The content of a refresh token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefreshGrant {
    /// The pool's user name.
    pub(crate) username: String,
    pub(crate) subject: String,
    /// The app client for which the pool's token was issued.
    pub(crate) client_id: String,
    /// The token family: one sign-in and all refreshes that follow it.
    pub(crate) family: String,
    /// The number of refreshes since the sign-in.
    pub(crate) generation: u64,
    /// The pool's refresh token.
    pub(crate) token: String,
}

// === impl RefreshGrant ===

impl RefreshGrant {
    /// Creates the first grant of a new family.
    pub(crate) fn new(username: String, subject: String, client_id: &str, token: String) -> Self {
        let family = Uuid::new_v4().simple().to_string();
        Self {
            username,
            subject,
            client_id: client_id.to_owned(),
            family,
            generation: 0,
            token,
        }
    }

    /// Creates the next grant of the family. `token` is `None` if the pool does not rotate refresh
    /// tokens; the present one remains valid then.
    pub(crate) fn next(&self, token: Option<String>) -> Self {
        let generation = self.generation.saturating_add(1);
        let token = token.unwrap_or_else(|| self.token.clone());
        Self {
            generation,
            token,
            ..self.clone()
        }
    }

    pub(crate) fn seal(&self, key_ring: &KeyRing) -> String {
        let plain = serde_json::to_vec(self).expect("the struct serializes to JSON");
        key_ring.seal(&REFRESH_TOKEN_CONTEXT, &plain)
    }

    /// Opens a refresh token. Returns `None` unless it was sealed with one of the keys.
    pub(crate) fn open(key_ring: &KeyRing, token: &str) -> Option<Self> {
        serde_json::from_slice(&key_ring.open(&REFRESH_TOKEN_CONTEXT, token)?).ok()
    }
}

impl std::fmt::Debug for RefreshGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefreshGrant")
            .field("family", &self.family)
            .field("generation", &self.generation)
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
        let grant = RefreshGrant::new("u-1".into(), "s-1".into(), "client", "pool-token".into());
        let token = grant.seal(&keys);
        assert!(!token.contains("pool-token") && !token.contains("u-1"));
        assert_eq!(RefreshGrant::open(&keys, &token), Some(grant.clone()));
        assert_eq!(RefreshGrant::open(&key_ring(), &token), None);
        assert_eq!(RefreshGrant::open(&keys, "pool-token"), None);
        let next = grant.next(None);
        assert_eq!(
            (next.generation, &*next.token, &next.family),
            (1, "pool-token", &grant.family)
        );
    }
}
