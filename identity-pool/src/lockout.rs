//! Slows guessing, as Cognito does: five failures, then one second that doubles with each further
//! one up to fifteen minutes. Attempts while locked are refused without hashing and are not
//! counted; after fifteen quiet minutes the count begins anew. A name that no user has is locked
//! like any other.
//!
//! The outcome of an attempt is decided by one statement of the store, right or wrong: however many
//! run side by side, no more than five wrong ones are answered before the lock.
//!
//! Refreshing is not a password attempt: whoever holds a live refresh token goes on through a
//! lockout.

use postern_common::clock::Timestamp;

use crate::fault::Fault;
use crate::pool::Pool;
use crate::random;
use crate::store::Store;
use crate::user::User;

/// How long a name must be quiet for its failures to be forgotten, in milliseconds.
const QUIET_MS: i64 = 15 * 60 * 1000;

/// The failures of one name in one pool.
pub(crate) struct Lockout<'a> {
    store: &'a Store,
    pool_id: String,
    name: String,
}

impl<'a> Lockout<'a> {
    /// Of a user.
    pub(crate) fn of(store: &'a Store, user: &User) -> Self {
        Self {
            store,
            pool_id: user.pool_id.clone(),
            name: user.username.clone(),
        }
    }

    /// Of a name that nobody has.
    pub(crate) fn of_nobody(store: &'a Store, pool: &Pool, typed: &str) -> Self {
        Self {
            store,
            pool_id: pool.id.clone(),
            name: Self::nobody(pool, typed),
        }
    }

    /// The name in the list of attempts where nobody has the one that was typed: a digest, for that
    /// may be anything, even a password. Two spellings are one name where they would mean one user,
    /// and only there: whoever locks one learns nothing from the other.
    pub(crate) fn nobody(pool: &Pool, typed: &str) -> String {
        if pool.settings.email_usernames && typed.contains('@') {
            random::digest(&[&typed.to_lowercase()])
        } else {
            random::digest(&[typed])
        }
    }

    /// The name in the list of attempts.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Refuses while the name is locked, before anything is hashed.
    pub(crate) async fn admit(&self, now: Timestamp) -> Result<(), Fault> {
        Self::admit_after(
            self.store.locked_until(&self.pool_id, &self.name).await?,
            now,
        )
    }

    /// Refuses until this instant, in Unix milliseconds.
    pub(crate) fn admit_after(locked_until: i64, now: Timestamp) -> Result<(), Fault> {
        refuse_unless(locked_until <= now.0)
    }

    /// Counts a wrong password. Refuses to say that it was wrong if the name was locked meanwhile.
    pub(crate) async fn failed(&self, now: Timestamp) -> Result<(), Fault> {
        let quiet_since = Timestamp(now.0 - QUIET_MS);
        refuse_unless(
            self.store
                .count_failure((&self.pool_id, &self.name), now, quiet_since)
                .await?,
        )
    }

    /// Accepts a right password and forgets the failures. Refuses if the name was locked meanwhile.
    pub(crate) async fn succeeded(&self, now: Timestamp) -> Result<(), Fault> {
        refuse_unless(
            self.store
                .forget_failures(&self.pool_id, &self.name, now)
                .await?,
        )
    }

    /// Forgets the failures of a user who proved itself in another way.
    pub(crate) async fn forget(&self) -> Result<(), Fault> {
        Ok(self
            .store
            .forget_attempts(&self.pool_id, &self.name)
            .await?)
    }
}

fn refuse_unless(is_open: bool) -> Result<(), Fault> {
    if is_open {
        Ok(())
    } else {
        Err(Fault::not_authorized("Password attempts exceeded"))
    }
}
