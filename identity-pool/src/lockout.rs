//! Slows guessing, as Cognito does: five failures, then one second that doubles with each further one up to
//! fifteen minutes. Attempts while locked are refused without hashing and are not counted; after fifteen quiet
//! minutes the count begins anew. A name that no user has is locked like any other.
//!
//! Refreshing is not a password attempt: whoever holds a live refresh token goes on through a lockout.

use std::time::Duration;

use postern_common::clock::Timestamp;

use crate::fault::Fault;
use crate::random;
use crate::store::Store;

const FREE: i64 = 5;
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The failures of one name in one pool.
pub(crate) struct Lockout<'a> {
    store: &'a Store,
    pool_id: &'a str,
    name: String,
}

/// How often a name has failed.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Failures(i64);

// === impl Lockout ===

impl<'a> Lockout<'a> {
    /// `name` is the real username, or what was typed when no user has it.
    pub(crate) fn of(store: &'a Store, pool_id: &'a str, name: &str) -> Self {
        Self { store, pool_id, name: random::digest(&[&name.to_lowercase()]) }
    }

    /// Refuses while the name is locked. Asked before the hash, and again after it: attempts that run side by
    /// side must not see a password confirmed after the fifth failure.
    ///
    /// Returns the failures so far.
    pub(crate) async fn admit(&self, now: Timestamp) -> Result<Failures, Fault> {
        let attempts = self.store.attempts(self.pool_id, &self.name).await?;
        if attempts.locked_until > now.0 {
            return Err(Fault::not_authorized("Password attempts exceeded"));
        }
        Ok(Failures(attempts.failures))
    }

    pub(crate) async fn failed(&self, now: Timestamp) -> Result<(), Fault> {
        let quiet_since = Timestamp(now.0 - millis(LONGEST));
        let failures = self.store.count_failure((self.pool_id, &self.name), now, quiet_since).await?;
        if let Some(lock) = lock_time(failures) {
            self.store.lock_name(self.pool_id, &self.name, now.plus(lock)).await?;
        }
        Ok(())
    }

    /// Forgets the failures, if there were any: nearly every sign-in has nothing to forget, and no write to wait for.
    pub(crate) async fn succeeded(&self, before: Failures) -> Result<(), Fault> {
        if before.0 > 0 {
            self.forget().await?;
        }
        Ok(())
    }

    /// Forgets the failures.
    pub(crate) async fn forget(&self) -> Result<(), Fault> {
        Ok(self.store.forget_attempts(self.pool_id, &self.name).await?)
    }
}

/// 2^(n-5) seconds from the fifth failure on.
fn lock_time(failures: i64) -> Option<Duration> {
    let doublings = u32::try_from(failures - FREE).ok()?;
    let seconds = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    Some(Duration::from_secs(seconds).min(LONGEST))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fifth_failure_locks_for_a_second_and_each_further_one_for_twice_as_long() {
        let seconds = |failures| lock_time(failures).map(|lock| lock.as_secs());
        assert_eq!([4, 5, 6, 7, 14].map(seconds), [None, Some(1), Some(2), Some(4), Some(512)]);
        assert_eq!([15, 40, 500].map(seconds), [Some(900); 3]);
    }
}
