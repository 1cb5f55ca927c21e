//! The state of a token family in the shared cache.
//!
//! A family is changed by compare-and-set in the epoch of the cache in which it was read.
//! [`TokenFamily::Revoked`] is final.

use postern_common::{Code, Problem};
use serde::{Deserialize, Serialize};

/// The state of all refresh tokens that descend from one sign-in. A family that was never refreshed
/// has no entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TokenFamily {
    /// The family can be refreshed with its newest token.
    Alive {
        /// The generation of the newest token.
        generation: u64,
        /// The newest refresh token, sealed, to be revoked if an older one is used again.
        newest: String,
        /// The number of refreshes since `counted_from`.
        #[serde(default)]
        count: u32,
        /// Start of the quota window in milliseconds since the epoch.
        #[serde(default)]
        counted_from: i64,
    },
    /// No token of the family is accepted.
    Revoked {
        /// The newest refresh token, sealed, to be revoked at the pool by a repeated logout.
        newest: Option<String>,
        /// Whether the pool has revoked it, so that no further call is needed.
        #[serde(default)]
        is_at_pool: bool,
    },
}

// === impl TokenFamily ===

impl TokenFamily {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the enum serializes to JSON")
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// `invalid_refresh_token` for an entry that cannot be decoded, since it may be a revoked
    /// family.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        serde_json::from_slice(bytes).map_err(|_| Code::InvalidRefreshToken.into())
    }

    /// Returns the newest refresh token, sealed.
    pub(super) fn newest(&self) -> Option<&str> {
        match self {
            Self::Alive { newest, .. } => Some(newest),
            Self::Revoked { newest, .. } => newest.as_deref(),
        }
    }
}

/// Returns the cache key of a family.
pub(super) fn family_key(family: &str) -> String {
    format!("postern:auth:family:{family}")
}
