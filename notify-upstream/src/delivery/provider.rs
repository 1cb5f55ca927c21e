//! Providers: one implementation for each kind.
//!
//! An [`OutgoingMessage`] enters; a reply or a classified [`ProviderRefusal`] leaves.
//! Depends on `address`, `templates`, `retry` and `mail_token`.

mod call;
mod codes;
mod fcm;
mod file;
mod generic;
mod segments;
mod smtp;
mod twilio;
mod web_push;

use std::time::Duration;

use postern_core::clock::Timestamp;
use serde::Deserialize;

pub(crate) use call::check_tls;
pub(crate) use codes::{classify, classify_reply, is_enhanced};
pub(crate) use fcm::{FcmAccount, FcmProvider};
pub(crate) use file::FileProvider;
pub(crate) use generic::{HttpConfig, HttpProvider};
pub(crate) use segments::segment_count;
pub(crate) use smtp::{SmtpConfig, SmtpProvider, SmtpTimeouts, TlsMode};
pub(crate) use twilio::{TwilioConfig, TwilioProvider, TwilioSender};
pub(crate) use web_push::{VapidKey, WebPushProvider};

use crate::address::Address;
use crate::delivery::retry::FailureClass;
use crate::notification::NotificationId;
use crate::store::printable;
use crate::templates::MessageContent;

/// A provider, ready to send.
pub(crate) enum Provider {
    Smtp(Box<SmtpProvider>),
    Twilio(Box<TwilioProvider>),
    /// An HTTP API whose request body is a template.
    Http(Box<HttpProvider>),
    Fcm(Box<FcmProvider>),
    /// The push services of browsers.
    WebPush(Box<WebPushProvider>),
    File(FileProvider),
    /// Discards messages, for benchmarks.
    Null,
    /// A scripted provider, for tests.
    #[cfg(test)]
    Script(crate::testing::script::ProviderScript),
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingMessage<'a> {
    pub(crate) id: NotificationId,
    pub(crate) to: &'a Address,
    pub(crate) content: &'a MessageContent,
    /// The date of the message: the time of this attempt, because mail that was scheduled or retried
    /// for days would look old.
    pub(crate) sent_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// Whether the priority is CRITICAL or HIGH.
    pub(crate) urgent: bool,
    /// Whether the message offers one-click unsubscription.
    pub(crate) unsubscribe: bool,
}

/// The reply of a provider that accepted a message, if it said something, or its refusal.
pub(crate) type SendResult = Result<Option<String>, ProviderRefusal>;

/// The refusal of a message by a provider, or the failure of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderRefusal {
    /// The class, which decides about further attempts.
    pub(crate) class: FailureClass,
    /// The stable code of the reason.
    pub(crate) code: String,
    /// The response of the provider, without addresses.
    pub(crate) detail: Option<String>,
    /// The minimum delay that the provider asked for.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the refusal proves that the address does not exist.
    pub(crate) suppress: bool,
    /// The scope of the fault, for the circuit breaker.
    pub(crate) scope: FaultScope,
}

/// The code of the refusal of an address or message of a kind that a provider does not support.
pub(crate) const UNSUPPORTED: &str = "address_kind_not_carried";

/// Maximum length of a provider's reply in the history, in bytes.
pub(crate) const MAX_DETAIL_BYTES: usize = 500;

/// The scope of a fault.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FaultScope {
    /// The provider, or the account with it: no message would have been accepted.
    Provider,
    /// One recipient or one message: others may have been accepted.
    #[default]
    Recipient,
    /// The message: it was refused locally, before the call.
    NotSent,
}

// === impl Provider ===

impl Provider {
    /// Returns whether the provider can deliver to this kind of address.
    pub(crate) fn supports(&self, address: &Address) -> bool {
        match self {
            Self::Smtp(_) => matches!(address, Address::Email(_)),
            Self::Twilio(_) => matches!(address, Address::Phone(_)),
            Self::Fcm(_) => matches!(address, Address::DeviceToken(_)),
            Self::WebPush(_) => matches!(address, Address::Subscription(_)),
            Self::Http(_) => !matches!(address, Address::Subscription(_)),
            Self::File(_) | Self::Null => true,
            #[cfg(test)]
            Self::Script(script) => script.supports(address),
        }
    }

    /// Returns whether the provider calls the push service named by a subscription, as opposed to a
    /// server chosen by the operator.
    pub(crate) fn calls_endpoint(&self) -> bool {
        #[cfg(test)]
        if matches!(self, Self::Script(_)) {
            return true;
        }
        matches!(self, Self::WebPush(_))
    }

    /// Sends a message. The caller holds no transaction.
    ///
    /// # Errors
    /// The provider refused the message, classified by the table of error codes.
    pub(crate) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        // The template may have changed since acceptance.
        if exceeded_limit(message.content).is_some() {
            return Err(ProviderRefusal::not_sent("message_too_long"));
        }
        // Each call is boxed: the future of an attempt is moved, and would be as large as the
        // largest call.
        match self {
            Self::Smtp(smtp) => Box::pin(smtp.send(message)).await,
            Self::Twilio(twilio) => Box::pin(twilio.send(message)).await,
            Self::Http(http) => Box::pin(http.send(message)).await,
            Self::Fcm(fcm) => Box::pin(fcm.send(message)).await,
            Self::WebPush(push) => Box::pin(push.send(message)).await,
            Self::File(file) => Box::pin(file.send(message)).await,
            Self::Null => Ok(None),
            #[cfg(test)]
            Self::Script(script) => script.send(message).await,
        }
    }

    /// Calls the provider as far as that is possible without a message. Returns what was found;
    /// `None` if nobody can be called, as with the push services of browsers.
    ///
    /// # Errors
    /// The provider does not answer, or does not accept the credentials.
    pub(crate) async fn probe(&self) -> Option<Result<&'static str, ProviderRefusal>> {
        Some(match self {
            Self::Smtp(smtp) => smtp.probe().await.map(|()| "accepts the session"),
            Self::Twilio(twilio) => twilio.probe().await.map(|()| "knows the account"),
            Self::Fcm(fcm) => fcm.probe().await.map(|()| "gives the account a token"),
            Self::Http(http) => http.probe().await.map(|()| "answers"),
            Self::WebPush(_) | Self::File(_) | Self::Null => return None,
            #[cfg(test)]
            Self::Script(_) => return None,
        })
    }
}

/// Returns the limit that a message exceeds on its channel, so that it is refused at acceptance. The
/// parts of e-mail are limited by the templates.
pub(crate) fn exceeded_limit(content: &MessageContent) -> Option<String> {
    match content {
        MessageContent::Email { .. } => None,
        MessageContent::Sms { text } => (segment_count(text) > segments::MAX_SEGMENTS)
            .then(|| format!("must be at most {} segments", segments::MAX_SEGMENTS)),
        MessageContent::Push { title, body } => (!web_push::fits(title, body)).then(|| {
            let max = web_push::MAX_PAYLOAD_BYTES;
            format!("title and text must be at most {max} bytes, in JSON with the identifier")
        }),
    }
}

// === impl ProviderRefusal ===

impl ProviderRefusal {
    /// Creates the refusal of a message before any call, such as one that is longer than its channel
    /// allows.
    pub(crate) fn not_sent(code: &str) -> Self {
        Self {
            class: FailureClass::Permanent,
            code: code.to_owned(),
            detail: None,
            retry_after: None,
            suppress: false,
            scope: FaultScope::NotSent,
        }
    }

    /// Replaces the scope.
    #[must_use]
    pub(crate) fn with_scope(self, scope: FaultScope) -> Self {
        Self { scope, ..self }
    }

    /// Adds the response of the provider.
    #[must_use]
    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(printable(&detail.into(), MAX_DETAIL_BYTES));
        self
    }
}
