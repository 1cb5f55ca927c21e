//! Sign-ins and challenges. Only digests of tokens are stored.

use serde::{Deserialize, Serialize};

use super::User;

/// A sign-in: the claim `origin_jti`, with its first refresh token and all rotations of it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) pool_id: String,
    pub(crate) client_id: String,
    pub(crate) username: String,
    /// Subject of the user, which a user who is created later under the same name does not have.
    pub(crate) sub: String,
    /// [`User::sign_outs`] at the sign-in.
    pub(crate) sign_outs: u64,
    /// Time of the password authentication in Unix seconds.
    pub(crate) auth_time: i64,
    pub(crate) expires_at: i64,
    pub(crate) is_revoked: bool,
    pub(crate) tokens: Vec<RefreshToken>,
}

/// A refresh token of a sign-in.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RefreshToken {
    pub(crate) hash: String,
    /// Time of the first use, which rotates the token if the client has rotation.
    pub(crate) rotated_at: Option<i64>,
}

/// A pending challenge.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Challenge {
    pub(crate) client_id: String,
    pub(crate) pool_id: String,
    pub(crate) username: String,
    /// [`User::version`] when the challenge was created.
    pub(crate) user_version: String,
    /// The nonce of a CUSTOM_CHALLENGE.
    pub(crate) nonce: Option<String>,
    pub(crate) expires_at: i64,
}

// === impl Session ===

impl Session {
    /// Returns whether the sign-in has neither been revoked nor ended by a sign-out of the user.
    pub(crate) fn is_active(&self, user: &User) -> bool {
        !self.is_revoked && self.sub == user.sub && self.sign_outs == user.sign_outs
    }
}
