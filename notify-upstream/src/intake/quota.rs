//! Quotas of notifications per caller.

use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::{Clock, Code, Problem};
use postern_store::cache::Cache;
use sha2::{Digest, Sha256};

use crate::principal::Principal;
use crate::store::Store;

/// A limit of notifications per caller and minute, shared by all replicas. A scheduled one of a user
/// counts in the minute of `sendAt` as well, and as many as five minutes accept may wait. While the
/// cache is unavailable no request is rejected, because the quota provides fairness, not safety.
#[derive(Clone, Debug)]
pub(crate) struct CallerQuota {
    cache: Cache,
    clock: Clock,
    users: Option<u64>,
    services: Option<u64>,
}

/// Minutes in which a user fills the place of those that wait for their turn or their time.
const MAX_WAITING_MINUTES: u64 = 5;

impl CallerQuota {
    /// Creates a quota with limits per minute for each user and each service. `None` means
    /// unlimited.
    pub(crate) fn new(
        cache: Cache,
        clock: Clock,
        users: Option<u64>,
        services: Option<u64>,
    ) -> Self {
        Self {
            cache,
            clock,
            users,
            services,
        }
    }

    /// Counts one notification.
    ///
    /// # Errors
    /// 429 `rate_limited` with the seconds until the end of the minute that is full.
    pub(crate) async fn take(
        &self,
        principal: &Principal,
        send_at: Option<Timestamp>,
    ) -> Result<(), Problem> {
        let is_user = Principal::is_user(&principal.creator);
        let limit = if is_user { self.users } else { self.services };
        let Some(limit) = limit else { return Ok(()) };
        let now = self.clock.now().unix_seconds();
        let caller = hex::encode(&Sha256::digest(&*principal.creator)[..16]);
        let scheduled = send_at.filter(|_| is_user).map(Timestamp::unix_seconds);
        let scheduled = scheduled.map(|at| (":at", at));
        for (what, at) in std::iter::once(("", now)).chain(scheduled) {
            let minute = at.div_euclid(60);
            let left_s = u32::try_from((minute + 1) * 60 - now).unwrap_or(60);
            let key = format!("notify:quota{what}:{caller}:{minute}");
            let ttl = Duration::from_secs(u64::from(left_s) + 60);
            let count = self.cache.increment(&key, ttl).await;
            if count.is_ok_and(|count| count > limit) {
                return Err(Problem::new(Code::RateLimited).retry_after(left_s));
            }
        }
        Ok(())
    }

    /// Checks that not too many notifications of a user wait; those of services are not limited.
    ///
    /// # Errors
    /// 429 `rate_limited`; 503 if the store is unavailable.
    pub(crate) async fn check_waiting(
        &self,
        store: &Store,
        principal: &Principal,
    ) -> Result<(), Problem> {
        let creator = &*principal.creator;
        let Some(limit) = self.users.filter(|_| Principal::is_user(creator)) else {
            return Ok(());
        };
        let limit = limit.saturating_mul(MAX_WAITING_MINUTES);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let waiting = store.waiting_of(creator, limit).await;
        if waiting.map_err(|error| Problem::from(&error))? < limit {
            return Ok(());
        }
        Err(Problem::new(Code::RateLimited)
            .detail("too many notifications of this user wait or are scheduled")
            .retry_after(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ok, service_of, user_of};

    #[tokio::test]
    async fn quota_is_counted_per_caller_and_minute() {
        let clock = Clock::manual(Timestamp(30_000));
        let quota = CallerQuota::new(Cache::memory(clock.clone()), clock.clone(), Some(2), None);
        let (ada, bob, service) = (user_of("ada"), user_of("bob"), service_of("a"));
        for _ in 0..2 {
            ok(quota.take(&ada, None)).await;
        }
        let refused = quota.take(&ada, None).await;
        let refused = refused.expect_err("quota exceeded");
        assert_eq!(refused.render("x").headers["retry-after"], "30");
        // Other callers have their own quota, and services are unlimited.
        ok(quota.take(&bob, None)).await;
        let noon = Some(Timestamp(43_200_000));
        for _ in 0..9 {
            ok(quota.take(&service, noon)).await;
        }
        clock.advance(Duration::from_secs(30));
        ok(quota.take(&ada, None)).await;
        // A minute takes no more scheduled notifications than it accepts.
        for (minute, status) in [(1, 201), (2, 201), (3, 429)] {
            clock.advance(Duration::from_secs(60 * minute));
            let taken = quota.take(&ada, noon).await;
            assert_eq!(taken.is_err(), status == 429, "{minute}");
        }
    }
}
