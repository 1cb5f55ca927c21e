//! The throttled accounts, addresses and networks, as operators list and release them.
//!
//! The cache cannot list its counters. Each process keeps the names of the 1,000 counters that
//! refused an attempt last, and reads their delays from the cache, which all replicas share. A
//! release deletes the counter there, for all replicas.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::network::IpNetwork;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{AttemptKind, AttemptLimiter, COUNTER_PREFIX, account_digest, network};
use crate::crypto::hex;

/// Maximum number of counters that a process remembers.
const MAX_THROTTLED: usize = 1000;
/// Number of hexadecimal digits of an account's digest that operators see.
const SHOWN_DIGITS: usize = 8;
/// Bytes of an id.
const ID_BYTES: usize = 8;

/// The counters that refused an attempt last, newest first. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ThrottledIndex(Arc<Mutex<VecDeque<String>>>);

/// A counter that refuses attempts now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ThrottledView {
    /// Identifies the counter in a release.
    id: String,
    /// The kind of attempt, such as `password`.
    kind: &'static str,
    /// `account`, `address` or `network`.
    scope: &'static str,
    /// The first digits of the SHA-256 of the account in lower case.
    account: Option<String>,
    /// The network of the client, also for a single address and for a trusted network of an account.
    network: Option<String>,
    attempts: u64,
    until: Timestamp,
    remaining_seconds: u64,
}

/// What an operator releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseTarget {
    /// All counters of an account.
    Email(EmailAddress),
    /// One counter, by the id in the list of this process.
    Id(String),
    /// The counters of a network and of the addresses in it.
    Network(IpNetwork),
}

/// The parts of the name of a counter.
struct CounterName<'a> {
    kind: AttemptKind,
    /// The digest of the account, and the trusted network if the attempt came from one.
    account: Option<(&'a str, Option<&'a str>)>,
    /// The address or the network.
    client: Option<&'a str>,
}

// === impl ThrottledIndex ===

impl ThrottledIndex {
    /// Remembers a counter that refused an attempt.
    pub(super) fn insert(&self, key: String) {
        let mut keys = self.0.lock();
        if keys.front() == Some(&key) {
            return;
        }
        keys.retain(|known| *known != key);
        keys.truncate(MAX_THROTTLED - 1);
        keys.push_front(key);
    }

    fn keys(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }

    fn forget(&self, released: &[String]) {
        self.0.lock().retain(|key| !released.contains(key));
    }
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    /// Returns the counters that refuse attempts now, of those that this process remembers.
    pub(crate) async fn throttled(&self) -> Vec<ThrottledView> {
        let now = self.clock.now();
        let (mut views, mut ended) = (Vec::new(), Vec::new());
        for key in self.throttled.keys() {
            let delay = self.counters.attempt_delay(&key).await;
            let running = delay.filter(|(until, _)| *until > now);
            match (running, CounterName::parse(&key)) {
                (Some((until, attempts)), Some(name)) => {
                    views.push(name.view(&key, attempts, until, now));
                }
                (_, _) => ended.push(key),
            }
        }
        self.throttled.forget(&ended);
        views
    }

    /// Deletes the counters of a target, and returns how many of them refused attempts.
    pub(crate) async fn release(&self, target: &ReleaseTarget) -> usize {
        let now = self.clock.now();
        let known = self.throttled.keys();
        let names = match target {
            ReleaseTarget::Email(email) => {
                let digest = account_digest(email.as_str());
                let mut keys = keys_of(&digest);
                let prefixes: Vec<String> = keys.iter().map(|key| format!("{key}:")).collect();
                let is_trusted_variant = |key: &&String| {
                    prefixes
                        .iter()
                        .any(|prefix| key.starts_with(prefix.as_str()))
                };
                keys.extend(known.iter().filter(is_trusted_variant).cloned());
                keys
            }
            ReleaseTarget::Id(id) => known.into_iter().filter(|key| id_of(key) == *id).collect(),
            ReleaseTarget::Network(wanted) => {
                let wanted = wanted.to_string();
                let mut keys = keys_of(&wanted);
                let is_inside = |key: &&String| {
                    let name = CounterName::parse(key);
                    let network = name.and_then(|name| name.client_network());
                    network.as_deref() == Some(&*wanted)
                };
                keys.extend(known.iter().filter(is_inside).cloned());
                keys
            }
        };
        let mut released = 0;
        for key in &names {
            let delay = self.counters.attempt_delay(key).await;
            if delay.is_some_and(|(until, _)| until > now) {
                released += 1;
            }
            self.counters.delete(key).await;
        }
        self.throttled.forget(&names);
        released
    }
}

/// Returns the names of the counters of an account or of a network.
fn keys_of(name: &str) -> Vec<String> {
    let key = |kind: AttemptKind| format!("{COUNTER_PREFIX}:{}:{name}", kind.name());
    AttemptKind::ALL.into_iter().map(key).collect()
}

fn id_of(key: &str) -> String {
    hex(&Sha256::digest(key)[..ID_BYTES])
}

// === impl CounterName ===

impl<'a> CounterName<'a> {
    fn parse(key: &'a str) -> Option<Self> {
        let rest = key.strip_prefix(COUNTER_PREFIX)?.strip_prefix(':')?;
        let (kind, name) = rest.split_once(':')?;
        let kind = AttemptKind::ALL
            .into_iter()
            .find(|known| known.name() == kind)?;
        if is_client(name) {
            return Some(Self {
                kind,
                account: None,
                client: Some(name),
            });
        }
        let account = match name.split_once(':') {
            Some((digest, network)) => (digest, Some(network)),
            None => (name, None),
        };
        Some(Self {
            kind,
            account: Some(account),
            client: None,
        })
    }

    /// Returns the network of a counter of an address or network.
    fn client_network(&self) -> Option<String> {
        let client = self.client?;
        let address: Option<IpAddr> = client.parse().ok();
        Some(address.map_or_else(|| client.to_owned(), network))
    }

    fn view(&self, key: &str, attempts: u64, until: Timestamp, now: Timestamp) -> ThrottledView {
        let scope = match (self.account, self.client) {
            (Some(_), _) => "account",
            (None, Some(client)) if client.contains('/') => "network",
            (None, _) => "address",
        };
        let trusted = self.account.and_then(|(_, network)| network);
        ThrottledView {
            id: id_of(key),
            kind: self.kind.name(),
            scope,
            account: self
                .account
                .map(|(digest, _)| digest.chars().take(SHOWN_DIGITS).collect()),
            network: trusted.map(str::to_owned).or_else(|| self.client_network()),
            attempts,
            until,
            remaining_seconds: until.since(now).as_secs(),
        }
    }
}

/// Returns whether a name is an address or a network, and not the digest of an account.
fn is_client(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name
            .split_once('/')
            .is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok())
}
