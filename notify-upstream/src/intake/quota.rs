//! Quotas of notifications per caller.

use std::time::Duration;

use postern_common::cache::Cache;
use postern_common::{Clock, Code, Problem};
use sha2::{Digest, Sha256};

use crate::principal::Principal;

/// A limit of notifications per caller and minute, shared by all replicas. While the cache is
/// unavailable no request is rejected, because the quota provides fairness, not safety.
#[derive(Clone, Debug)]
pub(crate) struct CallerQuota {
    cache: Cache,
    clock: Clock,
    users: Option<u64>,
    services: Option<u64>,
}

// === impl CallerQuota ===

impl CallerQuota {
    /// Creates a quota with limits per minute for each user and each service. `None` means
    /// unlimited.
    #[must_use]
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
    /// 429 `rate_limited` with the seconds until the next minute.
    pub(crate) async fn take(&self, principal: &Principal) -> Result<(), Problem> {
        let limit = if Principal::is_user(&principal.creator) {
            self.users
        } else {
            self.services
        };
        let Some(limit) = limit else { return Ok(()) };
        let seconds = self.clock.now().unix_seconds();
        let caller = hex::encode(&Sha256::digest(&*principal.creator)[..16]);
        let key = format!("notify:quota:{caller}:{}", seconds.div_euclid(60));
        match self.cache.increment(&key, Duration::from_secs(120)).await {
            Ok(count) if count > limit => {
                let remaining_s = u32::try_from(60 - seconds.rem_euclid(60)).unwrap_or(60);
                Err(Problem::new(Code::RateLimited).retry_after(remaining_s))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::clock::Timestamp;

    #[tokio::test]
    async fn quota_is_counted_per_caller_and_minute() {
        let clock = Clock::manual(Timestamp(30_000));
        let quota = CallerQuota::new(Cache::memory(clock.clone()), clock.clone(), Some(2), None);
        let user = |name: &str| Principal {
            creator: name.into(),
            actor: Some(name.to_owned()),
        };
        let service = Principal {
            creator: "service:a".into(),
            actor: None,
        };
        for _ in 0..2 {
            quota.take(&user("a")).await.expect("within the quota");
        }
        let refused = quota.take(&user("a")).await.expect_err("quota exceeded");
        assert_eq!(refused.render("x").headers["retry-after"], "30");
        quota
            .take(&user("b"))
            .await
            .expect("other callers have their own quota");
        for _ in 0..9 {
            quota.take(&service).await.expect("services are unlimited");
        }
        clock.advance(Duration::from_secs(30));
        quota
            .take(&user("a"))
            .await
            .expect("the quota resets each minute");
    }
}
