//! Shares of concurrent calls per caller and push service.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::address::Address;
use crate::delivery::provider::Provider;
use crate::notification::Priority;
use crate::principal::Principal;

/// Limits the concurrent calls of one caller, and to one push service, so that slow ones cannot
/// hold all permits of a channel.
#[derive(Debug)]
pub(crate) struct ShareLimiter {
    /// Concurrent calls that the provider and the permits of the channel allow.
    total: usize,
    held: Mutex<HashMap<ShareKey, ShareUsage>>,
    released: Notify,
}

/// A share of the concurrent calls, returned when dropped.
#[derive(Debug)]
pub(crate) struct ShareGuard {
    shares: Arc<ShareLimiter>,
    keys: Vec<ShareKey>,
}

/// The owner of a share. Priorities have separate shares, so that LOW cannot delay CRITICAL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ShareKey {
    Caller(String, Priority),
    Host(String, Priority),
}

#[derive(Debug)]
struct ShareUsage {
    count: usize,
    /// When a call of this owner last started or ended.
    last_change: Instant,
}

/// Time without a started or ended call after which a full share is stuck. Calls do not wait for a
/// stuck share.
const STUCK_AFTER: Duration = Duration::from_secs(1);

// === impl ShareLimiter ===

impl ShareLimiter {
    /// Creates shares of `total` concurrent calls.
    #[must_use]
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            total: total.max(1),
            held: Mutex::default(),
            released: Notify::new(),
        })
    }

    /// Waits for a share for at most [`STUCK_AFTER`]. Returns `None` if the share is stuck.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        provider: &Provider,
        to: &Address,
        caller: &str,
        priority: Priority,
    ) -> Option<ShareGuard> {
        let keys = keys(provider, to, caller, priority);
        let until = Instant::now() + STUCK_AFTER;
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            match self.try_acquire(&keys) {
                Ok(()) => {
                    return Some(ShareGuard {
                        shares: Arc::clone(self),
                        keys,
                    });
                }
                Err(ShareExhausted { is_stuck: true }) => return None,
                Err(ShareExhausted { is_stuck: false }) => {}
            }
            tokio::time::timeout_at(until, released).await.ok()?;
        }
    }

    fn try_acquire(&self, keys: &[ShareKey]) -> Result<(), ShareExhausted> {
        let mut held = self.held.lock();
        let now = Instant::now();
        for key in keys {
            if let Some(of_key) = held.get(key)
                && of_key.count >= self.limit(key)
            {
                return Err(ShareExhausted {
                    is_stuck: now.duration_since(of_key.last_change) >= STUCK_AFTER,
                });
            }
        }
        for key in keys {
            let of_key = held.entry(key.clone()).or_insert(ShareUsage {
                count: 0,
                last_change: now,
            });
            of_key.count += 1;
            of_key.last_change = now;
        }
        Ok(())
    }

    /// Returns the limit of an owner: [`caller_share`], and a quarter for a push service.
    fn limit(&self, key: &ShareKey) -> usize {
        match key {
            ShareKey::Caller(caller, _) => caller_share(self.total, caller),
            ShareKey::Host(..) => (self.total / 4).max(1),
        }
    }
}

/// Returns the concurrent calls of `total` that one caller may have with each priority: a quarter for
/// a service, a sixteenth for a user, who can only address itself.
#[must_use]
pub(crate) fn caller_share(total: usize, caller: &str) -> usize {
    let part = if Principal::is_user(caller) { 16 } else { 4 };
    (total / part).max(1)
}

struct ShareExhausted {
    is_stuck: bool,
}

/// Returns the owners that a call counts for. The push service is chosen by the recipient's
/// browser; all other providers are chosen by the operator, and there a service may use all calls.
fn keys(provider: &Provider, to: &Address, caller: &str, priority: Priority) -> Vec<ShareKey> {
    let is_endpoint = matches!(to, Address::Subscription(_)) && provider.calls_endpoint();
    let mut keys = Vec::with_capacity(2);
    if is_endpoint || Principal::is_user(caller) {
        keys.push(ShareKey::Caller(caller.to_owned(), priority));
    }
    if is_endpoint {
        keys.push(ShareKey::Host(super::domain_of(to), priority));
    }
    keys
}

// === impl ShareGuard ===

impl Drop for ShareGuard {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let mut held = self.shares.held.lock();
        let now = Instant::now();
        for key in &self.keys {
            if let Some(of_key) = held.get_mut(key) {
                of_key.count -= 1;
                of_key.last_change = now;
                if of_key.count == 0 {
                    held.remove(key);
                }
            }
        }
        drop(held);
        self.shares.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use postern_common::email::EmailAddress;

    use super::*;
    use crate::address::{PushSubscription, SubscriptionKeys};
    use crate::testing::script::ProviderScript;

    fn endpoint(host: &str) -> Address {
        let keys = SubscriptionKeys {
            p256dh: String::new(),
            auth: String::new(),
        };
        Address::Subscription(PushSubscription {
            endpoint: format!("https://{host}/x"),
            keys,
        })
    }

    fn provider() -> Provider {
        Provider::Script(ProviderScript::default())
    }

    /// Returns the shares of 64 concurrent calls that were acquired.
    async fn acquired(
        shares: &Arc<ShareLimiter>,
        to: impl Fn(usize) -> Address,
        caller: impl Fn(usize) -> String,
    ) -> Vec<ShareGuard> {
        let provider = provider();
        let calls = (0..64).map(|n| (to(n), caller(n)));
        let entering = calls.map(|(to, caller)| {
            let provider = &provider;
            async move {
                shares
                    .acquire(provider, &to, &caller, Priority::Normal)
                    .await
            }
        });
        futures_util::future::join_all(entering)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_push_service_is_limited_across_subdomains() {
        let shares = ShareLimiter::new(64);
        let held = acquired(
            &shares,
            |n| endpoint(&format!("h{n}.slow.example")),
            |n| format!("service:{n}"),
        )
        .await;
        assert_eq!(held.len(), 16);
        let began = Instant::now();
        let to = endpoint("a.slow.example");
        assert!(
            shares
                .acquire(&provider(), &to, "service:x", Priority::Normal)
                .await
                .is_none()
        );
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "a stuck share is not waited for"
        );
        let to = endpoint("fast.example");
        assert!(
            shares
                .acquire(&provider(), &to, "service:x", Priority::Normal)
                .await
                .is_some()
        );
        drop(held);
        assert!(shares.held.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn caller_with_many_push_services_is_limited_to_its_share() {
        let shares = ShareLimiter::new(64);
        let to = |n| endpoint(&format!("slow{n}.example"));
        let of_service = acquired(&shares, to, |_| "service:a".to_owned()).await;
        let of_user = acquired(&shares, to, |_| "user:a".to_owned()).await;
        assert_eq!((of_service.len(), of_user.len()), (16, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn call_waits_for_a_share_that_is_not_stuck() {
        let shares = ShareLimiter::new(64);
        let mut held = acquired(
            &shares,
            |_| endpoint("push.example"),
            |n| format!("service:{n}"),
        )
        .await;
        let (provider, to) = (provider(), endpoint("push.example"));
        held.pop();
        held.extend(
            shares
                .acquire(&provider, &to, "service:y", Priority::Normal)
                .await,
        );
        let next = async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            held.pop();
        };
        let (acquired, ()) = tokio::join!(
            shares.acquire(&provider, &to, "service:x", Priority::Normal),
            next
        );
        assert!(acquired.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn service_may_use_all_calls_of_a_configured_provider() {
        let shares = ShareLimiter::new(64);
        let mail = |_| Address::Email(EmailAddress::parse("ada@example.com").expect("address"));
        assert_eq!(
            acquired(&shares, mail, |_| "service:a".to_owned())
                .await
                .len(),
            64
        );
        assert_eq!(
            acquired(&shares, mail, |_| "user:a".to_owned()).await.len(),
            4
        );
    }
}
