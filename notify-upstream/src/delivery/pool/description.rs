//! What operators see of a provider: its settings and its present state.

use postern_core::circuit_breaker::BreakerState;
use serde::Serialize;
use serde_json::{Value, json};

use super::{PooledProvider, ProviderPool};
use crate::delivery::provider::{OutgoingMessage, ProviderRefusal, SendResult, UNSUPPORTED};
use crate::notification::Channel;
use crate::store::ProviderPause;

/// The settings of a provider, without secrets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProviderDescription {
    /// Name in events and metrics: 1 to 32 of `a-z 0-9 - _`.
    pub(crate) name: String,
    #[serde(serialize_with = "channel_name")]
    pub(crate) channel: Channel,
    pub(crate) kind: &'static str,
    pub(crate) weight: u32,
    /// Maximum number of concurrent calls.
    pub(crate) concurrency: usize,
    /// Maximum number of calls per second over all replicas, evenly spaced; the highest priority
    /// goes first.
    pub(crate) rate: Option<u64>,
}

fn channel_name<S: serde::Serializer>(channel: &Channel, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(channel.as_str())
}

impl ProviderPool {
    pub(super) fn named(&self, name: &str) -> Option<&PooledProvider> {
        let all = Channel::ALL.map(|channel| self.channels.get(channel));
        all.into_iter().flatten().find(|pooled| pooled.name == name)
    }

    /// Sends a message through a provider, without its limits and circuit breaker. Returns `None` if
    /// there is no provider of this name.
    pub(crate) async fn send_directly(
        &self,
        name: &str,
        message: &OutgoingMessage<'_>,
    ) -> Option<SendResult> {
        let pooled = self.named(name)?;
        if !pooled.provider.supports(message.to) {
            return Some(Err(ProviderRefusal::not_sent(UNSUPPORTED)));
        }
        Some(pooled.call(message).await)
    }

    /// Pauses these providers, and ends the pauses of all others. Returns the channels of the
    /// providers whose pause has changed.
    pub(crate) fn apply_pauses(&self, pauses: &[ProviderPause]) -> Vec<Channel> {
        let mut changed = Vec::new();
        for channel in Channel::ALL {
            for pooled in self.channels.get(channel) {
                let pause = pauses.iter().find(|pause| pause.provider == pooled.name);
                if pooled.status.set_pause(pause.cloned()) {
                    changed.push(channel);
                }
            }
        }
        changed
    }

    pub(crate) fn pause(&self, name: &str) -> Option<ProviderPause> {
        self.named(name)?.status.pause()
    }

    /// Returns the state of a provider in this process, or `None` if there is no provider of this
    /// name.
    pub(crate) fn state(&self, name: &str) -> Option<Value> {
        let PooledProvider {
            breaker, status, ..
        } = self.named(name)?;
        let (breaker, next_probe_seconds) = match breaker.state() {
            BreakerState::Closed => ("closed", None),
            BreakerState::HalfOpen => ("half_open", None),
            BreakerState::Open(left) => ("open", Some(left.as_secs())),
        };
        Some(json!({
            "breaker": breaker,
            "nextProbeSeconds": next_probe_seconds,
            "paused": status.pause(),
            "isUp": status.is_up(),
            "calls": status.calls(),
            "lastReplies": status.last_replies(),
        }))
    }
}
