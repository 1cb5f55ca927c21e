//! Limits on guessing: by account, by address, by network (/24, or /64), and in all.
//!
//! A failure costs its account, address and network a wait that doubles with each further one, up to 15 minutes.
//! For an account the wait is silent: the answer is the one for a wrong password, whether the account exists or
//! not, so that nothing is learned and nobody is told when to come back. For an address or a network it is 429
//! with the time. When failures in all pass their limit, whoever has failed before waits from the first failure
//! on; whoever has not is let through.
//!
//! Refreshing a token asks none of this: who holds a live refresh token is not locked out by a stranger.
//! Counts stand in the shared cache; while it is away, each process counts for itself.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use postern_common::cache::{Cache, CacheError};
use postern_common::clock::Timestamp;
use postern_common::{Clock, Code, Problem};
use sha2::{Digest, Sha256};

use crate::auth::Visitor;
use crate::email::Email;
use crate::seal::hex;

/// How many failures each scope has free, and within which time they count.
#[derive(Clone, Copy, Debug)]
pub struct AbuseLimits {
    /// Of one account (an e-mail address, known or not). Default 5.
    pub account: u64,
    /// Of one address. Default 30: an office shares one.
    pub address: u64,
    /// Of one network. Default 200.
    pub network: u64,
    /// In all, per minute. Default 2000.
    pub all: u64,
    /// How long a failure counts. Default 15 min.
    pub window: Duration,
}

/// Counts failures and says who must wait.
#[derive(Clone, Debug)]
pub(crate) struct Abuse {
    shared: Cache,
    /// Counts while the shared one is away.
    local: Cache,
    clock: Clock,
    limits: AbuseLimits,
}

/// Why an attempt is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The account has to wait, and nobody is told.
    Account,
    /// The address or its network has to wait for so many seconds.
    Address(u32),
}

/// Whom a failure counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Account,
    Address,
    Network,
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);
const MINUTE: Duration = Duration::from_secs(60);
const ALL: &str = "postern:auth:abuse:failures:all";

impl Default for AbuseLimits {
    fn default() -> Self {
        Self { account: 5, address: 30, network: 200, all: 2000, window: Duration::from_secs(15 * 60) }
    }
}

// === impl Hold ===

impl Hold {
    /// What the client reads, where `silent` is the answer to a wrong guess.
    pub(crate) fn problem(self, silent: Code) -> Problem {
        match self {
            Self::Account => silent.into(),
            Self::Address(seconds) => Problem::new(Code::RateLimited).retry_after(seconds),
        }
    }
}

// === impl Abuse ===

impl Abuse {
    pub(crate) fn new(shared: Cache, clock: Clock, limits: AbuseLimits) -> Self {
        Self { shared, local: Cache::memory(clock.clone()), clock, limits }
    }

    /// Whether an attempt may be looked at. `what` keeps the counts of different doors apart.
    pub(crate) async fn admit(&self, what: &str, visitor: &Visitor, email: &Email) -> Result<(), Hold> {
        for (scope, whom) in scopes(visitor, email) {
            if let Some(wait) = self.wait(&key("wait", what, scope, &whom)).await {
                return Err(match scope {
                    Scope::Account => Hold::Account,
                    Scope::Address | Scope::Network => Hold::Address(wait),
                });
            }
        }
        Ok(())
    }

    /// An attempt failed.
    pub(crate) async fn failed(&self, what: &str, visitor: &Visitor, email: &Email) {
        let is_flood = self.count(ALL, MINUTE).await > self.limits.all;
        for (scope, whom) in scopes(visitor, email) {
            let free = match scope {
                Scope::Account => self.limits.account,
                Scope::Address => self.limits.address,
                Scope::Network => self.limits.network,
            };
            let free = if is_flood { free.min(1) } else { free };
            let failures = self.count(&key("failures", what, scope, &whom), self.limits.window).await;
            if failures >= free {
                self.hold(&key("wait", what, scope, &whom), wait_after(failures - free)).await;
            }
        }
    }

    /// An attempt succeeded: the account's failures are forgiven, those of the address are not, because an
    /// attacker has an account, too.
    pub(crate) async fn succeeded(&self, what: &str, email: &Email) {
        let key = key("failures", what, Scope::Account, &account(email));
        if self.shared.delete(&key).await.is_err() {
            let _ = self.local.delete(&key).await;
        }
    }

    async fn count(&self, key: &str, window: Duration) -> u64 {
        match self.shared.increment(key, window).await {
            Ok(count) => count,
            Err(CacheError::Unavailable) => self.local.increment(key, window).await.unwrap_or(0),
        }
    }

    async fn hold(&self, key: &str, wait: Duration) {
        let until = self.clock.now().plus(wait).0.to_string();
        if self.shared.set(key, until.as_bytes(), wait).await.is_err() {
            let _ = self.local.set(key, until.as_bytes(), wait).await;
        }
    }

    /// The seconds that are left to wait.
    async fn wait(&self, key: &str) -> Option<u32> {
        let found = match self.shared.get(key).await {
            Ok(found) => found,
            Err(CacheError::Unavailable) => self.local.get(key).await.ok()?,
        };
        let until = Timestamp(std::str::from_utf8(&found?).ok()?.parse().ok()?);
        let left = until.since(self.clock.now());
        (!left.is_zero()).then(|| u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX))
    }
}

/// One second, doubled for each failure beyond the free ones.
fn wait_after(beyond: u64) -> Duration {
    let doublings = u32::try_from(beyond.min(20)).unwrap_or(20);
    FIRST_WAIT.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_WAIT)
}

fn scopes(visitor: &Visitor, email: &Email) -> Vec<(Scope, String)> {
    let mut scopes = vec![(Scope::Account, account(email))];
    if let Some(address) = visitor.address {
        scopes.push((Scope::Address, address.to_string()));
        scopes.push((Scope::Network, network(address)));
    }
    scopes
}

/// Addresses differ in case only for people; the cache never sees one.
fn account(email: &Email) -> String {
    hex(&Sha256::digest(email.as_str().to_ascii_lowercase())[..16])
}

fn network(address: IpAddr) -> String {
    match address.to_canonical() {
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

fn key(kind: &str, what: &str, scope: Scope, whom: &str) -> String {
    let scope = match scope {
        Scope::Account => "account",
        Scope::Address => "address",
        Scope::Network => "network",
    };
    format!("postern:auth:abuse:{kind}:{what}:{scope}:{whom}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Door {
        abuse: Abuse,
        clock: Clock,
    }

    fn door(limits: AbuseLimits) -> Door {
        let clock = Clock::manual(Timestamp(1_000_000));
        Door { abuse: Abuse::new(Cache::memory(clock.clone()), clock.clone(), limits), clock }
    }

    fn from(address: &str) -> Visitor {
        Visitor { request_id: "t".into(), address: address.parse().ok() }
    }

    fn email(text: &str) -> Email {
        Email::parse(text).expect("an address")
    }

    #[tokio::test]
    async fn an_account_waits_twice_as_long_each_time() {
        let Door { abuse, clock } = door(AbuseLimits::default());
        let ada = email("ada@example.com");
        // Each guess comes from another network, so that the account alone counts.
        for guess in 0..5 {
            let visitor = from(&format!("10.0.{guess}.1"));
            assert_eq!(abuse.admit("login", &visitor, &ada).await, Ok(()));
            abuse.failed("login", &visitor, &ada).await;
        }
        for seconds in [1, 2, 4, 8] {
            assert_eq!(abuse.admit("login", &from("10.9.9.9"), &ada).await, Err(Hold::Account));
            clock.advance(Duration::from_secs(seconds));
            assert_eq!(abuse.admit("login", &from("10.9.9.9"), &ada).await, Ok(()));
            abuse.failed("login", &from("10.9.9.9"), &ada).await;
        }
        assert_eq!(abuse.admit("login", &from("10.9.9.9"), &email("ADA@example.com")).await, Err(Hold::Account));
        assert_eq!(abuse.admit("login", &from("10.9.9.9"), &email("bob@example.com")).await, Ok(()));
        assert_eq!(wait_after(30), LONGEST_WAIT);
    }

    #[tokio::test]
    async fn an_address_is_told_how_long_and_its_network_follows() {
        let limits = AbuseLimits { address: 2, network: 3, ..AbuseLimits::default() };
        let Door { abuse, .. } = door(limits);
        for guess in 0..2 {
            abuse.failed("login", &from("10.0.0.1"), &email(&format!("u{guess}@example.com"))).await;
        }
        let fresh = email("fresh@example.com");
        assert_eq!(abuse.admit("login", &from("10.0.0.1"), &fresh).await, Err(Hold::Address(1)));
        assert_eq!(abuse.admit("login", &from("10.0.0.2"), &fresh).await, Ok(()));
        abuse.failed("login", &from("10.0.0.2"), &email("u3@example.com")).await;
        assert_eq!(abuse.admit("login", &from("10.0.0.3"), &fresh).await, Err(Hold::Address(1)));
        assert_eq!(abuse.admit("login", &from("10.0.1.3"), &fresh).await, Ok(()));
    }

    #[tokio::test]
    async fn a_flood_leaves_those_alone_who_never_failed() {
        let Door { abuse, .. } = door(AbuseLimits { all: 3, ..AbuseLimits::default() });
        for guess in 0..4 {
            abuse.failed("login", &from(&format!("10.{guess}.0.1")), &email(&format!("u{guess}@example.com"))).await;
        }
        assert!(abuse.admit("login", &from("10.3.0.1"), &email("new@example.com")).await.is_err());
        assert_eq!(abuse.admit("login", &from("10.77.0.1"), &email("new@example.com")).await, Ok(()));
    }

    #[tokio::test]
    async fn success_forgives_the_account_and_not_the_address() {
        let Door { abuse, clock } = door(AbuseLimits { account: 2, address: 3, ..AbuseLimits::default() });
        let (ada, visitor) = (email("ada@example.com"), from("10.0.0.1"));
        abuse.failed("login", &visitor, &ada).await;
        abuse.succeeded("login", &ada).await;
        abuse.failed("login", &visitor, &ada).await;
        assert_eq!(abuse.admit("login", &visitor, &ada).await, Ok(()));
        abuse.failed("login", &visitor, &email("bob@example.com")).await;
        assert_eq!(abuse.admit("login", &visitor, &ada).await, Err(Hold::Address(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(abuse.admit("login", &visitor, &ada).await, Ok(()));
    }

    #[tokio::test]
    async fn without_the_shared_cache_each_process_counts_for_itself() {
        let clock = Clock::manual(Timestamp(1_000_000));
        // Nothing listens there.
        let away = Cache::open("redis://127.0.0.1:1").await.expect("a URL");
        let abuse = Abuse::new(away, clock, AbuseLimits { account: 1, ..AbuseLimits::default() });
        let (ada, visitor) = (email("ada@example.com"), from("10.0.0.1"));
        abuse.failed("login", &visitor, &ada).await;
        assert_eq!(abuse.admit("login", &visitor, &ada).await, Err(Hold::Account));
    }

    #[test]
    fn networks_are_24_and_64_bits() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("192.0.2.77"), "192.0.2.0/24");
        assert_eq!(of("::ffff:192.0.2.77"), "192.0.2.0/24");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    }
}
