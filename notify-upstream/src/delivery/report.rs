//! Reports of a provider or mail server about a message that was sent.

use postern_core::clock::Timestamp;

use crate::address::AddressHash;
use crate::notification::NotificationId;
use crate::store::Receipt;
use crate::store::row::ReceiptKind;

/// A delivery report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderReport {
    /// The provider's identifier of the event.
    pub(crate) event_id: String,
    /// The notification, or `None` if the event concerns none of this service.
    pub(crate) id: Option<NotificationId>,
    pub(crate) kind: ReceiptKind,
    /// Time of the event.
    pub(crate) at: Timestamp,
    /// Reason code.
    pub(crate) code: Option<String>,
    /// The provider's description.
    pub(crate) detail: Option<String>,
    /// An address that is proven not to exist.
    pub(crate) dead_address: Option<String>,
    /// The address of a recipient who complained or unsubscribed, for the reason in `code`.
    pub(crate) objector: Option<AddressHash>,
}

// === impl ProviderReport ===

impl ProviderReport {
    /// Returns the inbox row, or `None` if the report concerns no notification of this service.
    pub(crate) fn receipt(&self, provider: &str) -> Option<Receipt> {
        let printable = |text: &String| {
            text.chars()
                .filter(|c| !c.is_control())
                .take(300)
                .collect::<String>()
        };
        Some(Receipt {
            provider: provider.to_owned(),
            event_id: self
                .event_id
                .chars()
                .filter(|c| !c.is_control())
                .take(200)
                .collect(),
            id: self.id?,
            kind: self.kind,
            at: self.at,
            code: self.code.as_ref().map(printable),
            detail: self.detail.as_ref().map(printable),
        })
    }
}
