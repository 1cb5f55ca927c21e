//! Limits on guessing: by account, by address, by network (/24, or /64), and in all. All of them
//! are silent: the answer is the one for a wrong guess, whether the account exists or not, so that
//! nothing is learned. Where nothing is guessed (registering, beginning at a social provider),
//! address and network count alone, and the answer is 429.
//!
//! Beyond the free failures of a scope, one attempt is looked at after a wait that doubles with
//! each further failure, up to 15 minutes. When failures in all pass their limit, every address has
//! one free failure only. An attempt at which nobody could look, because the pool is away or asks
//! for fewer calls, is none of the account's. One whose client hangs up before the answer is a
//! failure of the account, the address and the network ([`Attempt`]).
//!
//! An honest user is not locked out by a stranger: who has completed a sign-in from a network
//! before ([`trusted`]) is counted there apart from everybody else, and refreshing a token asks
//! none of this. The machine's own addresses count as accounts only. Counts stand in the shared
//! cache; while it is away, each process counts for itself.

mod sign_ins;
mod trusted;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use futures_util::future::{join_all, join4};
use postern_common::cache::{Cache, CacheError};
use postern_common::{Clock, Secret};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub(crate) use self::sign_ins::Credential;
use crate::auth::Visitor;
use crate::random;
use crate::seal::hex;

/// How many failures each scope has free, and within which time they count.
#[derive(Clone, Copy, Debug)]
pub struct AbuseLimits {
    /// Of one account (an e-mail address, known or not; at a second factor, a user). Default 5.
    pub account: u64,
    /// Of one address. Default 30: an office shares one.
    pub address: u64,
    /// Of one network. Default 200.
    pub network: u64,
    /// In all, per minute. Default 2000.
    pub all: u64,
    /// How long a failure counts. Default 15 min.
    pub window: Duration,
    /// How often the right password of one account is accepted in ten minutes, from each trusted
    /// network and from all others together. Default 60.
    pub sign_ins: u64,
}

/// What is guessed at. The counts of different doors are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// A password.
    Password,
    /// A code that allows a new password.
    Reset,
    /// The sending of such codes.
    Forgot,
    /// A code that confirms the address of a registration.
    Confirm,
    /// A code of a second factor.
    Factor,
    /// A registration: nothing is guessed, and each one counts.
    Register,
    /// The way back from a social provider: nothing is guessed, and each one that fails counts.
    Social,
}

/// Counts failures and says whose attempt is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Abuse {
    shared: Cache,
    /// Counts while the shared one is away.
    local: Cache,
    clock: Clock,
    limits: AbuseLimits,
    /// Keys the digests of passwords that [`sign_ins`] holds in this process's memory.
    digest_key: Secret,
}

/// An admitted attempt. One that is dropped before its outcome is reported, as when its client
/// hangs up, counts as a failure of its address and network.
#[derive(Debug)]
#[must_use = "an attempt that is dropped counts as a failure"]
pub(crate) struct Attempt {
    abuse: Abuse,
    door: Door,
    /// The key under which the account's failures are counted; none where no account is named.
    account: Option<String>,
    /// The attempt is the one that is looked at after a wait, and has begun the next one.
    began_wait: bool,
    /// The keys of address and network, with what each has free; empty once the outcome is
    /// reported.
    places: Vec<(String, u64)>,
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);
const MINUTE: Duration = Duration::from_secs(60);
const PREFIX: &str = "postern:auth:abuse";
/// The label of a cache in this process's memory.
const MEMORY: &str = "memory:";

impl Default for AbuseLimits {
    fn default() -> Self {
        let window = Duration::from_secs(15 * 60);
        Self {
            account: 5,
            address: 30,
            network: 200,
            all: 2000,
            window,
            sign_ins: 60,
        }
    }
}

// === impl Door ===

impl Door {
    /// The name in keys and metric labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Reset => "reset",
            Self::Forgot => "forgot",
            Self::Confirm => "confirm",
            Self::Factor => "factor",
            Self::Register => "register",
            Self::Social => "social",
        }
    }
}

// === impl Abuse ===

impl Abuse {
    pub(crate) fn new(shared: Cache, clock: Clock, limits: AbuseLimits) -> Self {
        // Whoever fills the counters must not fill what sign-in and refresh need.
        let shared = if shared.label() == MEMORY {
            Cache::memory(clock.clone())
        } else {
            shared
        };
        let local = Cache::memory(clock.clone());
        Self {
            shared,
            local,
            clock,
            limits,
            digest_key: random::token().into(),
        }
    }

    /// `None` when an attempt must wait: the client reads what a wrong guess reads. The account's
    /// count goes up before the guess is looked at, so that guesses at the same time are no way
    /// around it.
    pub(crate) async fn admit(&self, door: Door, visitor: &Visitor, who: &str) -> Option<Attempt> {
        let (mut attempt, must_wait) = Box::pin(self.attempt(door, visitor, who)).await;
        if must_wait {
            attempt.settle();
            return None;
        }
        let Some(account) = &attempt.account else {
            return Some(attempt);
        };
        let tries = self.count(account, self.limits.window).await;
        if tries > self.limits.account {
            let wait = wait_after(tries - self.limits.account);
            // Of those who come at once when a wait ends, one is looked at.
            attempt.began_wait = self.set_if_absent(&wait_key(account), wait).await;
            if !attempt.began_wait {
                attempt.settle();
                return None;
            }
        }
        Some(attempt)
    }

    /// The same for somebody who names no account.
    pub(crate) async fn admit_stranger(&self, door: Door, visitor: &Visitor) -> Option<Attempt> {
        let places = self.places(door, visitor);
        let must_wait = self.is_any_held(&places).await;
        (!must_wait).then(|| self.attempt_of(door, None, places))
    }

    /// Nobody could look at the guess: whoever is refused for that is not held back for it when the
    /// pool is there again.
    pub(crate) async fn refund(&self, mut attempt: Attempt) {
        attempt.places.clear();
        let Some(account) = attempt.account.take() else {
            return;
        };
        if self.shared.decrement(&account).await.is_err() {
            let _ = self.local.decrement(&account).await;
        }
        if attempt.began_wait {
            self.delete(&wait_key(&account)).await;
        }
    }

    /// The guess was wrong. Counted to the end, even if the client hangs up meanwhile.
    pub(crate) async fn failed(&self, attempt: &mut Attempt) {
        if let Some(counting) = attempt.count_failure() {
            let _ = counting.await;
        }
    }

    async fn count_failure(&self, door: Door, places: &[(String, u64)]) {
        let all = format!("{PREFIX}:{}:all", door.name());
        let is_flood = self.count(&all, MINUTE).await > self.limits.all;
        for (key, free) in places {
            let free = if is_flood { *free.min(&1) } else { *free };
            let failures = self.count(key, self.limits.window).await;
            if failures >= free {
                self.set_if_absent(&wait_key(key), wait_after(failures - free))
                    .await;
            }
        }
    }

    /// The guess was right: the account's failures are forgiven. Those of the address are not,
    /// because an attacker has an account, too.
    pub(crate) async fn succeeded(&self, mut attempt: Attempt) {
        attempt.places.clear();
        let keys = attempt
            .account
            .take()
            .into_iter()
            .flat_map(|account| [wait_key(&account), account]);
        join_all(keys.map(async |key| self.delete(&key).await)).await;
    }

    /// Whom this attempt counts against, and whether it must wait. What that may depend on is asked
    /// for at once: one round trip.
    async fn attempt(&self, door: Door, visitor: &Visitor, who: &str) -> (Attempt, bool) {
        let account = format!("{PREFIX}:{}:{}", door.name(), account(who));
        let Some(address) = address(visitor) else {
            let must_wait = self.is_held(&account).await;
            return (self.attempt_of(door, Some(account), Vec::new()), must_wait);
        };
        let network = network(address);
        let apart = format!("{account}:{network}");
        let places = self.places(door, visitor);
        // Whoever knows the password and not the code may be anybody, from wherever they signed in.
        let asks_trust = !matches!(door, Door::Confirm | Door::Factor);
        let (is_trusted, apart_waits, account_waits, place_waits) = join4(
            async { asks_trust && self.trusts(who, &network).await },
            self.is_held(&apart),
            self.is_held(&account),
            self.is_any_held(&places),
        )
        .await;
        if is_trusted {
            return (self.attempt_of(door, Some(apart), Vec::new()), apart_waits);
        }
        (
            self.attempt_of(door, Some(account), places),
            account_waits || place_waits,
        )
    }

    fn attempt_of(
        &self,
        door: Door,
        account: Option<String>,
        places: Vec<(String, u64)>,
    ) -> Attempt {
        Attempt {
            abuse: self.clone(),
            door,
            account,
            began_wait: false,
            places,
        }
    }

    /// The keys of the visitor's address and network, with what each has free; none for this
    /// machine's own.
    fn places(&self, door: Door, visitor: &Visitor) -> Vec<(String, u64)> {
        let Some(address) = address(visitor).filter(|address| !address.is_loopback()) else {
            return Vec::new();
        };
        let key = |place: &str| format!("{PREFIX}:{}:{place}", door.name());
        vec![
            (key(&address.to_string()), self.limits.address),
            (key(&network(address)), self.limits.network),
        ]
    }

    async fn is_any_held(&self, places: &[(String, u64)]) -> bool {
        join_all(places.iter().map(|(key, _)| self.is_held(key)))
            .await
            .contains(&true)
    }

    /// Counts one more within the window that the first one began, and returns the count.
    pub(crate) async fn count(&self, key: &str, window: Duration) -> u64 {
        match self.shared.increment(key, window).await {
            Ok(count) => count,
            // Where nothing can be counted, nothing is free.
            Err(CacheError::Unavailable) => {
                self.local.increment(key, window).await.unwrap_or(u64::MAX)
            }
        }
    }

    async fn delete(&self, key: &str) {
        if self.shared.delete(key).await.is_err() {
            let _ = self.local.delete(key).await;
        }
    }

    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.shared.get(key).await {
            Ok(found) => found,
            Err(CacheError::Unavailable) => self.local.get(key).await.ok().flatten(),
        }
    }

    async fn is_held(&self, key: &str) -> bool {
        self.get(&wait_key(key)).await.is_some()
    }

    async fn set_if_absent(&self, key: &str, ttl: Duration) -> bool {
        match self.shared.set_if_absent(key, b"1", ttl).await {
            Ok(won) => won,
            Err(CacheError::Unavailable) => self
                .local
                .set_if_absent(key, b"1", ttl)
                .await
                .unwrap_or(false),
        }
    }
}

// === impl Attempt ===

impl Attempt {
    /// Ends the attempt without counting it for its address and network.
    pub(crate) fn settle(mut self) {
        self.places.clear();
    }

    /// Counts the failure once, in a task that outlives the request.
    fn count_failure(&mut self) -> Option<JoinHandle<()>> {
        let places = std::mem::take(&mut self.places);
        if places.is_empty() {
            return None;
        }
        let (abuse, door) = (self.abuse.clone(), self.door);
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move { abuse.count_failure(door, &places).await }))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        drop(self.count_failure());
    }
}

/// One second, doubled for each failure beyond the free ones.
fn wait_after(beyond: u64) -> Duration {
    let doublings = u32::try_from(beyond.saturating_sub(1).min(20)).unwrap_or(20);
    FIRST_WAIT
        .saturating_mul(2_u32.saturating_pow(doublings))
        .min(LONGEST_WAIT)
}

fn wait_key(key: &str) -> String {
    format!("{key}:wait")
}

fn address(visitor: &Visitor) -> Option<IpAddr> {
    visitor.address.map(|address| address.to_canonical())
}

/// An account by its address or user name. Addresses differ in case only for people; the cache
/// never sees one.
fn account(who: &str) -> String {
    hex(&Sha256::digest(who.to_ascii_lowercase())[..16])
}

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
