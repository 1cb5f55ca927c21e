//! The networks from which an account's holder has signed in: a stranger's failures do not hold
//! these back.
//!
//! Only a completed sign-in, a new password or a registration adds one: whoever stops at a
//! challenge has shown a part of what is asked for. The list belongs to a subject: it ends with the
//! account, and with the password that its networks were trusted for.

use std::time::Duration;

use postern_common::clock::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Abuse, PREFIX, account, address, network};
use crate::auth::Visitor;
use crate::seal::hex;

/// How long a network is trusted after the last sign-in there.
const TRUSTED: Duration = Duration::from_secs(90 * 86_400);
/// A sign-in on the same day writes nothing.
const RENEWED_AFTER: Duration = Duration::from_secs(86_400);
/// How many networks of one account are kept: those of the latest sign-ins.
const MOST_NETWORKS: usize = 32;

/// The trusted networks of one account, as the cache keeps them.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TrustedNetworks {
    /// A digest of the subject; none where a sign-in did not tell it.
    subject: Option<String>,
    /// Each with the instant of its last renewal, the oldest first.
    networks: Vec<(String, i64)>,
}

// === impl Abuse ===

impl Abuse {
    /// The account's holder has signed in completely, set a new password or registered; `subject`
    /// where that is known.
    pub(crate) async fn trust_network(&self, visitor: &Visitor, who: &str, subject: Option<&str>) {
        let Some(address) = address(visitor) else {
            return;
        };
        let mut trusted = self.trusted_networks(who).await;
        if trusted.add(&network(address), subject, self.clock.now()) {
            self.save_trusted(who, &trusted).await;
        }
    }

    /// The account is gone, or its password is new: no network is trusted from now on.
    pub(crate) async fn forget_networks(&self, who: &str) {
        self.delete(&trusted_key(who)).await;
    }

    /// Whether the account's holder has signed in from the network.
    pub(super) async fn trusts(&self, who: &str, network: &str) -> bool {
        self.trusted_networks(who)
            .await
            .contains(network, self.clock.now())
    }

    async fn trusted_networks(&self, who: &str) -> TrustedNetworks {
        let found = self.get(&trusted_key(who)).await;
        found
            .and_then(|json| serde_json::from_slice(&json).ok())
            .unwrap_or_default()
    }

    /// Best effort: without the cache a user is a stranger next time.
    async fn save_trusted(&self, who: &str, trusted: &TrustedNetworks) {
        let json = serde_json::to_vec(trusted).expect("a struct of texts is JSON");
        let _ = self.shared.set(&trusted_key(who), &json, TRUSTED).await;
    }
}

// === impl TrustedNetworks ===

impl TrustedNetworks {
    /// Whether the list has changed.
    fn add(&mut self, network: &str, subject: Option<&str>, now: Timestamp) -> bool {
        let subject = subject.map(|subject| hex(&Sha256::digest(subject)[..16]));
        if self.subject != subject {
            // Another account has the address now.
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
        if renewed.is_some_and(|at| now.since(at) < RENEWED_AFTER) {
            return false;
        }
        self.networks.retain(|(known, _)| known != network);
        self.networks.push((network.to_owned(), now.0));
        let surplus = self.networks.len().saturating_sub(MOST_NETWORKS);
        self.networks.drain(..surplus);
        true
    }

    fn contains(&self, network: &str, now: Timestamp) -> bool {
        let is_fresh = |at: i64| now.since(Timestamp(at)) < TRUSTED;
        self.networks
            .iter()
            .any(|(known, at)| known == network && is_fresh(*at))
    }
}

fn trusted_key(who: &str) -> String {
    format!("{PREFIX}:trusted:{}", account(who))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_network_is_trusted_for_ninety_days_after_its_last_renewal() {
        let (mut list, start) = (TrustedNetworks::default(), Timestamp(1_000_000));
        assert!(list.add("192.0.2.0/24", Some("s-1"), start));
        assert!(
            !list.add("192.0.2.0/24", Some("s-1"), start.plus(DAY / 2)),
            "the same day"
        );
        assert!(list.contains("192.0.2.0/24", start.plus(DAY * 89)));
        assert!(!list.contains("192.0.2.0/24", start.plus(DAY * 90)));
        assert!(
            list.add("192.0.2.0/24", Some("s-1"), start.plus(DAY * 89)),
            "renewed"
        );
        assert!(list.contains("192.0.2.0/24", start.plus(DAY * 178)));
        assert!(!list.contains("198.51.100.0/24", start));
    }

    #[test]
    fn another_subject_begins_with_an_empty_list() {
        let (mut list, now) = (TrustedNetworks::default(), Timestamp(1_000_000));
        assert!(list.add("192.0.2.0/24", Some("s-1"), now));
        assert!(list.add("198.51.100.0/24", Some("s-2"), now));
        assert!(!list.contains("192.0.2.0/24", now));
        assert!(list.contains("198.51.100.0/24", now));
    }

    #[test]
    fn the_latest_networks_are_kept() {
        let (mut list, now) = (TrustedNetworks::default(), Timestamp(1_000_000));
        for n in 0..=MOST_NETWORKS {
            assert!(list.add(&format!("10.0.{n}.0/24"), Some("s-1"), now));
        }
        assert_eq!(list.networks.len(), MOST_NETWORKS);
        assert!(!list.contains("10.0.0.0/24", now));
        assert!(list.contains("10.0.32.0/24", now));
    }
}
