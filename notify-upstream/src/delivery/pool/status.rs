//! What operators see of a provider: log events of changes, metrics, and readiness.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use postern_core::dependency::Outage;
use postern_core::health::Degradation;
use postern_core::log_limit::LogLimit;
use postern_core::log_outage_state;
use serde_json::{Value, json};

use super::{BreakerTransition, CallOutcome};
use crate::delivery::provider::ProviderRefusal;
use crate::delivery::redaction::redact;
use crate::metrics::{CALL_OUTCOMES, NotifyMetrics, ProviderCallMetrics};
use crate::notification::{Channel, NotificationId};
use crate::store::ProviderPause;

/// The status of one provider, from the outcomes of its calls.
pub(crate) struct ProviderStatus {
    channel: Channel,
    name: String,
    metrics: ProviderCallMetrics,
    degradation: Degradation,
    /// The pause among the reasons of `/readyz`: an outage has its own.
    paused: Degradation,
    outage: Mutex<Option<Outage>>,
    failures: LogLimit,
    refusals: LogLimit,
    openings: LogLimit,
    replies: Mutex<VecDeque<Value>>,
    pause: Mutex<Option<ProviderPause>>,
}

/// Number of replies that operators see.
const MAX_RECENT_REPLIES: usize = 10;

impl ProviderStatus {
    pub(crate) fn new(channel: Channel, name: &str, metrics: &NotifyMetrics) -> Self {
        Self {
            channel,
            name: name.to_owned(),
            metrics: metrics.provider(channel, name),
            degradation: metrics.health.degradation(name),
            paused: metrics.health.degradation(format!("{name} paused")),
            outage: Mutex::new(None),
            failures: LogLimit::new(),
            refusals: LogLimit::new(),
            openings: LogLimit::new(),
            replies: Mutex::default(),
            pause: Mutex::default(),
        }
    }

    /// Records the outcome of a call; `refusal` is its cause unless the message was accepted.
    pub(super) fn record_call(
        &self,
        outcome: CallOutcome,
        refusal: Option<&ProviderRefusal>,
        took: Duration,
        id: NotificationId,
    ) {
        let index = outcome as usize;
        self.metrics.calls[index].observe(took.as_secs_f64());
        let mut replies = self.replies.lock();
        replies.truncate(MAX_RECENT_REPLIES - 1);
        replies.push_front(json!({
            "notificationId": id,
            "outcome": CALL_OUTCOMES[index],
            "code": refusal.map(|refusal| &refusal.code),
        }));
        drop(replies);
        if outcome == CallOutcome::ProviderFailed {
            return self.record_failure(refusal, id);
        }
        self.record_answer();
        if let Some(refusal) = refusal
            && let Some(suppressed) = self.refusals.admit()
        {
            let (provider, channel) = (&*self.name, self.channel.as_str());
            let (code, error) = (&*refusal.code, cause(Some(refusal)));
            tracing::info!(provider, channel, code, error, notification_id = %id, suppressed, "message refused by provider");
        }
    }

    /// Returns the last replies, newest first.
    pub(super) fn last_replies(&self) -> Vec<Value> {
        self.replies.lock().iter().cloned().collect()
    }

    /// Sets or ends the pause by an operator, and returns whether this changed anything.
    pub(super) fn set_pause(&self, pause: Option<ProviderPause>) -> bool {
        let mut current = self.pause.lock();
        if *current == pause {
            return false;
        }
        let (provider, channel) = (&*self.name, self.channel.as_str());
        self.metrics.paused.set(pause.is_some().into());
        if let Some(pause) = &pause {
            self.paused.set("paused by an operator");
            let (operator, reason) = (&pause.operator, pause.reason.as_deref().unwrap_or_default());
            tracing::warn!(provider, channel, %operator, reason, "provider paused");
        } else if let Some(ProviderPause { at: paused_at, .. }) = &*current {
            self.paused.clear();
            tracing::info!(provider, channel, %paused_at, "provider resumed");
        }
        *current = pause;
        true
    }

    /// Returns the pause by an operator.
    pub(super) fn pause(&self) -> Option<ProviderPause> {
        self.pause.lock().clone()
    }

    /// Returns whether an operator has paused the provider.
    pub(super) fn is_paused(&self) -> bool {
        self.pause.lock().is_some()
    }

    /// Returns whether the last call was answered.
    pub(super) fn is_up(&self) -> bool {
        self.outage.lock().is_none()
    }

    /// Returns the calls since the start of this process.
    pub(super) fn calls(&self) -> Value {
        self.metrics.summary()
    }

    /// Logs the first failure of an outage, unless another outage began within the last 10 s.
    fn record_failure(&self, refusal: Option<&ProviderRefusal>, id: NotificationId) {
        let code = refusal.map_or("", |refusal| refusal.code.as_str());
        let error = cause(refusal);
        self.metrics.up.set(0);
        self.degradation.set(format!("{code}: {error}"));
        if Outage::count_failure(&mut self.outage.lock(), Some(&self.failures)) {
            let (provider, channel) = (&*self.name, self.channel.as_str());
            let cause = format!("provider {provider}");
            log_outage_state!(cause, provider, channel, code, error, notification_id = %id, "provider failing");
        }
    }

    /// Ends the outage, if there is one: the provider answers, even if it refuses a message.
    fn record_answer(&self) {
        let Some(ended) = self.outage.lock().take() else {
            return;
        };
        self.metrics.up.set(1);
        self.degradation.clear();
        if ended.is_logged {
            let (provider, channel) = (&*self.name, self.channel.as_str());
            let outage_s = ended.since.elapsed().as_secs();
            tracing::info!(
                provider,
                channel,
                outage_s,
                failures = ended.failures,
                "provider recovered"
            );
        }
    }

    /// Records that a call is the probe of a half-open circuit breaker.
    pub(super) fn record_probe(&self) {
        self.metrics.breaker.set(1);
        let (provider, channel) = (&*self.name, self.channel.as_str());
        tracing::info!(provider, channel, "circuit breaker half-open, probing");
    }

    /// Records a change of the circuit breaker.
    pub(super) fn record_transition(
        &self,
        change: BreakerTransition,
        refusal: Option<&ProviderRefusal>,
    ) {
        let (provider, channel) = (&*self.name, self.channel.as_str());
        match change {
            BreakerTransition::Opened(wait) => {
                self.metrics.breaker.set(2);
                let code = refusal.map_or("", |refusal| refusal.code.as_str());
                let (error, next_probe_s) = (cause(refusal), wait.as_secs());
                if self.openings.admit().is_some() {
                    let cause = format!("provider {provider}");
                    log_outage_state!(
                        cause,
                        provider,
                        channel,
                        code,
                        error,
                        next_probe_s,
                        "circuit breaker opened"
                    );
                }
            }
            BreakerTransition::Closed => {
                self.metrics.breaker.set(0);
                tracing::info!(provider, channel, "circuit breaker closed");
            }
        }
    }
}

/// Returns the response of the provider, or the reason for which there was none, without addresses.
fn cause(refusal: Option<&ProviderRefusal>) -> String {
    let detail = refusal.and_then(|refusal| refusal.detail.as_deref());
    redact(detail.unwrap_or_default())
}
