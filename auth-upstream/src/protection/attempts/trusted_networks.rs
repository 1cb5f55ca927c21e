//! The networks in which an account's owner has signed in. Failures from other networks do not
//! delay attempts from these.
//!
//! A completed sign-in, a password reset or a registration adds a network; a sign-in that ends at a
//! challenge does not. The list belongs to a subject: it is void when the account is deleted or its
//! password is reset. Such a removal has an entry of its own, which concurrent sign-ins do not
//! change: networks of sign-ins that started before it are void, whenever they are stored. A reset or
//! deletion whose removal the shared cache does not confirm fails, and can be repeated.

use std::time::Duration;

use futures_util::future::join;
use postern_core::clock::Timestamp;
use postern_store::cache::CacheError;
use serde::de::DeserializeOwned;
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
/// The maximum number of networks of one account. The least recently renewed one is removed first.
const MAX_NETWORKS_PER_ACCOUNT: usize = 32;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct TrustedNetworks {
    /// A digest of the subject; `None` if it is not known.
    subject: Option<String>,
    /// Networks with the start times of the sign-ins that renewed them last, in milliseconds since
    /// the epoch, oldest first.
    networks: Vec<(String, i64)>,
}

/// The last removal of an account's trusted networks, as stored in the cache.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Removal {
    at: i64,
    /// The network of the password reset, and a digest of the subject if it is known.
    network: Option<String>,
    subject: Option<String>,
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    /// Trusts the client's network for an account. To be called after a completed sign-in or a
    /// registration that started at `started_at`. `subject` is the account's subject, if known.
    /// Best effort: if the cache fails, or another sign-in stores the list at once, the network is not
    /// trusted next time. Returns whether other
    /// networks of the account are trusted and this one was not.
    pub(crate) async fn trust_network(
        &self,
        client: &ClientContext,
        account: &str,
        subject: Option<&str>,
        started_at: Timestamp,
    ) -> bool {
        let Some(address) = canonical_address(client) else {
            return false;
        };
        let (key, network) = (trusted_key(account), network(address));
        // Most sign-ins are from a network that was renewed today.
        let mut trusted = self.trusted_networks(&key).await;
        let is_known = trusted.networks.iter().any(|(known, _)| *known == network);
        if !trusted.renew(&network, subject, started_at) {
            return false;
        }
        let shared = &self.counters.shared;
        let _ = shared.set(&key, &to_bytes(&trusted), TRUST_DURATION).await;
        // A list that belonged to another subject has started anew.
        !is_known && trusted.networks.len() > 1
    }

    pub(crate) async fn forget_trusted_networks(&self, account: &str) -> Result<(), CacheError> {
        let removal = Removal::new(self.clock.now());
        self.store_removal(account, &removal).await
    }

    /// Trusts no other network than the client's for an account whose password was reset.
    pub(crate) async fn trust_only(
        &self,
        client: &ClientContext,
        account: &str,
        subject: Option<&str>,
    ) -> Result<(), CacheError> {
        let removal = Removal {
            network: canonical_address(client).map(network),
            subject: subject.map(subject_digest),
            ..Removal::new(self.clock.now())
        };
        self.store_removal(account, &removal).await
    }

    /// Stores a removal, which outlives the networks that it voids.
    async fn store_removal(&self, account: &str, removal: &Removal) -> Result<(), CacheError> {
        let key = removal_key(&trusted_key(account));
        let shared = &self.counters.shared;
        shared.set(&key, &to_bytes(removal), TRUST_DURATION).await
    }

    pub(crate) async fn is_trusted(&self, account: &str, network: &str) -> bool {
        self.trusted_networks(&trusted_key(account))
            .await
            .contains(network, self.clock.now())
    }

    /// Returns the valid part of the list, which is empty if the list is unknown.
    async fn trusted_networks(&self, key: &str) -> TrustedNetworks {
        let shared = &self.counters.shared;
        let removal_key = removal_key(key);
        let (Ok(list), Ok(removal)) = join(shared.get(key), shared.get(&removal_key)).await else {
            return TrustedNetworks::default();
        };
        let mut trusted: TrustedNetworks = from_bytes(list).unwrap_or_default();
        if let Some(removal) = from_bytes(removal) {
            trusted.apply(removal);
        }
        trusted
    }
}

/// Decodes an entry. One that cannot be decoded counts as absent.
fn from_bytes<T: DeserializeOwned>(stored: Option<Vec<u8>>) -> Option<T> {
    serde_json::from_slice(&stored?).ok()
}

fn to_bytes(entry: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(entry).expect("the struct serializes to JSON")
}

fn subject_digest(subject: &str) -> String {
    hex(&Sha256::digest(subject)[..16])
}

// === impl Removal ===

impl Removal {
    fn new(at: Timestamp) -> Self {
        Self {
            at: at.0,
            network: None,
            subject: None,
        }
    }
}

// === impl TrustedNetworks ===

impl TrustedNetworks {
    /// Removes the networks of sign-ins that started before a removal, and adds its own.
    fn apply(&mut self, removal: Removal) {
        let earliest = Timestamp(removal.at).plus(CLOCK_TOLERANCE);
        self.networks.retain(|(_, at)| Timestamp(*at) >= earliest);
        if self.networks.is_empty() {
            self.subject.clone_from(&removal.subject);
        }
        if let Some(network) = removal.network
            && self.subject == removal.subject
        {
            self.networks.insert(0, (network, removal.at));
        }
    }

    /// Adds or renews a network and returns whether the list has changed. The list starts anew for
    /// another subject, which owns the account's address now.
    fn renew(&mut self, network: &str, subject: Option<&str>, now: Timestamp) -> bool {
        let subject = subject.map(subject_digest);
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

fn removal_key(key: &str) -> String {
    format!("{key}:removed")
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
    fn removal_voids_earlier_sign_ins_and_adds_its_own_network() {
        let now = Timestamp(1_000_000);
        let later = now.plus(CLOCK_TOLERANCE);
        for (subject, started_at, expected) in [
            ("s-1", now, [false, true]),
            ("s-1", later, [true, true]),
            ("s-2", later, [true, false]),
        ] {
            let mut list = TrustedNetworks::default();
            assert!(list.renew("192.0.2.0/24", Some(subject), started_at));
            list.apply(Removal {
                network: Some("203.0.113.0/24".to_owned()),
                subject: Some(subject_digest("s-1")),
                ..Removal::new(now)
            });
            let networks = ["192.0.2.0/24", "203.0.113.0/24"];
            let trusted = networks.map(|network| list.contains(network, later));
            assert_eq!(trusted, expected, "{subject} {started_at:?}");
        }
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
