//! The configured providers of each channel: choice by weight, circuit breakers, rate limits and
//! shares.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postern_core::circuit_breaker::BreakerState;
use postern_core::weighted::weighted_choice;

use crate::delivery::outcome::{AttemptFailure, AttemptOutcome};
use crate::delivery::provider::{OutgoingMessage, Provider, ProviderRefusal, SendResult, classify};
use crate::delivery::retry::FailureClass;
use crate::notification::{Channel, NotificationId, PerChannel, Priority};
use crate::principal::Principal;

mod build;
mod circuit_breaker;
mod description;
mod priority_limiter;
mod rate;
mod share;
mod status;

pub(crate) use build::{ProviderConfig, ProviderSettings};
pub(crate) use circuit_breaker::{BreakerTransition, CallOutcome, ProviderCircuitBreaker};
pub(crate) use description::ProviderDescription;
pub(crate) use priority_limiter::{CallSlot, PriorityLimiter};
pub(crate) use rate::ProviderRate;
pub(crate) use share::{ShareGuard, ShareLimiter};
pub(crate) use status::ProviderStatus;

/// The providers of each channel, with the guards of each.
pub(crate) struct ProviderPool {
    pub(crate) channels: PerChannel<Vec<PooledProvider>>,
}

/// A provider with its weight, limits and circuit breaker.
pub(crate) struct PooledProvider {
    /// The name in configuration, events and metrics.
    pub(crate) name: String,
    pub(crate) provider: Provider,
    pub(crate) weight: u32,
    /// Limits concurrent calls and calls per second, the most urgent first.
    pub(crate) limiter: PriorityLimiter,
    /// Limits the concurrent calls of one caller and of one push service.
    pub(crate) shares: Arc<ShareLimiter>,
    pub(crate) breaker: ProviderCircuitBreaker,
    /// Log events, metrics and readiness.
    pub(crate) status: ProviderStatus,
}

/// A request for the permit to call a provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallRequest<'a> {
    pub(crate) channel: Channel,
    pub(crate) message: &'a OutgoingMessage<'a>,
    /// The number of the attempt, from 1.
    pub(crate) attempt: i32,
    /// The creator of the notification.
    pub(crate) caller: &'a str,
    pub(crate) priority: Priority,
}

/// The permit to make one call to a chosen provider.
pub(crate) struct CallPermit<'a> {
    pooled: &'a PooledProvider,
    /// Present if the call is the probe of a half-open circuit breaker.
    probe: Option<Probe<'a>>,
    _share: ShareGuard,
    _slot: CallSlot,
}

/// The probe of a half-open circuit breaker. If it is dropped without an outcome, the next call is the
/// probe.
struct Probe<'a> {
    breaker: &'a ProviderCircuitBreaker,
    has_outcome: bool,
}

/// Maximum duration of one call to any provider; the deadlines of the providers are shorter.
/// Shutdown waits for as long, see [`MAX_SHUTDOWN_DURATION`](crate::MAX_SHUTDOWN_DURATION).
pub(crate) const MAX_CALL_DURATION: Duration = Duration::from_secs(90);

/// The time after which a notification whose providers are all paused is checked again.
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

// === impl ProviderPool ===

impl ProviderPool {
    /// Chooses a provider whose circuit breaker allows a call, by weight and a different one for
    /// each attempt, and waits for its limits. Waiting calls proceed in order of priority.
    ///
    /// # Errors
    /// The channel has no provider for this kind of address, or the circuit breakers of all
    /// suitable providers are open.
    pub(crate) async fn acquire(
        &self,
        request: &CallRequest<'_>,
    ) -> Result<CallPermit<'_>, AttemptOutcome> {
        let CallRequest {
            message,
            caller,
            priority,
            ..
        } = *request;
        let (pooled, is_probe) = choose(self.channels.get(request.channel), request)?;
        let probe = is_probe.then(|| Probe {
            breaker: &pooled.breaker,
            has_outcome: false,
        });
        let share = pooled
            .shares
            .try_acquire(&pooled.provider, message.to, caller, priority);
        let share = share.ok_or(AttemptOutcome::CircuitOpen(Duration::ZERO))?;
        let is_user = Principal::is_user(caller);
        let slot = pooled.limiter.acquire(priority, is_user).await;
        Ok(CallPermit {
            pooled,
            probe,
            _share: share,
            _slot: slot,
        })
    }

    /// Returns the best circuit breaker state among the providers of a channel. A paused provider
    /// counts as one whose circuit breaker is open.
    pub(crate) fn breaker_state(&self, channel: Channel) -> BreakerState {
        best_state(self.channels.get(channel))
    }

    /// Returns whether operators have paused all providers of a channel.
    pub(crate) fn is_paused(&self, channel: Channel) -> bool {
        let providers = self.channels.get(channel);
        !providers.is_empty() && providers.iter().all(|pooled| pooled.status.is_paused())
    }
}

// === impl CallPermit ===

impl CallPermit<'_> {
    /// Returns whether the circuit breaker opened, or an operator paused the provider, while this
    /// call waited for its permit.
    pub(crate) fn is_stale(&self) -> bool {
        self.probe.is_none() && self.pooled.state() != BreakerState::Closed
    }

    pub(crate) fn provider(&self) -> &str {
        &self.pooled.name
    }

    /// Calls the provider and records the outcome in the circuit breaker.
    ///
    /// # Errors
    /// The provider refused the message or did not answer in time.
    pub(crate) async fn send(mut self, message: &OutgoingMessage<'_>) -> SendResult {
        if self.probe.is_some() {
            self.pooled.status.record_probe();
        }
        let started_at = Instant::now();
        let outcome = self.pooled.call(message).await;
        self.record(outcome.as_ref().err(), started_at.elapsed(), message.id);
        outcome
    }

    fn record(&mut self, refusal: Option<&ProviderRefusal>, took: Duration, id: NotificationId) {
        let Some(outcome) = CallOutcome::of(refusal) else {
            return;
        };
        self.pooled.status.record_call(outcome, refusal, took, id);
        if let Some(change) = self.pooled.breaker.record(outcome) {
            self.pooled.status.record_transition(change, refusal);
        }
        if let Some(probe) = &mut self.probe {
            probe.has_outcome = true;
        }
    }
}

// === impl Probe ===

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        if !self.has_outcome {
            self.breaker.release_probe();
        }
    }
}

// === impl PooledProvider ===

impl PooledProvider {
    /// Returns the state of the circuit breaker, or open while an operator has paused the provider.
    fn state(&self) -> BreakerState {
        if self.status.is_paused() {
            BreakerState::Open(PAUSE_CHECK_INTERVAL)
        } else {
            self.breaker.state()
        }
    }

    /// Calls the provider, without its limits and circuit breaker.
    async fn call(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let call = self.provider.send(message);
        let outcome = tokio::time::timeout(MAX_CALL_DURATION, call).await;
        outcome.unwrap_or_else(|_| Err(classify("*", "timeout")))
    }
}

/// Returns the best state of the circuit breakers, or closed if there is no provider.
fn best_state<'a>(providers: impl IntoIterator<Item = &'a PooledProvider>) -> BreakerState {
    let worse = |state: &BreakerState| match state {
        BreakerState::Closed => Duration::ZERO,
        BreakerState::HalfOpen => Duration::from_nanos(1),
        BreakerState::Open(left) => *left,
    };
    providers
        .into_iter()
        .map(PooledProvider::state)
        .min_by_key(worse)
        .unwrap_or(BreakerState::Closed)
}

/// Chooses a provider by weight among those that can deliver to the address and whose circuit
/// breaker allows a call, and returns whether the call is a probe. The random bits of the
/// identifier spread notifications; each further attempt uses the next provider.
fn choose<'a>(
    providers: &'a [PooledProvider],
    request: &CallRequest<'_>,
) -> Result<(&'a PooledProvider, bool), AttemptOutcome> {
    let supports = |pooled: &&PooledProvider| pooled.provider.supports(request.message.to);
    let suitable: Vec<&PooledProvider> = providers.iter().filter(supports).collect();
    if suitable.is_empty() {
        let failure = AttemptFailure::of(FailureClass::Configuration, "no_provider");
        return Err(failure.into());
    }
    let may_be_called = |pooled: &&PooledProvider| !matches!(pooled.state(), BreakerState::Open(_));
    let mut candidates: Vec<&PooledProvider> =
        suitable.iter().copied().filter(may_be_called).collect();
    while let Some(at) = by_weight(&candidates, request.message, request.attempt) {
        let pooled = candidates.swap_remove(at);
        let is_probe = pooled.breaker.state() != BreakerState::Closed;
        // Another call may have become the probe.
        if pooled.breaker.allows_call() {
            return Ok((pooled, is_probe));
        }
    }
    Err(AttemptOutcome::CircuitOpen(match best_state(suitable) {
        BreakerState::Open(left) => left,
        BreakerState::Closed | BreakerState::HalfOpen => Duration::ZERO,
    }))
}

fn by_weight(
    candidates: &[&PooledProvider],
    message: &OutgoingMessage<'_>,
    attempt: i32,
) -> Option<usize> {
    let seed = u64::try_from(message.id.0.as_u128() & u128::from(u32::MAX)).unwrap_or_default();
    let weights = candidates.iter().map(|pooled| pooled.weight.max(1));
    let first = weighted_choice(weights, seed)?;
    Some((first + usize::try_from(attempt - 1).unwrap_or(0)) % candidates.len())
}

#[cfg(test)]
mod tests;
