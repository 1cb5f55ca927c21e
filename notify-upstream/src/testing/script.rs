//! A provider for tests, which records calls and returns scripted results.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::address::Address;
use crate::delivery::provider::{ErrorCodeTable, FaultScope, OutgoingMessage, SendResult};
use crate::notification::NotificationId;
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

    /// Supports only addresses with this suffix.
    pub(crate) fn support_only(&self, end: &'static str) {
        *self.supported_suffix.lock() = Some((end, true));
    }

    /// Supports all addresses but those with this suffix.
    pub(crate) fn support_all_except(&self, end: &'static str) {
        *self.supported_suffix.lock() = Some((end, false));
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
            return Err(ErrorCodeTable::shipped().classify("smtp", "451"));
        }
        let mut refusals = self.refusals.lock();
        if refusals.is_empty() {
            Ok(None)
        } else {
            Err(ErrorCodeTable::shipped()
                .classify("smtp", refusals.remove(0))
                .with_scope(FaultScope::Provider))
        }
    }
}
