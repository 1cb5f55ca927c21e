//! A limit of attempts to sign in, for each network (IPv4 /24, IPv6 /64).
//!
//! Each attempt is counted before its credentials are checked, so that concurrent guesses do not
//! pass the limit together, and refunded if they are not rejected.
//!
//! Input: the address of a client. Output: an [`Attempt`], or 429. Depends on nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::log_limit::LogLimit;
use postern_core::network::IpNetwork;
use postern_core::{Clock, Code, Problem};

/// Maximum number of rejected attempts of one network within [`WINDOW`].
const MAX_ATTEMPTS: u32 = 20;
/// Time for which attempts count, from the first.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of networks with a count of their own. All further ones share one.
const MAX_NETWORKS: usize = 10_000;
/// The network of clients without an address, and of those beyond [`MAX_NETWORKS`].
const SHARED_NETWORK: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Counts rejected attempts to sign in.
#[derive(Debug)]
pub(crate) struct AttemptLimiter {
    clock: Clock,
    /// By the first address of the network.
    networks: Mutex<HashMap<IpAddr, Window>>,
    log: LogLimit,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    began: Timestamp,
    attempts: u32,
}

/// A counted attempt.
#[derive(Debug)]
#[must_use = "an attempt is refunded when its credentials are not rejected"]
pub(crate) struct Attempt<'a> {
    limiter: &'a AttemptLimiter,
    network: IpAddr,
    began: Timestamp,
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            networks: Mutex::default(),
            log: LogLimit::new(),
        }
    }

    /// Counts an attempt of a client.
    ///
    /// # Errors
    /// 429 with `Retry-After` after 20 rejected attempts of the network within a minute.
    pub(crate) fn admit(&self, client: Option<IpAddr>) -> Result<Attempt<'_>, Problem> {
        let now = self.clock.now();
        let mut networks = self.networks.lock();
        if networks.len() >= MAX_NETWORKS {
            networks.retain(|_, window| now.since(window.began) < WINDOW);
        }
        let mut network = client.map_or(SHARED_NETWORK, |address| {
            IpNetwork::of(address, 24, 64).address()
        });
        if networks.len() >= MAX_NETWORKS && !networks.contains_key(&network) {
            network = SHARED_NETWORK;
        }
        let window = networks.entry(network).or_insert(Window {
            began: now,
            attempts: 0,
        });
        if now.since(window.began) >= WINDOW {
            (window.began, window.attempts) = (now, 0);
        }
        if window.attempts >= MAX_ATTEMPTS {
            let left = WINDOW.saturating_sub(now.since(window.began));
            if let Some(suppressed) = self.log.admit() {
                tracing::warn!(%network, suppressed, "sign-in attempts limited");
            }
            let seconds = u32::try_from(left.as_secs().saturating_add(1)).unwrap_or(1);
            return Err(Problem::new(Code::RateLimited)
                .detail("too many rejected attempts to sign in from this network")
                .retry_after(seconds));
        }
        window.attempts += 1;
        Ok(Attempt {
            limiter: self,
            network,
            began: window.began,
        })
    }
}

// === impl Attempt ===

impl Attempt<'_> {
    /// Refunds the attempt unless its result shows that the credentials were wrong.
    pub(crate) fn settle<T>(self, result: &Result<T, Problem>) {
        if result.as_ref().is_err_and(|it| is_guess(it.code())) {
            return;
        }
        let mut networks = self.limiter.networks.lock();
        if let Some(window) = networks.get_mut(&self.network)
            && window.began == self.began
        {
            window.attempts = window.attempts.saturating_sub(1);
        }
    }
}

/// Returns whether a rejection may be the answer to guessed credentials. A token that was valid
/// once, or a password whose second step is missing, was not guessed.
fn is_guess(code: Code) -> bool {
    let was_right = matches!(
        code,
        Code::TokenExpired | Code::TokenNotYetValid | Code::ChallengeRequired
    );
    code.status() == http::StatusCode::UNAUTHORIZED && !was_right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(code: Code) -> Result<(), Problem> {
        Err(code.into())
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn concurrent_attempts_do_not_pass_the_limit_together() {
        let limiter = AttemptLimiter::new(Clock::manual(Timestamp(0)));
        let client = address("2001:db8::1");
        let open: Vec<_> = (0..MAX_ATTEMPTS)
            .map(|_| limiter.admit(client).expect("below the limit"))
            .collect();
        assert!(limiter.admit(address("2001:db8::2")).is_err());
        for attempt in open {
            attempt.settle(&Ok(()));
        }
        limiter.admit(client).expect("refunded").settle(&Ok(()));
    }

    #[test]
    fn number_of_counted_networks_is_bounded() {
        let limiter = AttemptLimiter::new(Clock::manual(Timestamp(0)));
        let count = u32::try_from(MAX_NETWORKS).expect("small");
        for n in 0..=count {
            let network = IpAddr::from((0x0a00_0000 + (n << 8)).to_be_bytes());
            limiter
                .admit(Some(network))
                .expect("below the limit")
                .settle(&rejected(Code::InvalidCredentials));
        }
        assert_eq!(limiter.networks.lock().len(), MAX_NETWORKS + 1);
    }
}
