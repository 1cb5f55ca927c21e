//! Attempt limits by account, by client address, by network (/24 or /64) and in total.
//!
//! A throttled attempt gets the response for a wrong guess, whether the account exists or not, so
//! that nothing is learned from it. Operations in which nothing is guessed (registration, callbacks
//! of a social provider) count by address and network alone and are answered with 429.
//!
//! Beyond the free failures of a scope, one attempt is evaluated after each delay; the delay
//! doubles with each further failure, up to 15 minutes. When the failures in total exceed their
//! limit, every address has one free failure only. An attempt counts from its admission, so that
//! concurrent attempts do not exceed a limit together. It is given back if it succeeds, and if it
//! was not evaluated, because the pool is unavailable or throttles. An attempt whose client
//! disconnects before the response counts as a failure of account, address and network
//! ([`Attempt`]).
//!
//! Failures of other clients do not lock out the account's owner: failures from a network in which
//! the owner has completed a sign-in ([`trusted_networks`]) are counted separately, and refreshing
//! tokens is not limited here. Loopback addresses have no address and network limits. Counters are
//! in the shared cache; while it is unavailable, each process counts on its own.

mod password_quota;
mod trusted_networks;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::{join, join_all};
use postern_core::backoff::Backoff;
use postern_core::decode::defaults;
use postern_core::network::IpNetwork;
use postern_core::{Clock, Secret, settings};
use postern_store::cache::{AttemptOutcome, AttemptPolicy, Cache};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub(crate) use self::password_quota::CredentialDigest;
use super::fallback_cache::{FallbackCache, FallbackReservation};
use crate::client::ClientContext;
use crate::crypto::{hex, random};

/// The delays after failures beyond the free ones.
const ATTEMPT_DELAYS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(15 * 60));
const TOTAL_WINDOW: Duration = Duration::from_secs(60);
const COUNTER_PREFIX: &str = "postern:auth:attempts";
const KEY_PREFIX: &str = "postern:auth:abuse";

settings! {
    /// Free failures of each scope and the window in which they count (`[abuse]`).
    #[derive(Clone, Copy, Debug)]
    pub struct AttemptLimits(table) {
        /// Free failures per account in 15 minutes.
        ///
        /// An account is an e-mail address, registered or not, or the user of a second factor.
        pub per_account as account: u64 = 5 => |field| field.integer(COUNTS),
        /// Free failures per client address in 15 minutes.
        ///
        /// An office shares one address.
        pub per_address as address: u64 = 30 => |field| field.integer(COUNTS),
        /// Free failures per network (/24, /64) in 15 minutes.
        pub per_network as network: u64 = 200 => |field| field.integer(COUNTS),
        /// Failures per minute of all clients; above it one for each address and network.
        pub total_per_minute as all: u64 = 2000 => |field| field.integer(COUNTS),
        /// Accepted passwords per account in ten minutes, for each trusted network, and all others.
        pub sign_ins: u64 = 60 => |field| field.integer(COUNTS),
        /// The time for which a failure counts, 15 minutes. Not a key of the file.
        pub window: Duration = (Some(Duration::from_secs(15 * 60))),
    }
}

const COUNTS: RangeInclusive<u64> = 1..=1_000_000_000;

named! {
    /// The kinds of attempts. Each kind is counted separately.
    AttemptKind {
        Password = "password",
        ResetCode = "reset",
        /// A request for such a code. Each purpose counts by itself, so that the requests of one, which
        /// need not send a code, keep nobody from getting that of another.
        ResetRequest = "forgot",
        ConfirmationRequest = "confirm_request",
        LinkRequest = "link_request",
        /// A code that confirms the address of a registration or of a social identity.
        ConfirmationCode = "confirm",
        SecondFactor = "factor",
        /// A registration. Nothing is guessed; each one counts.
        Registration = "register",
        /// A callback of a social provider. Nothing is guessed; each failure counts.
        SocialCallback = "social",
    }
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
    account: Option<ReservedScope>,
    /// Counters of address and network. Empty once the outcome is recorded.
    client_scopes: Vec<ReservedScope>,
    /// The counter in total; `None` if the client has no address and network limits, or once the
    /// outcome is recorded.
    total: Option<ReservedScope>,
}

/// A counter of an account, address or network, or in total, in which an attempt is reserved.
#[derive(Clone, Debug)]
struct ReservedScope {
    key: String,
    policy: AttemptPolicy,
    reservation: FallbackReservation,
}

impl Default for AttemptLimits {
    fn default() -> Self {
        defaults(Self::read)
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

    /// Admits an attempt on an account, or returns `None` if it is throttled. All counters are
    /// incremented before the attempt is evaluated, so that concurrent attempts do not exceed the
    /// limits.
    pub(crate) async fn admit(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
        account: &str,
    ) -> Option<Attempt> {
        let account_key = format!(
            "{COUNTER_PREFIX}:{}:{}",
            kind.name(),
            account_digest(account)
        );
        let Some(address) = canonical_address(client) else {
            return self.admit_account(account_key).await;
        };
        let network = network(address);
        // A code is guessed for each network by itself, so that nobody uses up the guesses of its
        // owner: `redeem_code`, or the pool, ends a code that many networks guess at. One customer
        // may have a whole /48 of IPv6.
        let is_code = matches!(kind, AttemptKind::ConfirmationCode | AttemptKind::ResetCode);
        // Codes are guessed by attackers who know the password. They may have signed in from any
        // network, so that trust is no argument here.
        let considers_trust = !matches!(
            kind,
            AttemptKind::ConfirmationCode | AttemptKind::SecondFactor
        );
        let (is_trusted, is_flood) = join(
            async { considers_trust && self.is_trusted(account, &network).await },
            self.is_flood(kind),
        )
        .await;
        if is_trusted {
            return self.admit_account(format!("{account_key}:{network}")).await;
        }
        let account_key = if is_code {
            format!("{account_key}:{}", IpNetwork::of(address, 24, 48))
        } else {
            account_key
        };
        let mut attempt = self.reserve_client(kind, address, is_flood).await?;
        let (account, total) = join(
            self.reserve_account(account_key),
            self.reserve_total(kind, &attempt),
        )
        .await;
        let is_account_delayed = account.is_none();
        (attempt.account, attempt.total) = (account, total);
        if is_account_delayed || self.exceeds_total(&mut attempt, is_flood) {
            self.refund(attempt).await;
            return None;
        }
        Some(attempt)
    }

    /// Admits an attempt that names no account, or returns `None` if it is throttled.
    pub(crate) async fn check_anonymous(
        &self,
        kind: AttemptKind,
        client: &ClientContext,
    ) -> Option<Attempt> {
        let Some(address) = canonical_address(client) else {
            return Some(self.attempt());
        };
        let is_flood = self.is_flood(kind).await;
        let mut attempt = self.reserve_client(kind, address, is_flood).await?;
        attempt.total = self.reserve_total(kind, &attempt).await;
        if self.exceeds_total(&mut attempt, is_flood) {
            self.refund(attempt).await;
            return None;
        }
        Some(attempt)
    }

    /// Takes an attempt back that the pool did not evaluate.
    pub(crate) async fn refund(&self, mut attempt: Attempt) {
        let account = attempt.account.take();
        attempt.finish(AttemptOutcome::Released, account).await;
    }

    /// Records a failed attempt. Counting completes even if the client disconnects meanwhile.
    pub(crate) async fn record_failure(&self, attempt: &mut Attempt) {
        attempt.finish(AttemptOutcome::Failed, None).await;
    }

    /// Records a successful attempt: the account's failures are forgotten. Those of the address
    /// and network are kept, because an attacker may have an account as well.
    pub(crate) async fn record_success(&self, mut attempt: Attempt) {
        let account = attempt.account.take();
        join(
            async {
                if let Some(account) = account {
                    self.counters.delete(&account.key).await;
                }
            },
            attempt.finish(AttemptOutcome::Released, None),
        )
        .await;
    }

    fn attempt(&self) -> Attempt {
        Attempt {
            limiter: self.clone(),
            account: None,
            client_scopes: Vec::new(),
            total: None,
        }
    }

    /// Admits an attempt that counts for its account only.
    async fn admit_account(&self, key: String) -> Option<Attempt> {
        let mut attempt = self.attempt();
        attempt.account = Some(self.reserve_account(key).await?);
        Some(attempt)
    }

    async fn reserve_account(&self, key: String) -> Option<ReservedScope> {
        let free = self.limits.per_account;
        let policy = self.policy(free, free.saturating_add(1));
        self.reserve(key, policy).await
    }

    /// Counts an attempt for its address and network, of which loopback addresses have none.
    /// Returns `None` if one of them is delayed.
    async fn reserve_client(
        &self,
        kind: AttemptKind,
        address: IpAddr,
        is_flood: bool,
    ) -> Option<Attempt> {
        let mut attempt = self.attempt();
        if address.is_loopback() {
            return Some(attempt);
        }
        let scopes = [
            (address.to_string(), self.limits.per_address),
            (network(address), self.limits.per_network),
        ];
        // The network last: an attempt that the address refuses must not take, even for a moment,
        // a place of the network that another one needs.
        for (name, free) in scopes {
            let free = if is_flood { free.min(1) } else { free };
            let key = format!("{COUNTER_PREFIX}:{}:{name}", kind.name());
            let Some(scope) = self.reserve(key, self.policy(free, free)).await else {
                self.refund(attempt).await;
                return None;
            };
            attempt.client_scopes.push(scope);
        }
        Some(attempt)
    }

    /// Counts an attempt in total, if it counts for its address.
    async fn reserve_total(&self, kind: AttemptKind, attempt: &Attempt) -> Option<ReservedScope> {
        if attempt.client_scopes.is_empty() {
            return None;
        }
        let policy = AttemptPolicy {
            window: TOTAL_WINDOW,
            ..self.policy(u64::MAX, u64::MAX)
        };
        self.reserve(total_key(kind), policy).await
    }

    /// Returns whether an attempt must be rejected because it begins a flood together with others.
    /// If it is not the first of its address and network, it would not have been admitted in one.
    fn exceeds_total(&self, attempt: &mut Attempt, is_flood: bool) -> bool {
        let total = attempt
            .total
            .as_ref()
            .map_or(0, |it| it.reservation.reservation.count);
        if is_flood || total <= self.limits.total_per_minute {
            return false;
        }
        for scope in &mut attempt.client_scopes {
            let free = scope.policy.free.min(1);
            scope.policy = self.policy(free, free);
        }
        attempt
            .client_scopes
            .iter()
            .any(|scope| scope.reservation.reservation.count > 1)
    }

    async fn reserve(&self, key: String, policy: AttemptPolicy) -> Option<ReservedScope> {
        let reservation = self.counters.reserve(&key, &policy).await?;
        Some(ReservedScope {
            key,
            policy,
            reservation,
        })
    }

    /// Returns whether one more attempt exceeds the limit in total.
    async fn is_flood(&self, kind: AttemptKind) -> bool {
        let total = self.counters.attempt_count(&total_key(kind)).await;
        total >= self.limits.total_per_minute
    }

    fn policy(&self, free: u64, delayed_from: u64) -> AttemptPolicy {
        AttemptPolicy {
            free,
            delayed_from,
            window: self.limits.window,
            delays: ATTEMPT_DELAYS,
        }
    }
}

// === impl Attempt ===

impl Attempt {
    /// Ends the attempt without counting it for its address and network.
    pub(crate) async fn settle(mut self) {
        self.finish(AttemptOutcome::Released, None).await;
    }

    /// Records the outcome for address and network, and for `account` if given.
    async fn finish(&mut self, outcome: AttemptOutcome, account: Option<ReservedScope>) {
        if let Some(recording) = self.spawn_recording(outcome, account) {
            let _ = recording.await;
        }
    }

    /// Records the outcome once, in a task that outlives the request. In total, a failure has been
    /// counted on admission.
    fn spawn_recording(
        &mut self,
        outcome: AttemptOutcome,
        account: Option<ReservedScope>,
    ) -> Option<JoinHandle<()>> {
        let mut scopes = std::mem::take(&mut self.client_scopes);
        scopes.extend(account);
        let total = self.total.take();
        scopes.extend(total.filter(|_| outcome == AttemptOutcome::Released));
        if scopes.is_empty() {
            return None;
        }
        let counters = self.limiter.counters.clone();
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move {
            join_all(scopes.iter().map(|scope| {
                counters.settle(&scope.key, &scope.policy, &scope.reservation, outcome)
            }))
            .await;
        }))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        drop(self.spawn_recording(AttemptOutcome::Failed, None));
    }
}

fn total_key(kind: AttemptKind) -> String {
    format!("{COUNTER_PREFIX}:{}:all", kind.name())
}

fn canonical_address(client: &ClientContext) -> Option<IpAddr> {
    client.address.map(|address| address.to_canonical())
}

/// Returns the digest under which an account is counted. Case does not matter; the cache never
/// contains the address itself.
fn account_digest(account: &str) -> String {
    hex(&Sha256::digest(account.to_ascii_lowercase())[..16])
}

pub(crate) fn network(address: IpAddr) -> String {
    IpNetwork::of(address, 24, 64).to_string()
}

#[cfg(test)]
mod tests;
