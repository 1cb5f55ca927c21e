//! A provider for tests, which records calls and returns scripted results.

use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::Clock;
use tokio::sync::Notify;

use crate::address::Address;
use crate::delivery::pool::{
    PooledProvider, PriorityLimiter, ProviderCircuitBreaker, ProviderPool, ProviderStatus,
    ShareLimiter,
};
use crate::delivery::provider::{FaultScope, OutgoingMessage, Provider, SendResult, classify};
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, NotificationId, PerChannel};
use crate::templates::MessageContent;

/// An e-mail as it would be sent.
#[derive(Clone, Debug)]
pub(crate) struct RecordedMessage {
    /// The address.
    pub(crate) to: String,
    /// The subject and the text.
    pub(crate) text: [String; 2],
}

/// The recorded calls and scripted results. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProviderScript {
    calls: Arc<Mutex<Vec<NotificationId>>>,
    mails: Arc<Mutex<Vec<RecordedMessage>>>,
    refusals: Arc<Mutex<Vec<&'static str>>>,
    hold: Arc<Mutex<Option<Arc<Notify>>>>,
    /// The suffix of addresses, and whether only those are supported or all others.
    supported_suffix: Arc<Mutex<Option<(&'static str, bool)>>>,
    /// The suffix of addresses that are refused temporarily.
    refused_suffix: Arc<Mutex<Option<&'static str>>>,
}

impl ProviderScript {
    /// Returns all calls so far.
    pub(crate) fn calls(&self) -> Vec<NotificationId> {
        self.calls.lock().clone()
    }

    /// Returns all e-mails so far.
    pub(crate) fn mails(&self) -> Vec<RecordedMessage> {
        self.mails.lock().clone()
    }

    /// Refuses the next calls with these SMTP codes, in this order.
    pub(crate) fn refuse(&self, codes: &[&'static str]) {
        self.refusals.lock().extend(codes);
    }

    /// Refuses no further calls.
    pub(crate) fn recover(&self) {
        self.refusals.lock().clear();
    }

    /// Blocks calls until the returned gate is notified.
    pub(crate) fn hold(&self) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        *self.hold.lock() = Some(Arc::clone(&gate));
        gate
    }

    /// Supports only addresses with this suffix, or all others.
    pub(crate) fn support(&self, end: &'static str, wanted: bool) {
        *self.supported_suffix.lock() = Some((end, wanted));
    }

    /// Refuses recipients whose addresses have this suffix with 451.
    pub(crate) fn refuse_recipients(&self, end: &'static str) {
        *self.refused_suffix.lock() = Some(end);
    }

    pub(crate) fn supports(&self, address: &Address) -> bool {
        let supported_suffix = *self.supported_suffix.lock();
        let ends =
            |end| matches!(address, Address::Email(address) if address.as_str().ends_with(end));
        supported_suffix.is_none_or(|(end, wanted)| ends(end) == wanted)
    }

    pub(crate) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        self.calls.lock().push(message.id);
        if let (Address::Email(to), MessageContent::Email { subject, text, .. }) =
            (message.to, message.content)
        {
            let (to, text) = (to.as_str().to_owned(), [subject.clone(), text.clone()]);
            self.mails.lock().push(RecordedMessage { to, text });
        }
        let hold = self.hold.lock().clone();
        if let Some(gate) = hold {
            gate.notified().await;
        }
        let refused_suffix = *self.refused_suffix.lock();
        if let (Address::Email(to), Some(end)) = (message.to, refused_suffix)
            && to.as_str().ends_with(end)
        {
            return Err(classify("smtp", "451"));
        }
        let mut refusals = self.refusals.lock();
        if refusals.is_empty() {
            Ok(None)
        } else {
            let refusal = classify("smtp", refusals.remove(0));
            Err(refusal.with_scope(FaultScope::Provider))
        }
    }
}

/// Returns a provider of the channel `email`.
pub(crate) fn pooled(
    name: &str,
    (provider, weight): (Provider, u32),
    concurrency: usize,
    clock: &Clock,
    metrics: &NotifyMetrics,
) -> PooledProvider {
    PooledProvider {
        name: name.to_owned(),
        provider,
        weight,
        limiter: PriorityLimiter::new(concurrency, None),
        shares: ShareLimiter::new(concurrency),
        breaker: ProviderCircuitBreaker::new(clock.clone()),
        status: ProviderStatus::new(Channel::Email, name, metrics),
    }
}

/// Returns the pool of these providers of the channel `email`.
pub(crate) fn email_pool(providers: Vec<PooledProvider>) -> ProviderPool {
    let mut channels = PerChannel::default();
    *channels.get_mut(Channel::Email) = providers;
    ProviderPool { channels }
}
