//! Sign-ins, challenges and one-time codes. Only digests of tokens and codes are stored.

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
    pub(crate) expires_at: i64,
}

/// The last code that was created for a name and a purpose. Codes of unknown names are stored but
/// never sent, so that the request takes the same time.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Code {
    /// `None` once it was used.
    pub(crate) hash: Option<String>,
    pub(crate) expires_at: i64,
    pub(crate) wrong_attempts: u32,
    /// Codes that were created since `window_start`.
    pub(crate) sent: u32,
    pub(crate) window_start: i64,
}

// === impl Session ===

impl Session {
    /// Returns whether the sign-in has neither been revoked nor ended by a sign-out of the user.
    pub(crate) fn is_active(&self, user: &User) -> bool {
        !self.is_revoked && self.sub == user.sub && self.sign_outs == user.sign_outs
    }
}
