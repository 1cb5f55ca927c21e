//! Shares of concurrent calls at push services, which recipients choose.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use url::{Host, Url};

use crate::address::Address;
use crate::delivery::provider::Provider;
use crate::notification::Priority;

/// Limits the concurrent calls of one caller, and to one push service, to a quarter, so that slow ones
/// cannot hold all permits of a channel. The operator chooses all other providers.
pub(crate) struct ShareLimiter {
    /// The concurrent calls of one owner.
    limit: usize,
    held: Mutex<HashMap<ShareKey, usize>>,
}

/// A share of the concurrent calls, returned when dropped.
pub(crate) struct ShareGuard {
    shares: Arc<ShareLimiter>,
    keys: Vec<ShareKey>,
}

/// The owner of a share: a caller, or the domain of a push service. Priorities have separate shares, so
/// that LOW cannot delay CRITICAL.
type ShareKey = (String, Priority);

// === impl ShareLimiter ===

impl ShareLimiter {
    /// Creates shares of `total` concurrent calls.
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: (total / 4).max(1),
            held: Mutex::default(),
        })
    }

    /// Takes a share. Returns `None` if it is used up: a call that waited would hold its permit.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        provider: &Provider,
        to: &Address,
        caller: &str,
        priority: Priority,
    ) -> Option<ShareGuard> {
        let mut keys: Vec<ShareKey> = Vec::new();
        if let Address::Subscription(subscription) = to
            && provider.calls_endpoint()
        {
            let owners = [caller.to_owned(), push_service(&subscription.endpoint)];
            keys.extend(owners.map(|owner| (owner, priority)));
        }
        let mut held = self.held.lock();
        if keys.iter().any(|key| held.get(key) >= Some(&self.limit)) {
            return None;
        }
        for key in &keys {
            *held.entry(key.clone()).or_default() += 1;
        }
        drop(held);
        let shares = Arc::clone(self);
        Some(ShareGuard { shares, keys })
    }
}

/// Returns the last two labels of the host of an endpoint, so that subdomains of one owner count once.
fn push_service(endpoint: &str) -> String {
    let url = Url::parse(endpoint).ok();
    match url.as_ref().and_then(Url::host) {
        Some(Host::Domain(domain)) => {
            let domain = domain.trim_end_matches('.');
            let dots = domain.rmatch_indices('.');
            let start = dots.map(|(at, _)| at + 1).nth(1).unwrap_or(0);
            domain[start..].to_owned()
        }
        Some(host) => host.to_string(),
        None => String::new(),
    }
}

// === impl ShareGuard ===

impl Drop for ShareGuard {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock();
        for key in &self.keys {
            if let Some(count) = held.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    held.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{PushSubscription, SubscriptionKeys};
    use crate::testing::mailbox;
    use crate::testing::script::ProviderScript;

    fn endpoint(host: &str) -> Address {
        let (p256dh, auth) = (String::new(), String::new());
        let keys = SubscriptionKeys { p256dh, auth };
        Address::Subscription(PushSubscription {
            endpoint: format!("https://{host}/x"),
            keys,
        })
    }

    /// Returns the shares of 64 concurrent calls that were acquired.
    fn acquired(
        shares: &Arc<ShareLimiter>,
        to: impl Fn(usize) -> Address,
        caller: impl Fn(usize) -> String,
    ) -> Vec<ShareGuard> {
        let provider = Provider::Script(ProviderScript::default());
        let acquire = |n| shares.try_acquire(&provider, &to(n), &caller(n), Priority::Normal);
        (0..64).filter_map(acquire).collect()
    }

    #[test]
    fn one_caller_and_one_push_service_have_a_quarter_of_the_calls() {
        let shares = ShareLimiter::new(64);
        let service = |n| format!("service:{n}");
        let subdomain = |n| endpoint(&format!("h{n}.slow.example"));
        let held = acquired(&shares, subdomain, service);
        assert_eq!(held.len(), 16, "across subdomains");
        let domain = |n| endpoint(&format!("slow{n}.example"));
        let other = acquired(&shares, domain, |_| service(1));
        assert_eq!(other.len(), 15, "another push service is not affected");
        drop((held, other));
        assert!(shares.held.lock().is_empty());
        let mail = |_| mailbox("ada@example.com");
        assert_eq!(acquired(&shares, mail, |_| service(1)).len(), 64);
    }
}
