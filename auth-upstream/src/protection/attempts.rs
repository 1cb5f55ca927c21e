//! Attempt limits by account, by client address, by network (/24 or /64) and in total.
//!
//! A throttled attempt gets the response for a wrong guess, whether the account exists or not, so
//! that nothing is learned from it. Operations in which nothing is guessed (registration, callbacks
//! of a social provider) count by address and network alone and are answered with 429.
//!
//! Beyond the free failures of a scope, one attempt is evaluated after each delay; the delay
//! doubles with each further failure, up to 15 minutes. When the failures in total exceed their
//! limit, every address has one free failure only. An attempt that was not evaluated, because the
//! pool is unavailable or throttles, does not count against its account. An attempt whose client
//! disconnects before the response counts as a failure of account, address and network
//! ([`Attempt`]).
//!
//! Failures of other clients do not lock out the account's owner: failures from a network in which
//! the owner has completed a sign-in ([`trusted_networks`]) are counted separately, and refreshing
//! tokens is not limited here. Loopback addresses have no address and network limits. Counters are
//! in the shared cache; while it is unavailable, each process counts on its own.

mod password_quota;
mod trusted_networks;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use futures_util::future::{join_all, join4};
use postern_common::cache::Cache;
use postern_common::{Clock, Secret};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub(crate) use self::password_quota::CredentialDigest;
use super::FallbackCache;
use crate::client::ClientContext;
use crate::crypto::{hex, random};

/// The delay after the first failure beyond the free ones; doubled by each further failure.
const INITIAL_ATTEMPT_DELAY: Duration = Duration::from_secs(1);
/// The maximum delay.
const MAX_ATTEMPT_DELAY: Duration = Duration::from_secs(15 * 60);
/// The window in which failures in total are counted.
const TOTAL_WINDOW: Duration = Duration::from_secs(60);
/// The prefix of the cache keys.
const KEY_PREFIX: &str = "postern:auth:abuse";

/// Free failures of each scope and the window in which they count (`[abuse]`).
#[derive(Clone, Copy, Debug)]
pub struct AttemptLimits {
    /// Failures of one account: an e-mail address, registered or not, or the user of a second
    /// factor. Default 5.
    pub per_account: u64,
    /// Failures of one client address. Default 30, because an office shares one.
    pub per_address: u64,
    /// Failures of one network. Default 200.
    pub per_network: u64,
    /// Failures in total, per minute. Default 2000.
    pub total_per_minute: u64,
    /// The time for which a failure counts. Default 15 min.
    pub window: Duration,
    /// Sign-ins with the right password of one account in ten minutes, from each trusted network
    /// and from all others together. Default 60.
    pub sign_ins: u64,
}

/// The kinds of attempts. Each kind is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptKind {
    Password,
    /// A code for a password reset.
    ResetCode,
    /// A request for such a code.
    ResetRequest,
    /// A code that confirms the address of a registration.
    ConfirmationCode,
    SecondFactor,
    /// A registration. Nothing is guessed; each one counts.
    Registration,
    /// A callback of a social provider. Nothing is guessed; each failure counts.
    SocialCallback,
}

/// Decides which attempts are evaluated and counts their failures.
#[derive(Clone, Debug)]
pub(crate) struct AttemptLimiter {
    counters: FallbackCache,
    clock: Clock,
    limits: AttemptLimits,
    /// The key of the password digests that [`password_quota`] keeps in this process's memory.
    digest_key: Secret,
}

/// An admitted attempt. Dropping it before its outcome is recorded, as when the client disconnects,
/// counts as a failure of its address and network.
#[derive(Debug)]
#[must_use = "an attempt that is dropped counts as a failure"]
pub(crate) struct Attempt {
    limiter: AttemptLimiter,
    kind: AttemptKind,
    /// The counter of the account; `None` if no account is named.
    account_key: Option<String>,
    /// Whether this attempt ended a delay and started the next one.
    started_delay: bool,
    /// Counters of address and network. Empty once the outcome is recorded.
    client_scopes: Vec<FailureScope>,
}

/// A failure counter of an address or network.
#[derive(Clone, Debug)]
struct FailureScope {
    key: String,
    /// The number of failures without a delay.
    free: u64,
}

impl Default for AttemptLimits {
    fn default() -> Self {
        Self {
            per_account: 5,
            per_address: 30,
            per_network: 200,
            total_per_minute: 2000,
            window: Duration::from_secs(15 * 60),
            sign_ins: 60,
        }
    }
}

// === impl AttemptKind ===

impl AttemptKind {
    /// Returns the name in cache keys and metric labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::ResetCode => "reset",
            Self::ResetRequest => "forgot",
            Self::ConfirmationCode => "confirm",
            Self::SecondFactor => "factor",
            Self::Registration => "register",
            Self::SocialCallback => "social",
        }
    }
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    pub(crate) fn new(shared: Cache, clock: Clock, limits: AttemptLimits) -> Self {
        Self {
            counters: FallbackCache::new(shared, &clock),
            clock,
            limits,
            digest_key: random::token().into(),
        }
    }

    /// Returns the counters, for limits that are no attempt limits.
    pub(crate) fn counters(&self) -> &FallbackCache {
        &self.counters
    }

    /// Admits an attempt on an account, or returns `None` if it is throttled. The account's counter
    /// is incremented before the attempt is evaluated, so that concurrent attempts do not exceed
    /// the limit.
    pub(crate) async fn admit(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
        account: &str,
    ) -> Option<Attempt> {
        let (mut attempt, is_delayed) = Box::pin(self.prepare(kind, client, account)).await;
        if is_delayed {
            attempt.settle();
            return None;
        }
        let Some(account_key) = &attempt.account_key else {
            return Some(attempt);
        };
        let attempts = self
            .counters
            .increment(account_key, self.limits.window)
            .await;
        if attempts > self.limits.per_account {
            let delay = delay_after(attempts - self.limits.per_account);
            // Of several attempts at the end of a delay, the one that starts the next is evaluated.
            attempt.started_delay = self
                .counters
                .set_if_absent(&delay_key(account_key), delay)
                .await;
            if !attempt.started_delay {
                attempt.settle();
                return None;
            }
        }
        Some(attempt)
    }

    /// Admits an attempt that names no account, or returns `None` if it is throttled.
    pub(crate) async fn check_anonymous(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
    ) -> Option<Attempt> {
        let scopes = self.client_scopes(kind, client);
        let is_delayed = self.is_any_delayed(&scopes).await;
        (!is_delayed).then(|| self.attempt(kind, None, scopes))
    }

    /// Takes an attempt back that the pool did not evaluate.
    pub(crate) async fn refund(&self, mut attempt: Attempt) {
        attempt.client_scopes.clear();
        let Some(account_key) = attempt.account_key.take() else {
            return;
        };
        self.counters.decrement(&account_key).await;
        if attempt.started_delay {
            self.counters.delete(&delay_key(&account_key)).await;
        }
    }

    /// Records a failed attempt. Counting completes even if the client disconnects meanwhile.
    pub(crate) async fn record_failure(&self, attempt: &mut Attempt) {
        if let Some(counting) = attempt.spawn_failure_count() {
            let _ = counting.await;
        }
    }

    /// Records a successful attempt: the account's failures are forgotten. Those of the address
    /// and network are kept, because an attacker may have an account as well.
    pub(crate) async fn record_success(&self, mut attempt: Attempt) {
        attempt.client_scopes.clear();
        let keys = attempt
            .account_key
            .take()
            .into_iter()
            .flat_map(|key| [delay_key(&key), key]);
        join_all(keys.map(async |key| self.counters.delete(&key).await)).await;
    }

    async fn count_failure(&self, kind: AttemptKind, scopes: &[FailureScope]) {
        let total_key = format!("{KEY_PREFIX}:{}:all", kind.name());
        let total = self.counters.increment(&total_key, TOTAL_WINDOW).await;
        let is_flood = total > self.limits.total_per_minute;
        for FailureScope { key, free } in scopes {
            let free = if is_flood { *free.min(&1) } else { *free };
            let failures = self.counters.increment(key, self.limits.window).await;
            if failures >= free {
                self.counters
                    .set_if_absent(&delay_key(key), delay_after(failures - free))
                    .await;
            }
        }
    }

    /// Returns the attempt with its counters, and whether it is delayed. All reads are concurrent:
    /// one round trip.
    async fn prepare(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
        account: &str,
    ) -> (Attempt, bool) {
        let account_key = format!("{KEY_PREFIX}:{}:{}", kind.name(), account_digest(account));
        let Some(address) = canonical_address(client) else {
            let is_delayed = self.is_delayed(&account_key).await;
            return (
                self.attempt(kind, Some(account_key), Vec::new()),
                is_delayed,
            );
        };
        let network = network(address);
        let trusted_key = format!("{account_key}:{network}");
        let scopes = self.client_scopes(kind, client);
        // Codes are guessed by attackers who know the password. They may have signed in from any
        // network, so that trust is no argument here.
        let considers_trust = !matches!(
            kind,
            AttemptKind::ConfirmationCode | AttemptKind::SecondFactor
        );
        let (is_trusted, trusted_is_delayed, account_is_delayed, client_is_delayed) = join4(
            async { considers_trust && self.is_trusted(account, &network).await },
            self.is_delayed(&trusted_key),
            self.is_delayed(&account_key),
            self.is_any_delayed(&scopes),
        )
        .await;
        if is_trusted {
            return (
                self.attempt(kind, Some(trusted_key), Vec::new()),
                trusted_is_delayed,
            );
        }
        (
            self.attempt(kind, Some(account_key), scopes),
            account_is_delayed || client_is_delayed,
        )
    }

    fn attempt(
        &self,
        kind: AttemptKind,
        account_key: Option<String>,
        client_scopes: Vec<FailureScope>,
    ) -> Attempt {
        Attempt {
            limiter: self.clone(),
            kind,
            account_key,
            started_delay: false,
            client_scopes,
        }
    }

    /// Returns the counters of the client's address and network; none for loopback addresses.
    fn client_scopes(&self, kind: AttemptKind, client: &ClientContext) -> Vec<FailureScope> {
        let Some(address) = canonical_address(client).filter(|address| !address.is_loopback())
        else {
            return Vec::new();
        };
        let scope = |name: &str, free| FailureScope {
            key: format!("{KEY_PREFIX}:{}:{name}", kind.name()),
            free,
        };
        vec![
            scope(&address.to_string(), self.limits.per_address),
            scope(&network(address), self.limits.per_network),
        ]
    }

    async fn is_any_delayed(&self, scopes: &[FailureScope]) -> bool {
        join_all(scopes.iter().map(|scope| self.is_delayed(&scope.key)))
            .await
            .contains(&true)
    }

    async fn is_delayed(&self, key: &str) -> bool {
        self.counters.get(&delay_key(key)).await.is_some()
    }
}

// === impl Attempt ===

impl Attempt {
    /// Ends the attempt without counting it for its address and network.
    pub(crate) fn settle(mut self) {
        self.client_scopes.clear();
    }

    /// Counts the failure once, in a task that outlives the request.
    fn spawn_failure_count(&mut self) -> Option<JoinHandle<()>> {
        let scopes = std::mem::take(&mut self.client_scopes);
        if scopes.is_empty() {
            return None;
        }
        let (limiter, kind) = (self.limiter.clone(), self.kind);
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move { limiter.count_failure(kind, &scopes).await }))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        drop(self.spawn_failure_count());
    }
}

/// Returns the delay after this number of failures beyond the free ones.
fn delay_after(excess_failures: u64) -> Duration {
    let doublings = u32::try_from(excess_failures.saturating_sub(1).min(20)).unwrap_or(20);
    INITIAL_ATTEMPT_DELAY
        .saturating_mul(2_u32.saturating_pow(doublings))
        .min(MAX_ATTEMPT_DELAY)
}

fn delay_key(key: &str) -> String {
    format!("{key}:wait")
}

fn canonical_address(client: &ClientContext) -> Option<IpAddr> {
    client.address.map(|address| address.to_canonical())
}

/// Returns the digest under which an account is counted. Case does not matter; the cache never
/// contains the address itself.
fn account_digest(account: &str) -> String {
    hex(&Sha256::digest(account.to_ascii_lowercase())[..16])
}

/// Returns the /24 or /64 network of an address.
fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests;
