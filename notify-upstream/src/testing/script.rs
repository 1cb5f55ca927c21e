//! A provider for tests, which records calls and returns scripted results.

use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use tokio::sync::Notify;

use crate::address::Address;
use crate::delivery::provider::{
    ErrorCodeTable, FaultScope, LookupResult, OutgoingMessage, ProviderAck, ProviderRefusal,
};
use crate::notification::NotificationId;
use crate::templates::MessageContent;

/// An e-mail as it would be sent.
#[derive(Clone, Debug)]
pub(crate) struct RecordedMessage {
    /// The notification.
    pub(crate) id: NotificationId,
    /// The address.
    pub(crate) to: String,
    /// The subject and the text.
    pub(crate) text: [String; 2],
    /// The time of the call.
    pub(crate) sent_at: Timestamp,
}

/// The recorded calls and scripted results. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProviderScript {
    calls: Arc<Mutex<Vec<NotificationId>>>,
    mails: Arc<Mutex<Vec<RecordedMessage>>>,
    refusals: Arc<Mutex<Vec<&'static str>>>,
    hold: Arc<Mutex<Option<Arc<Notify>>>>,
    supports_lookups: Arc<Mutex<bool>>,
    lookups: Arc<Mutex<usize>>,
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

    /// Shares the messages of another script, as if both were one provider.
    pub(crate) fn share_messages_of(&self, other: &Self) {
        self.calls.lock().extend(other.calls());
    }

    /// Supports lookups from now on.
    pub(crate) fn support_lookups(&self) {
        *self.supports_lookups.lock() = true;
    }

    /// Returns the number of lookups.
    pub(crate) fn lookups(&self) -> usize {
        *self.lookups.lock()
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

    pub(crate) async fn look_up(&self, message: &OutgoingMessage<'_>) -> LookupResult {
        *self.lookups.lock() += 1;
        let gate = self.hold.lock().clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        match (
            *self.supports_lookups.lock(),
            self.calls().contains(&message.id),
        ) {
            (false, _) => LookupResult::Unsupported,
            (true, true) => LookupResult::Found(ProviderAck::default()),
            (true, false) => LookupResult::NotFound,
        }
    }

    pub(crate) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
        self.calls.lock().push(message.id);
        if let (Address::Email(to), MessageContent::Email { subject, text, .. }) =
            (message.to, message.content)
        {
            let (to, text) = (to.as_str().to_owned(), [subject.clone(), text.clone()]);
            self.mails.lock().push(RecordedMessage {
                id: message.id,
                to,
                text,
                sent_at: message.sent_at,
            });
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
            Ok(ProviderAck::default())
        } else {
            Err(ErrorCodeTable::shipped()
                .classify("smtp", refusals.remove(0))
                .with_scope(FaultScope::Provider))
        }
    }
}
