//! Lockout of password guessing, with Cognito's rules: five failures, then a lock of one second
//! that doubles with each further failure, up to 15 minutes. Attempts during a lock are rejected
//! without hashing and are not counted. After 15 minutes without an attempt, the count restarts.
//! Unknown names are locked in the same way.
//!
//! One SQL statement decides each attempt, so that at most five concurrent wrong passwords are
//! answered before the lock.
//!
//! Refreshing is not a password attempt: live refresh tokens work during a lockout.

use postern_common::clock::Timestamp;

use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{User, UserPool};
use crate::pool::store::PoolStore;

/// Time without attempts after which failures are forgotten, in milliseconds.
const FAILURE_RETENTION_MS: i64 = 15 * 60 * 1000;

/// The failed attempts of one name in one pool.
pub(crate) struct SignInLockout<'a> {
    store: &'a PoolStore,
    pool_id: String,
    key: String,
}

impl<'a> SignInLockout<'a> {
    /// Returns the lockout of a user.
    pub(crate) fn for_user(store: &'a PoolStore, user: &User) -> Self {
        Self {
            store,
            pool_id: user.pool_id.clone(),
            key: user.username.clone(),
        }
    }

    /// Returns the lockout of a name that no user has.
    pub(crate) fn for_unknown(store: &'a PoolStore, pool: &UserPool, entered: &str) -> Self {
        Self {
            store,
            pool_id: pool.id.clone(),
            key: Self::unknown_key(pool, entered),
        }
    }

    /// Returns the key under which failures of an unknown name are counted. It is a digest, because
    /// the input may be anything, even a password. Spellings share a key exactly where they would
    /// mean the same user, so that locking one reveals nothing about the other.
    pub(crate) fn unknown_key(pool: &UserPool, entered: &str) -> String {
        if pool.settings.email_usernames && entered.contains('@') {
            random::digest(&[&entered.to_lowercase()])
        } else {
            random::digest(&[entered])
        }
    }

    /// Returns the key under which failures are counted.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Rejects the attempt while the name is locked, before any hashing.
    pub(crate) async fn check(&self, now: Timestamp) -> Result<(), ApiError> {
        Self::check_until(
            self.store.locked_until(&self.pool_id, &self.key).await?,
            now,
        )
    }

    /// Rejects the attempt before `locked_until`, in Unix milliseconds.
    pub(crate) fn check_until(locked_until: i64, now: Timestamp) -> Result<(), ApiError> {
        ensure_unlocked(locked_until <= now.0)
    }

    /// Counts a wrong password. If the name was locked in the meantime, returns the lockout error,
    /// which does not reveal that the password was wrong.
    pub(crate) async fn record_failure(&self, now: Timestamp) -> Result<(), ApiError> {
        let quiet_since = Timestamp(now.0 - FAILURE_RETENTION_MS);
        ensure_unlocked(
            self.store
                .count_failure(&self.pool_id, &self.key, now, quiet_since)
                .await?,
        )
    }

    /// Clears the failures after a correct password. Fails if the name was locked in the meantime.
    pub(crate) async fn record_success(&self, now: Timestamp) -> Result<(), ApiError> {
        ensure_unlocked(
            self.store
                .clear_failures(&self.pool_id, &self.key, now)
                .await?,
        )
    }

    /// Clears the failures of a user who was authenticated in another way.
    pub(crate) async fn clear(&self) -> Result<(), ApiError> {
        Ok(self.store.clear_attempts(&self.pool_id, &self.key).await?)
    }
}

fn ensure_unlocked(is_unlocked: bool) -> Result<(), ApiError> {
    if is_unlocked {
        Ok(())
    } else {
        Err(ApiError::not_authorized("Password attempts exceeded"))
    }
}
