//! Lockout of password guessing, with Cognito's rules: five failures, then a lock of one second
//! that doubles with each further failure, up to 15 minutes. Attempts during a lock are rejected
//! without hashing and are not counted. After 15 minutes without an attempt, the count restarts.
//! Unknown names are locked in the same way. A restart forgets all failures.
//!
//! Refreshing is not a password attempt: live refresh tokens work during a lockout.

use std::collections::HashMap;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;

use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{User, UserPool};

/// Time without attempts after which failures are forgotten, and the longest lock, in milliseconds.
const FAILURE_RETENTION_MS: i64 = 15 * 60 * 1000;

/// Failures that do not lock.
const FREE_FAILURES: u32 = 4;

/// The failed attempts of all names.
#[derive(Debug, Default)]
pub(crate) struct Lockouts(Mutex<HashMap<LockoutKey, Failures>>);

/// Identifies a name in a pool. A digest, because the input may be anything, even a password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockoutKey(String);

#[derive(Debug)]
struct Failures {
    count: u32,
    /// End of the lock in Unix milliseconds; the time of the last failure if it did not lock.
    locked_until: i64,
}

// === impl LockoutKey ===

impl LockoutKey {
    pub(crate) fn of_user(user: &User) -> Self {
        Self(random::digest(&[&user.pool_id, &user.username]))
    }

    /// Returns the key of a name that no user has. Spellings share a key exactly where they would
    /// mean the same user, so that locking one reveals nothing about the other.
    pub(crate) fn of_unknown(pool: &UserPool, entered: &str) -> Self {
        if pool.settings.email_usernames && entered.contains('@') {
            Self(random::digest(&[&pool.id, &entered.to_lowercase()]))
        } else {
            Self(random::digest(&[&pool.id, entered]))
        }
    }
}

// === impl Lockouts ===

impl Lockouts {
    /// Rejects the attempt while the name is locked, before any hashing.
    pub(crate) fn check(&self, key: &LockoutKey, now: Timestamp) -> Result<(), ApiError> {
        ensure_unlocked(self.0.lock().get(key), now)
    }

    /// Counts a wrong password. If the name was locked in the meantime, returns the lockout error,
    /// which does not reveal that the password was wrong.
    pub(crate) fn record_failure(&self, key: &LockoutKey, now: Timestamp) -> Result<(), ApiError> {
        let mut names = self.0.lock();
        names.retain(|_, failures| failures.locked_until >= now.0 - FAILURE_RETENTION_MS);
        ensure_unlocked(names.get(key), now)?;
        let failures = names.entry(key.clone()).or_insert(Failures {
            count: 0,
            locked_until: now.0,
        });
        failures.count += 1;
        let lock_ms = failures
            .count
            .checked_sub(FREE_FAILURES + 1)
            .map_or(0, |doublings| 1000 << doublings.min(10));
        failures.locked_until = now.0 + lock_ms.min(FAILURE_RETENTION_MS);
        Ok(())
    }

    /// Clears the failures of a user who was authenticated.
    pub(crate) fn clear(&self, key: &LockoutKey) {
        self.0.lock().remove(key);
    }
}

fn ensure_unlocked(failures: Option<&Failures>, now: Timestamp) -> Result<(), ApiError> {
    if failures.is_none_or(|failures| failures.locked_until <= now.0) {
        Ok(())
    } else {
        Err(ApiError::not_authorized("Password attempts exceeded"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_doubles_from_fifth_failure_to_fifteen_minutes() {
        let (lockouts, key) = (Lockouts::default(), LockoutKey("n".into()));
        let (mut now, mut locks) = (Timestamp(1_000_000_000), Vec::new());
        for _ in 0..17 {
            lockouts.record_failure(&key, now).expect("counted");
            let until = lockouts.0.lock()[&key].locked_until;
            if until > now.0 {
                lockouts.check(&key, now).expect_err("locked");
                lockouts.record_failure(&key, now).expect_err("locked");
            }
            locks.push((until - now.0) / 1000);
            now = Timestamp(until);
        }
        assert_eq!(
            locks,
            [
                0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900
            ]
        );
        lockouts.clear(&key);
        assert!(lockouts.0.lock().is_empty(), "forgotten");
    }
}
