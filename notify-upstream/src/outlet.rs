//! The providers of each channel, and which one carries the next message.

use std::time::Duration;

use tokio::sync::Semaphore;

use crate::deliver::Sent;
use crate::notification::Channel;
use crate::provider::{Codes, Message, Provider, Refusal, Taken};

mod breaker;

pub use breaker::Breaker;

/// The providers of each channel.
#[derive(Debug)]
pub struct Outlets {
    channels: [Vec<Outlet>; 3],
    codes: Codes,
}

/// One provider with what guards it.
#[derive(Debug)]
pub struct Outlet {
    /// Its name in the configuration, in events and in metrics.
    pub name: String,
    /// The provider.
    pub provider: Provider,
    /// Its share among the providers of the channel.
    pub weight: u32,
    /// Calls at once at most.
    pub concurrency: Semaphore,
    /// Whether it works.
    pub breaker: Breaker,
}

/// Deadline of one call, above every deadline within it.
const CALL: Duration = Duration::from_secs(120);

// === impl Outlets ===

impl Outlets {
    /// By [`Channel::index`].
    #[must_use]
    pub fn new(channels: [Vec<Outlet>; 3], codes: Codes) -> Self {
        Self { channels, codes }
    }

    /// Sends through one of the channel's providers: by weight, another one with every attempt, none that is known to
    /// fail while another works.
    ///
    /// # Errors
    /// The name of the provider (empty if none was called) and what it said.
    pub async fn send(
        &self,
        channel: Channel,
        message: &Message<'_>,
        attempt: i32,
    ) -> Result<Sent, (String, Refusal)> {
        let outlets = &self.channels[channel.index()];
        let Some(outlet) = choose(outlets, message.id.0.as_u128(), attempt) else {
            let refusal = Refusal {
                class: crate::retry::Class::Configuration,
                code: "no_provider".to_owned(),
                ..Refusal::unfit()
            };
            return Err((String::new(), refusal));
        };
        match outlet.call(message, &self.codes).await {
            Ok(taken) => Ok(Sent { provider: outlet.name.clone(), detail: taken.detail }),
            Err(refusal) => Err((outlet.name.clone(), refusal)),
        }
    }

    /// Whether a channel has providers and none of them works.
    #[must_use]
    pub fn is_in_trouble(&self, channel: Channel) -> bool {
        let outlets = &self.channels[channel.index()];
        !outlets.is_empty() && outlets.iter().all(|outlet| outlet.breaker.is_open())
    }
}

impl Outlet {
    async fn call(&self, message: &Message<'_>, codes: &Codes) -> Result<Taken, Refusal> {
        let _slot = self.concurrency.acquire().await;
        let outcome = match tokio::time::timeout(CALL, self.provider.send(message)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(codes.judge("*", "timeout")),
        };
        self.breaker.note(outcome.as_ref().err().map(|refusal| refusal.class));
        outcome
    }
}

/// By weight: `seed` spreads notifications over the providers; each further attempt goes one provider on. Those whose
/// breaker is open are passed over while there is another.
fn choose(outlets: &[Outlet], seed: u128, attempt: i32) -> Option<&Outlet> {
    let works: Vec<&Outlet> = outlets.iter().filter(|outlet| outlet.breaker.lets_through()).collect();
    let candidates = if works.is_empty() { outlets.iter().collect() } else { works };
    let total: u128 = candidates.iter().map(|outlet| u128::from(outlet.weight.max(1))).sum();
    let mut point = seed % total.max(1);
    let first = candidates.iter().position(|outlet| {
        let weight = u128::from(outlet.weight.max(1));
        let hit = point < weight;
        point = point.saturating_sub(weight);
        hit
    })?;
    let further = usize::try_from(attempt - 1).unwrap_or(0);
    candidates.get((first + further) % candidates.len()).copied()
}
