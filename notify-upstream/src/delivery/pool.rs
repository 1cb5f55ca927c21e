//! The providers of each channel, and which one carries the next message.

use std::sync::Arc;
use std::time::Duration;

use url::{Host, Url};

use crate::address::Address;
use crate::delivery::attempt::Sent;
use crate::delivery::provider::{Codes, Message, Provider, Refusal, Sight, Taken};
use crate::delivery::retry::Class;
use crate::notification::{Channel, Priority};

mod build;
mod circuit_breaker;
mod priority_limiter;
mod rate;
mod share;

pub(crate) use build::{OutletConfig, ProviderConfig};
pub(crate) use circuit_breaker::{Breaker, CallOutcome, Change, Source, Standing};
pub(crate) use priority_limiter::{Slot, Turnstile};
pub(crate) use rate::Rate;
pub(crate) use share::{Share, Shares};

/// The providers of each channel.
#[derive(Debug)]
pub(crate) struct Outlets {
    channels: [Vec<Outlet>; 3],
    codes: Codes,
}

/// One provider with what guards it.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// Its name in the configuration, in events and in metrics.
    pub(crate) name: String,
    /// The provider.
    pub(crate) provider: Provider,
    /// Its share among the providers of the channel.
    pub(crate) weight: u32,
    /// Calls at once and a second at most.
    pub(crate) turnstile: Turnstile,
    /// Calls in hand of one caller or one push service at most.
    pub(crate) shares: Arc<Shares>,
    /// Whether it works.
    pub(crate) breaker: Breaker,
}

/// A provider that was chosen for a message, and the right to call it.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    outlet: &'a Outlet,
    codes: &'a Codes,
    /// It goes to see whether the provider works again.
    is_probe: bool,
    source: Source,
    _share: Share,
    _slot: Slot,
}

/// Why there is nobody to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPass {
    /// The channel has no provider for such an address.
    Refused(Refusal),
    /// All of those are known to fail, and one is asked again after so long; or the caller or the
    /// push service has as many slow calls in hand as it may.
    LeftAlone(Duration),
}

/// How long one call takes at most, whatever the provider: each has deadlines of its own that end
/// before. A stop waits for as long, see [`LONGEST_STOP`](crate::LONGEST_STOP).
pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(90);

// === impl Outlets ===

impl Outlets {
    /// By [`Channel::index`].
    #[must_use]
    pub(crate) fn new(channels: [Vec<Outlet>; 3], codes: Codes) -> Self {
        Self { channels, codes }
    }

    /// Waits for a turn at one of the channel's providers: by weight, another one with every
    /// attempt, none that is known to fail. The most urgent of those that wait for one comes first.
    ///
    /// # Errors
    /// The channel has no provider for such an address, or all of them are known to fail.
    pub(crate) async fn pass(
        &self,
        channel: Channel,
        message: &Message<'_>,
        attempt: i32,
        (caller, priority): (&str, Priority),
    ) -> Result<Pass<'_>, NoPass> {
        let (outlet, is_probe) =
            choose(&self.channels[channel.index()], message, (attempt, caller))?;
        let share = outlet
            .shares
            .enter(&outlet.provider, message.to, caller, priority)
            .await;
        let Some(share) = share else {
            if is_probe {
                outlet.breaker.return_probe();
            }
            return Err(NoPass::LeftAlone(Duration::ZERO));
        };
        let slot = outlet.turnstile.pass(priority).await;
        let source = Source {
            caller: caller.to_owned(),
            domain: domain_of(message.to),
        };
        Ok(Pass {
            outlet,
            codes: &self.codes,
            is_probe,
            source,
            _share: share,
            _slot: slot,
        })
    }

    /// Asks the channel's providers, by our id, for a message that may have been handed over.
    ///
    /// # Errors
    /// One that could tell gives no answer now; its name and what it said.
    pub(crate) async fn look(
        &self,
        channel: Channel,
        message: &Message<'_>,
    ) -> Result<Option<Sent>, (String, Refusal)> {
        for outlet in self.channels[channel.index()]
            .iter()
            .filter(|outlet| outlet.provider.carries(message.to))
        {
            match tokio::time::timeout(LONGEST_CALL, outlet.provider.look(message)).await {
                Ok(Ok(Sight::There(taken))) => return Ok(Some(outlet.sent(message, taken))),
                Ok(Ok(Sight::NotThere | Sight::Blind)) => {}
                Ok(Err(refusal)) => return Err((outlet.name.clone(), refusal)),
                Err(_) => return Err((outlet.name.clone(), self.codes.judge("*", "timeout"))),
            }
        }
        Ok(None)
    }

    /// Whether our word for a reason means that nobody knows whether the provider took it.
    #[must_use]
    pub(crate) fn leaves_doubt(&self, code: &str) -> bool {
        self.codes.leaves_doubt(code)
    }

    /// The best that is known of a channel's providers.
    #[must_use]
    pub(crate) fn standing(&self, channel: Channel) -> Standing {
        best(&self.channels[channel.index()])
    }
}

impl Pass<'_> {
    /// Whether the provider was found to fail every call while this one waited for its turn.
    #[must_use]
    pub(crate) fn is_vain(&self) -> bool {
        !self.is_probe && self.outlet.breaker.standing() != Standing::Closed
    }

    /// Sends.
    ///
    /// # Errors
    /// The name of the provider and what it said.
    pub(crate) async fn send(self, message: &Message<'_>) -> Result<Sent, (String, Refusal)> {
        let outcome =
            match tokio::time::timeout(LONGEST_CALL, self.outlet.provider.send(message)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(self.codes.judge("*", "timeout")),
            };
        self.record(outcome.as_ref().err());
        match outcome {
            Ok(taken) => Ok(self.outlet.sent(message, taken)),
            Err(refusal) => Err((self.outlet.name.clone(), refusal)),
        }
    }

    fn record(&self, refusal: Option<&Refusal>) {
        let breaker = &self.outlet.breaker;
        match CallOutcome::of(refusal) {
            Some(outcome) => {
                if let Some(change) = breaker.record(outcome, &self.source) {
                    self.outlet.log(change, refusal);
                }
            }
            None if self.is_probe => breaker.return_probe(),
            None => {}
        }
    }
}

impl Outlet {
    fn sent(&self, message: &Message<'_>, taken: Taken) -> Sent {
        Sent {
            provider: self.name.clone(),
            detail: taken.detail,
            address: Some(message.to.hash()),
        }
    }

    fn log(&self, change: Change, refusal: Option<&Refusal>) {
        let provider = &*self.name;
        let code = refusal.map_or("", |refusal| &refusal.code);
        let detail = refusal
            .and_then(|refusal| refusal.detail.as_deref())
            .unwrap_or_default();
        match change {
            Change::FirstFailure => tracing::warn!(provider, code, detail, "provider call failed"),
            Change::Opened(wait) => tracing::warn!(
                provider,
                code,
                detail,
                next_probe_seconds = wait.as_secs(),
                "circuit breaker open: no calls to the provider until a probe succeeds"
            ),
            Change::Closed => tracing::info!(
                provider,
                "circuit breaker closed: the provider answers again"
            ),
        }
    }
}

/// What two recipients share that are refused together: the last two labels of a domain or of a
/// push service's host, so that subdomains of one owner count once; else the whole number or token.
#[must_use]
pub(crate) fn domain_of(address: &Address) -> String {
    let labels = |domain: &str| {
        let start = domain
            .rmatch_indices('.')
            .nth(1)
            .map_or(0, |(at, _)| at + 1);
        domain[start..].to_ascii_lowercase()
    };
    match address {
        Address::Email(email) => labels(email.parts().1),
        Address::Phone(_) | Address::DeviceToken(_) => address.key().to_owned(),
        Address::Subscription(subscription) => {
            let url = Url::parse(&subscription.endpoint).ok();
            match url.as_ref().and_then(Url::host) {
                Some(Host::Domain(domain)) => labels(domain.trim_end_matches('.')),
                Some(host) => host.to_string(),
                None => String::new(),
            }
        }
    }
}

/// What the one that stands best allows; what has no provider at all is no matter of waiting.
fn best<'a>(outlets: impl IntoIterator<Item = &'a Outlet>) -> Standing {
    let worse = |standing: &Standing| match standing {
        Standing::Closed => Duration::ZERO,
        Standing::Due => Duration::from_nanos(1),
        Standing::Open(left) => *left,
    };
    outlets
        .into_iter()
        .map(|outlet| outlet.breaker.standing())
        .min_by_key(worse)
        .unwrap_or(Standing::Closed)
}

/// Among those that carry such an address and may be called, by weight: the id's random bits spread
/// notifications over them; each further attempt goes one provider on. With it, whether the call is
/// a probe.
fn choose<'a>(
    outlets: &'a [Outlet],
    message: &Message<'_>,
    (attempt, caller): (i32, &str),
) -> Result<(&'a Outlet, bool), NoPass> {
    let carry: Vec<&Outlet> = outlets
        .iter()
        .filter(|outlet| outlet.provider.carries(message.to))
        .collect();
    if carry.is_empty() {
        let (class, code) = (Class::Configuration, "no_provider".to_owned());
        return Err(NoPass::Refused(Refusal {
            class,
            code,
            ..Refusal::unfit()
        }));
    }
    let may = |outlet: &&Outlet| !matches!(outlet.breaker.standing(), Standing::Open(_));
    let mut candidates: Vec<&Outlet> = carry.iter().copied().filter(may).collect();
    while let Some(at) = by_weight(&candidates, message, attempt) {
        let outlet = candidates.swap_remove(at);
        let is_probe = outlet.breaker.standing() != Standing::Closed;
        // Another may have taken the one call that was due, or it is another caller's turn.
        if outlet.breaker.lets_through(caller) {
            return Ok((outlet, is_probe));
        }
    }
    Err(NoPass::LeftAlone(match best(carry) {
        Standing::Open(left) => left,
        Standing::Closed | Standing::Due => Duration::ZERO,
    }))
}

fn by_weight(candidates: &[&Outlet], message: &Message<'_>, attempt: i32) -> Option<usize> {
    let seed = message.id.0.as_u128() & u128::from(u32::MAX);
    let total: u128 = candidates
        .iter()
        .map(|outlet| u128::from(outlet.weight.max(1)))
        .sum();
    let mut point = seed % total.max(1);
    let first = candidates.iter().position(|outlet| {
        let weight = u128::from(outlet.weight.max(1));
        let hit = point < weight;
        point = point.saturating_sub(weight);
        hit
    })?;
    Some((first + usize::try_from(attempt - 1).unwrap_or(0)) % candidates.len())
}

#[cfg(test)]
mod tests;
