//! Who carries a message: one variant a kind of provider.

mod codes;
mod file;
mod smtp;

use std::time::Duration;

use postern_common::clock::Timestamp;

pub use codes::Codes;
pub use file::File;
pub use smtp::{Smtp, SmtpConfig, TlsMode};

use crate::address::Address;
use crate::notification::NotificationId;
use crate::retry::Class;
use crate::template::Content;

/// A provider, ready to carry.
#[derive(Debug)]
pub enum Provider {
    /// A mail server.
    Smtp(Smtp),
    /// A folder, for development.
    File(File),
    /// Nowhere, for measurements.
    Null,
}

/// What is to be carried.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The notification.
    pub id: NotificationId,
    /// Where to.
    pub to: &'a Address,
    /// The words.
    pub content: &'a Content,
    /// When it was accepted: the date of the message, the same for every attempt.
    pub created_at: Timestamp,
    /// When it is of no interest any more.
    pub expires_at: Option<Timestamp>,
    /// Whether it is CRITICAL or HIGH.
    pub urgent: bool,
    /// Whether it carries a way to unsubscribe with one click.
    pub unsubscribe: bool,
}

/// A provider's yes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Its words.
    pub detail: Option<String>,
}

/// A provider's no, or silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it means for the next attempt.
    pub class: Class,
    /// Our word for it.
    pub code: String,
    /// The provider's words, without addresses.
    pub detail: Option<String>,
    /// The provider's wish.
    pub retry_after: Option<Duration>,
    /// Whether it proves that the address does not exist.
    pub suppress: bool,
}

// === impl Provider ===

impl Provider {
    /// Carries a message. No transaction is open meanwhile.
    ///
    /// # Errors
    /// The provider's no, judged by the table of codes.
    pub async fn send(&self, message: &Message<'_>) -> Result<Taken, Refusal> {
        match self {
            Self::Smtp(smtp) => smtp.send(message).await,
            Self::File(file) => file.send(message).await,
            Self::Null => Ok(Taken::default()),
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// The address or the message is of a kind that this provider does not carry.
    #[must_use]
    pub fn unfit() -> Self {
        Self {
            class: Class::Permanent,
            code: "address_kind_not_carried".to_owned(),
            detail: None,
            retry_after: None,
            suppress: false,
        }
    }

    /// With the provider's words.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}
