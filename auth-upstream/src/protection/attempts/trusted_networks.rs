//! The networks in which an account's owner has signed in. Failures from other networks do not
//! delay attempts from these.
//!
//! A completed sign-in, a password reset or a registration adds a network; a sign-in that ends at a
//! challenge does not. The list belongs to a subject: it is emptied when the account is deleted or
//! its password is reset. The time at which that happened stays in the list, so that a sign-in that
//! started before adds no network afterwards. A removal that the shared cache does not confirm is
//! retried until it does; meanwhile this process trusts no network of the account.

use std::time::Duration;

use postern_common::backoff::Backoff;
use postern_common::cache::Change;
use postern_common::clock::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{AttemptLimiter, KEY_PREFIX, account_digest, canonical_address, network};
use crate::client::ClientContext;
use crate::crypto::hex;

/// The time for which a network is trusted after the last sign-in there.
const TRUST_DURATION: Duration = Duration::from_secs(90 * 86_400);
/// Minimum time between two renewals of a network, so that frequent sign-ins write once a day.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(86_400);
/// Maximum difference of the clocks of two replicas, and time after a removal in which only the
/// network of the password reset itself is trusted.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);
/// The delays before a removal is retried.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// The maximum number of attempts to change a list that other sign-ins change concurrently.
const MAX_CHANGE_ATTEMPTS: u32 = 3;
/// The maximum number of networks of one account. The least recently renewed one is removed first.
const MAX_NETWORKS_PER_ACCOUNT: usize = 32;

/// The trusted networks of one account, as stored in the cache.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TrustedNetworks {
    /// A digest of the subject; `None` if it is not known.
    subject: Option<String>,
    /// Networks with the times of their last renewal in milliseconds since the epoch, oldest first.
    networks: Vec<(String, i64)>,
    /// Time at which the networks were last removed, in milliseconds since the epoch; 0 if never.
    #[serde(default)]
    removed_at: i64,
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    /// Trusts the client's network for an account. To be called after a completed sign-in or a
    /// registration that started at `started_at`. `subject` is the account's subject, if known.
    /// Best effort: if the cache fails, the network is not trusted next time.
    pub(crate) async fn trust_network(
        &self,
        client: &ClientContext,
        account: &str,
        subject: Option<&str>,
        started_at: Timestamp,
    ) {
        let Some(address) = canonical_address(client) else {
            return;
        };
        let (key, network) = (trusted_key(account), network(address));
        let now = self.clock.now();
        let renew = |trusted: &mut TrustedNetworks| {
            !trusted.is_removed_since(started_at) && trusted.renew(&network, subject, now)
        };
        // Most sign-ins are from a network that was renewed today.
        if !renew(&mut self.trusted_networks(&key).await) {
            return;
        }
        for _ in 0..MAX_CHANGE_ATTEMPTS {
            let Ok(found) = self.counters.shared().get_with_epoch(&key).await else {
                return;
            };
            let stored = found.value;
            let mut trusted = stored
                .as_deref()
                .map(TrustedNetworks::from_bytes)
                .unwrap_or_default();
            if self.removals.contains(&key) || !renew(&mut trusted) {
                return;
            }
            let change = Change {
                key: &key,
                epoch: &found.epoch,
                expected: stored.as_deref(),
                value: &trusted.to_bytes(),
                ttl: TRUST_DURATION,
            };
            if self.counters.shared().compare_and_set(&change).await != Ok(false) {
                return;
            }
        }
    }

    /// Forgets the trusted networks of an account that is being deleted.
    pub(crate) async fn forget_trusted_networks(&self, account: &str) {
        let removed = TrustedNetworks::removed(self.clock.now());
        self.replace_trusted_networks(account, removed).await;
    }

    /// Trusts no other network than the client's for an account whose password was reset.
    pub(crate) async fn trust_only(
        &self,
        client: &ClientContext,
        account: &str,
        subject: Option<&str>,
    ) {
        let now = self.clock.now();
        let mut trusted = TrustedNetworks::removed(now);
        if let Some(address) = canonical_address(client) {
            trusted.renew(&network(address), subject, now);
        }
        self.replace_trusted_networks(account, trusted).await;
    }

    /// Replaces the list in a task that completes even if the client disconnects. Returns after the
    /// first attempt.
    async fn replace_trusted_networks(&self, account: &str, trusted: TrustedNetworks) {
        let (limiter, key) = (self.clone(), trusted_key(account));
        limiter.removals.insert(&key);
        let replacement = async move {
            if limiter.store_removal(&key, &trusted).await {
                return;
            }
            tracing::warn!("trusted networks not removed, removal is retried");
            tokio::spawn(async move { limiter.retry_removal(&key, trusted.removed_at).await });
        };
        let _ = tokio::spawn(replacement).await;
    }

    async fn retry_removal(&self, key: &str, removed_at: i64) {
        // Another password reset may have been stored meanwhile: its network is not the last one's.
        let removed = TrustedNetworks::removed(Timestamp(removed_at));
        let mut delays = RETRY_DELAYS.delays();
        loop {
            tokio::time::sleep(delays.next_delay()).await;
            if self.store_removal(key, &removed).await {
                return;
            }
        }
    }

    /// Stores a list without the networks that it had, and returns whether that has succeeded.
    async fn store_removal(&self, key: &str, trusted: &TrustedNetworks) -> bool {
        let shared = self.counters.shared();
        let stored = shared.set(key, &trusted.to_bytes(), TRUST_DURATION).await;
        if stored.is_ok() {
            self.removals.remove(key);
        }
        stored.is_ok()
    }

    /// Returns whether a network is trusted for an account.
    pub(crate) async fn is_trusted(&self, account: &str, network: &str) -> bool {
        self.trusted_networks(&trusted_key(account))
            .await
            .contains(network, self.clock.now())
    }

    /// Returns the list, which is empty if it is unknown or its removal is not confirmed.
    async fn trusted_networks(&self, key: &str) -> TrustedNetworks {
        // Checked before and after the list is read: a removal may end or start meanwhile.
        if self.removals.contains(key) {
            return TrustedNetworks::default();
        }
        let found = self.counters.shared().get(key).await.ok().flatten();
        let found = found.filter(|_| !self.removals.contains(key));
        found
            .as_deref()
            .map(TrustedNetworks::from_bytes)
            .unwrap_or_default()
    }
}

// === impl TrustedNetworks ===

impl TrustedNetworks {
    /// Creates the list of an account whose networks are removed.
    fn removed(at: Timestamp) -> Self {
        Self {
            removed_at: at.0,
            ..Self::default()
        }
    }

    /// Decodes a list. One that cannot be decoded trusts no network.
    fn from_bytes(json: &[u8]) -> Self {
        serde_json::from_slice(json).unwrap_or_default()
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the struct serializes to JSON")
    }

    /// Returns whether the networks may have been removed after a sign-in started.
    fn is_removed_since(&self, started_at: Timestamp) -> bool {
        self.removed_at > 0 && started_at < Timestamp(self.removed_at).plus(CLOCK_TOLERANCE)
    }

    /// Adds or renews a network and returns whether the list has changed. The list starts anew for
    /// another subject, which owns the account's address now.
    fn renew(&mut self, network: &str, subject: Option<&str>, now: Timestamp) -> bool {
        let subject = subject.map(|subject| hex(&Sha256::digest(subject)[..16]));
        if self.subject != subject {
            *self = Self {
                subject,
                networks: Vec::new(),
                removed_at: self.removed_at,
            };
        }
        let renewed = self
            .networks
            .iter()
            .find(|(known, _)| known == network)
            .map(|(_, at)| Timestamp(*at));
        if renewed.is_some_and(|at| now.since(at) < RENEWAL_INTERVAL) {
            return false;
        }
        self.networks.retain(|(known, _)| known != network);
        self.networks.push((network.to_owned(), now.0));
        let surplus = self.networks.len().saturating_sub(MAX_NETWORKS_PER_ACCOUNT);
        self.networks.drain(..surplus);
        true
    }

    fn contains(&self, network: &str, now: Timestamp) -> bool {
        let is_current = |at: i64| now.since(Timestamp(at)) < TRUST_DURATION;
        self.networks
            .iter()
            .any(|(known, at)| known == network && is_current(*at))
    }
}

fn trusted_key(account: &str) -> String {
    format!("{KEY_PREFIX}:trusted:{}", account_digest(account))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn network_is_trusted_for_90_days_after_its_renewal() {
        let (mut list, start) = (TrustedNetworks::default(), Timestamp(1_000_000));
        assert!(list.renew("192.0.2.0/24", Some("s-1"), start));
        assert!(
            !list.renew("192.0.2.0/24", Some("s-1"), start.plus(DAY / 2)),
            "within the renewal interval"
        );
        assert!(list.contains("192.0.2.0/24", start.plus(DAY * 89)));
        assert!(!list.contains("192.0.2.0/24", start.plus(DAY * 90)));
        assert!(
            list.renew("192.0.2.0/24", Some("s-1"), start.plus(DAY * 89)),
            "renewed"
        );
        assert!(list.contains("192.0.2.0/24", start.plus(DAY * 178)));
        assert!(!list.contains("198.51.100.0/24", start));
    }

    #[test]
    fn list_starts_empty_for_another_subject() {
        let (mut list, now) = (TrustedNetworks::default(), Timestamp(1_000_000));
        assert!(list.renew("192.0.2.0/24", Some("s-1"), now));
        assert!(list.renew("198.51.100.0/24", Some("s-2"), now));
        assert!(!list.contains("192.0.2.0/24", now));
        assert!(list.contains("198.51.100.0/24", now));
    }

    #[test]
    fn least_recently_renewed_network_is_removed() {
        let (mut list, now) = (TrustedNetworks::default(), Timestamp(1_000_000));
        for n in 0..=MAX_NETWORKS_PER_ACCOUNT {
            assert!(list.renew(&format!("10.0.{n}.0/24"), Some("s-1"), now));
        }
        assert_eq!(list.networks.len(), MAX_NETWORKS_PER_ACCOUNT);
        assert!(!list.contains("10.0.0.0/24", now));
        assert!(list.contains("10.0.32.0/24", now));
    }
}
