//! Our own refresh token and challenge session: sealed texts that a client keeps and hands back
//! unread.
//!
//! A refresh token carries the pool's refresh token, the pool's real user name, the client and the
//! family it belongs to, so that the caller sends nothing else and the pool's token never leaves
//! this process in clear.

use std::collections::HashMap;

use postern_common::clock::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::email::Email;
use crate::pool::PoolChallenge;
use crate::seal::KeyRing;

/// What our refresh token carries.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The pool's real user name.
    pub(crate) username: String,
    pub(crate) subject: String,
    /// The client at the pool that the pool's token belongs to.
    pub(crate) client_id: String,
    /// One sign-in and every refresh that came of it.
    pub(crate) family: String,
    /// How many refreshes lie between the sign-in and this token.
    pub(crate) generation: u64,
    /// The pool's refresh token.
    pub(crate) token: String,
}

/// What a challenge session carries.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Session {
    /// A step that the pool wants.
    Pool {
        /// Cognito's name for it.
        name: String,
        session: String,
        username: String,
        /// What the person signed in with.
        email: String,
        /// Parameters that belong into the answer again.
        parameters: HashMap<String, String>,
        expires_at: i64,
    },
    /// The address must be confirmed with a code, at `POST /auth/register/confirm`.
    Confirm {
        email: String,
        profile: Map<String, Value>,
        expires_at: i64,
    },
}

const REFRESH: [&str; 1] = ["postern refresh token"];
const CHALLENGE: [&str; 1] = ["postern challenge session"];

// === impl Grant ===

impl Grant {
    /// The first of a new family.
    pub(crate) fn first(username: String, subject: String, client_id: &str, token: String) -> Self {
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

    /// The next of the same family; a pool that does not rotate gives no new token.
    pub(crate) fn next(&self, token: Option<String>) -> Self {
        let generation = self.generation.saturating_add(1);
        let token = token.unwrap_or_else(|| self.token.clone());
        Self {
            generation,
            token,
            ..self.clone()
        }
    }

    pub(crate) fn seal(&self, ring: &KeyRing) -> String {
        ring.seal(
            &REFRESH,
            &serde_json::to_vec(self).expect("a struct of texts is JSON"),
        )
    }

    /// `None` for whatever we did not seal.
    pub(crate) fn open(ring: &KeyRing, text: &str) -> Option<Self> {
        serde_json::from_slice(&ring.open(&REFRESH, text)?).ok()
    }
}

// === impl Session ===

impl Session {
    pub(crate) fn of_pool(challenge: &PoolChallenge, email: &Email, expires_at: Timestamp) -> Self {
        Self::Pool {
            name: challenge.name.clone(),
            session: challenge.session.clone(),
            username: challenge.username.clone(),
            email: email.as_str().to_owned(),
            parameters: HashMap::new(),
            expires_at: expires_at.0,
        }
    }

    pub(crate) fn of_confirmation(
        email: &Email,
        profile: Map<String, Value>,
        expires_at: Timestamp,
    ) -> Self {
        Self::Confirm {
            email: email.as_str().to_owned(),
            profile,
            expires_at: expires_at.0,
        }
    }

    pub(crate) fn seal(&self, ring: &KeyRing) -> String {
        ring.seal(
            &CHALLENGE,
            &serde_json::to_vec(self).expect("an enum of texts is JSON"),
        )
    }

    /// `None` for whatever we did not seal, and for what is too old.
    pub(crate) fn open(ring: &KeyRing, text: &str, now: Timestamp) -> Option<Self> {
        let session: Self = serde_json::from_slice(&ring.open(&CHALLENGE, text)?).ok()?;
        let (Self::Pool { expires_at, .. } | Self::Confirm { expires_at, .. }) = &session;
        (now.0 < *expires_at).then_some(session)
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("family", &self.family)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use crate::seal::Key;

    fn ring() -> KeyRing {
        KeyRing::new(Key::new(&random::bytes()), Vec::new())
    }

    #[test]
    fn a_refresh_token_is_opaque_and_opens_only_here() {
        let ring_here = ring();
        let grant = Grant::first("u-1".into(), "s-1".into(), "client", "pool-token".into());
        let text = grant.seal(&ring_here);
        assert!(!text.contains("pool-token") && !text.contains("u-1"));
        assert_eq!(Grant::open(&ring_here, &text), Some(grant.clone()));
        assert_eq!(Grant::open(&ring(), &text), None);
        assert_eq!(Grant::open(&ring_here, "pool-token"), None);
        let next = grant.next(None);
        assert_eq!(
            (next.generation, &*next.token, &next.family),
            (1, "pool-token", &grant.family)
        );
    }

    #[test]
    fn a_session_is_no_refresh_token_and_grows_old() {
        let ring = ring();
        let email = Email::parse("ada@example.com").expect("address");
        let text = Session::of_confirmation(&email, Map::new(), Timestamp(1000)).seal(&ring);
        assert!(Session::open(&ring, &text, Timestamp(999)).is_some());
        assert!(Session::open(&ring, &text, Timestamp(1000)).is_none());
        assert!(Grant::open(&ring, &text).is_none());
    }
}
