//! Locks over all replicas for operations on one user.

use std::time::Duration;

use postern_core::email::EmailAddress;
use postern_core::{Code, Problem};

use super::{Flows, cache_unavailable};
use crate::crypto::sha256_hex;

/// The maximum time for which a lock is held. Longer than all calls under it together.
const USER_LOCK_TTL: Duration = Duration::from_secs(45);
/// The maximum time to wait for a lock. Longer than one call to a busy pool.
const USER_LOCK_WAIT: Duration = Duration::from_secs(9);

// === impl Flows ===

impl Flows {
    /// Runs `work` under the lock of an e-mail address: a registration, a social sign-in, a new
    /// password, an operator's change or the compensation.
    ///
    /// # Errors
    /// `unavailable` if the cache fails, or if the lock is not free in time or is lost. The same
    /// holds for the other locks.
    pub(crate) async fn with_address<T, E: From<Problem>>(
        &self,
        email: &EmailAddress,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.with_lock("register", &email.as_str().to_ascii_lowercase(), work)
            .await
    }

    pub(super) async fn with_social_identity<T, E: From<Problem>>(
        &self,
        issuer: &str,
        subject: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.with_lock("social-identity", &format!("{issuer}\0{subject}"), work)
            .await
    }

    async fn with_lock<T, E: From<Problem>>(
        &self,
        scope: &str,
        value: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let key = format!("postern:auth:{scope}-lock:{}", sha256_hex(value));
        self.cache
            .with_lock(&key, USER_LOCK_TTL, USER_LOCK_WAIT, work)
            .await
            .map_err(cache_unavailable)?
            .ok_or_else(|| Problem::from(Code::Unavailable))?
    }
}
