//! The networks in which an account's owner has signed in. Failures from other networks do not
//! delay attempts from these.
//!
//! A completed sign-in, a password reset or a registration adds a network; a sign-in that ends at a
//! challenge does not. The list belongs to a subject: it is deleted with the account, and when the
//! password is reset.

use std::time::Duration;

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
/// The maximum number of networks of one account. The least recently renewed one is removed first.
const MAX_NETWORKS_PER_ACCOUNT: usize = 32;

/// The trusted networks of one account, as stored in the cache.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TrustedNetworks {
    /// A digest of the subject; `None` if it is not known.
    subject: Option<String>,
    /// Networks with the times of their last renewal in milliseconds since the epoch, oldest first.
    networks: Vec<(String, i64)>,
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    /// Trusts the client's network for an account. To be called after a completed sign-in, a
    /// password reset or a registration. `subject` is the account's subject, if known.
    pub(crate) async fn trust_network(
        &self,
        client: &ClientContext,
        account: &str,
        subject: Option<&str>,
    ) {
        let Some(address) = canonical_address(client) else {
            return;
        };
        let mut trusted = self.trusted_networks(account).await;
        if trusted.renew(&network(address), subject, self.clock.now()) {
            self.save_trusted_networks(account, &trusted).await;
        }
    }

    /// Forgets the trusted networks of an account that was deleted or whose password was reset.
    pub(crate) async fn forget_trusted_networks(&self, account: &str) {
        self.counters.delete(&trusted_key(account)).await;
    }

    /// Returns whether a network is trusted for an account.
    pub(super) async fn is_trusted(&self, account: &str, network: &str) -> bool {
        self.trusted_networks(account)
            .await
            .contains(network, self.clock.now())
    }

    async fn trusted_networks(&self, account: &str) -> TrustedNetworks {
        let found = self.counters.get(&trusted_key(account)).await;
        found
            .and_then(|json| serde_json::from_slice(&json).ok())
            .unwrap_or_default()
    }

    /// Stores the networks, best effort: if the cache fails, the network is not trusted next time.
    async fn save_trusted_networks(&self, account: &str, trusted: &TrustedNetworks) {
        let json = serde_json::to_vec(trusted).expect("the struct serializes to JSON");
        let shared = self.counters.shared();
        let _ = shared
            .set(&trusted_key(account), &json, TRUST_DURATION)
            .await;
    }
}

// === impl TrustedNetworks ===

impl TrustedNetworks {
    /// Adds or renews a network and returns whether the list has changed. The list starts anew for
    /// another subject, which owns the account's address now.
    fn renew(&mut self, network: &str, subject: Option<&str>, now: Timestamp) -> bool {
        let subject = subject.map(|subject| hex(&Sha256::digest(subject)[..16]));
        if self.subject != subject {
            *self = Self {
                subject,
                networks: Vec::new(),
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
