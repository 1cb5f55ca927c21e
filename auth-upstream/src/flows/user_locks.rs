//! Locks over all replicas for operations on one user.

use std::time::Duration;

use postern_common::cache::{Cache, LockGuard};
use postern_common::email::EmailAddress;
use postern_common::{Code, Problem};

use super::cache_unavailable;
use crate::crypto::sha256_hex;

/// The maximum time for which a lock is held. Longer than all calls under it together.
const USER_LOCK_TTL: Duration = Duration::from_secs(45);
/// The maximum time to wait for a lock. Longer than one call to a busy pool.
const USER_LOCK_WAIT: Duration = Duration::from_secs(9);

/// Locks in the shared cache.
#[derive(Clone, Debug)]
pub(crate) struct UserLocks {
    cache: Cache,
}

// === impl UserLocks ===

impl UserLocks {
    pub(crate) fn new(cache: Cache) -> Self {
        Self { cache }
    }

    /// Locks an e-mail address for a registration, a social sign-in or the compensation.
    ///
    /// # Errors
    /// `unavailable` if the cache fails or the lock is not free in time. The same holds for the
    /// other locks.
    pub(crate) async fn lock_address(&self, email: &EmailAddress) -> Result<LockGuard, Problem> {
        self.lock("register", &email.as_str().to_ascii_lowercase())
            .await
    }

    /// Locks a social identity.
    pub(super) async fn lock_social_identity(
        &self,
        issuer: &str,
        subject: &str,
    ) -> Result<LockGuard, Problem> {
        self.lock("social-identity", &format!("{issuer}\0{subject}"))
            .await
    }

    /// Locks the one-time password of a social user.
    pub(super) async fn lock_one_time_password(
        &self,
        username: &str,
    ) -> Result<LockGuard, Problem> {
        self.lock("social-password", username).await
    }

    async fn lock(&self, scope: &str, value: &str) -> Result<LockGuard, Problem> {
        let key = format!("postern:auth:{scope}-lock:{}", sha256_hex(value));
        let guard = self
            .cache
            .wait_for_lock(&key, USER_LOCK_TTL, USER_LOCK_WAIT)
            .await
            .map_err(cache_unavailable)?;
        guard.ok_or_else(|| Code::Unavailable.into())
    }
}
