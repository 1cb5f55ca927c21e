//! A provider for tests: keeps a record of every call and answers as it is told.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::{
    ErrorCodeTable, FaultScope, LookupResult, OutgoingMessage, ProviderAck, ProviderRefusal,
};
use crate::address::Address;
use crate::notification::NotificationId;
use crate::templates::MessageContent;

/// A mail as it would be sent.
#[derive(Clone, Debug)]
pub(crate) struct RecordedMessage {
    /// The notification.
    pub(crate) id: NotificationId,
    /// Where to.
    pub(crate) to: String,
    /// Its subject and its text.
    pub(crate) words: [String; 2],
}

/// Clones share the record and the orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProviderScript {
    calls: Arc<Mutex<Vec<NotificationId>>>,
    mails: Arc<Mutex<Vec<RecordedMessage>>>,
    refusals: Arc<Mutex<Vec<&'static str>>>,
    hold: Arc<Mutex<Option<Arc<Notify>>>>,
    sighted: Arc<Mutex<bool>>,
    looks: Arc<Mutex<usize>>,
    /// What an address ends with, and whether those are carried or all others.
    carried: Arc<Mutex<Option<(&'static str, bool)>>>,
    /// What the addresses end with that are refused for now.
    refused: Arc<Mutex<Option<&'static str>>>,
}

impl ProviderScript {
    /// Every call so far.
    pub(crate) fn calls(&self) -> Vec<NotificationId> {
        self.calls.lock().expect("no panic").clone()
    }

    /// Every mail so far.
    pub(crate) fn mails(&self) -> Vec<RecordedMessage> {
        self.mails.lock().expect("no panic").clone()
    }

    /// The next calls are refused with these codes of SMTP, the first first.
    pub(crate) fn refuse(&self, codes: &[&'static str]) {
        self.refusals.lock().expect("no panic").extend(codes);
    }

    /// Nothing is refused any more.
    pub(crate) fn recover(&self) {
        self.refusals.lock().expect("no panic").clear();
    }

    /// Calls do not come back until the given gate is told.
    pub(crate) fn hold(&self) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        *self.hold.lock().expect("no panic") = Some(Arc::clone(&gate));
        gate
    }

    /// It is the same provider as another, so that it has what that one was given.
    pub(crate) fn remembers(&self, other: &Self) {
        self.calls.lock().expect("no panic").extend(other.calls());
    }

    /// From now on it can be asked what it has.
    pub(crate) fn can_be_asked(&self) {
        *self.sighted.lock().expect("no panic") = true;
    }

    /// How often it was asked.
    pub(crate) fn looks(&self) -> usize {
        *self.looks.lock().expect("no panic")
    }

    /// It carries what is for addresses that end so, and nothing else.
    pub(crate) fn carries_only(&self, end: &'static str) {
        *self.carried.lock().expect("no panic") = Some((end, true));
    }

    /// It carries nothing for addresses that end so.
    pub(crate) fn carries_all_but(&self, end: &'static str) {
        *self.carried.lock().expect("no panic") = Some((end, false));
    }

    /// From now on recipients whose addresses end so are refused with a 451.
    pub(crate) fn refuse_recipients(&self, end: &'static str) {
        *self.refused.lock().expect("no panic") = Some(end);
    }

    pub(super) fn carries(&self, address: &Address) -> bool {
        let carried = *self.carried.lock().expect("no panic");
        let ends =
            |end| matches!(address, Address::Email(address) if address.as_str().ends_with(end));
        carried.is_none_or(|(end, wanted)| ends(end) == wanted)
    }

    pub(super) async fn look_up(&self, message: &OutgoingMessage<'_>) -> LookupResult {
        *self.looks.lock().expect("no panic") += 1;
        let gate = self.hold.lock().expect("no panic").clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        match (
            *self.sighted.lock().expect("no panic"),
            self.calls().contains(&message.id),
        ) {
            (false, _) => LookupResult::Unsupported,
            (true, true) => LookupResult::Found(ProviderAck::default()),
            (true, false) => LookupResult::NotFound,
        }
    }

    pub(super) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
        self.calls.lock().expect("no panic").push(message.id);
        if let (Address::Email(to), MessageContent::Email { subject, text, .. }) =
            (message.to, message.content)
        {
            let (to, words) = (to.as_str().to_owned(), [subject.clone(), text.clone()]);
            self.mails.lock().expect("no panic").push(RecordedMessage {
                id: message.id,
                to,
                words,
            });
        }
        let hold = self.hold.lock().expect("no panic").clone();
        if let Some(gate) = hold {
            gate.notified().await;
        }
        let refused = *self.refused.lock().expect("no panic");
        if let (Address::Email(to), Some(end)) = (message.to, refused)
            && to.as_str().ends_with(end)
        {
            return Err(ErrorCodeTable::shipped().judge("smtp", "451"));
        }
        let mut refusals = self.refusals.lock().expect("no panic");
        if refusals.is_empty() {
            Ok(ProviderAck::default())
        } else {
            Err(ErrorCodeTable::shipped()
                .judge("smtp", refusals.remove(0))
                .with_scope(FaultScope::Provider))
        }
    }
}
