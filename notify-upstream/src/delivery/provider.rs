//! Who carries a message: one variant a kind of provider.

mod call;
mod codes;
mod fcm;
mod file;
mod generic;
#[cfg(test)]
pub(crate) mod injection;
#[cfg(test)]
pub(crate) mod script;
mod segments;
mod smtp;
mod twilio;
mod web_push;

use std::time::Duration;

use postern_common::clock::Timestamp;

pub(crate) use call::check_tls;
pub(crate) use codes::{ErrorCodeTable, INTERNAL_ERROR};
pub(crate) use fcm::{FcmAccount, FcmProvider};
pub(crate) use file::FileProvider;
pub(crate) use generic::{HttpConfig, HttpProvider, ID_PLACEHOLDER};
pub(crate) use smtp::{SmtpConfig, SmtpProvider, SmtpTimeouts, TlsMode};
pub(crate) use twilio::{TwilioConfig, TwilioProvider, TwilioSender};
pub(crate) use web_push::{VapidKey, WebPushProvider};

use crate::address::Address;
use crate::delivery::retry::FailureClass;
use crate::notification::NotificationId;
use crate::templates::MessageContent;

/// A provider, ready to carry.
#[derive(Debug)]
pub(crate) enum Provider {
    /// A mail server.
    Smtp(Box<SmtpProvider>),
    /// Twilio's API.
    Twilio(Box<TwilioProvider>),
    /// Any API, by a template of the request.
    Http(Box<HttpProvider>),
    /// Firebase Cloud Messaging.
    Fcm(Box<FcmProvider>),
    /// Push services of browsers.
    WebPush(Box<WebPushProvider>),
    /// A folder, for development.
    File(FileProvider),
    /// Nowhere, for measurements.
    Null,
    /// What a test tells it.
    #[cfg(test)]
    Script(script::ProviderScript),
}

/// What is to be carried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingMessage<'a> {
    /// The notification.
    pub(crate) id: NotificationId,
    /// Where to.
    pub(crate) to: &'a Address,
    /// The words.
    pub(crate) content: &'a MessageContent,
    /// When it was accepted: the date of the message, the same for every attempt.
    pub(crate) created_at: Timestamp,
    /// When it is of no interest any more.
    pub(crate) expires_at: Option<Timestamp>,
    /// Whether it is CRITICAL or HIGH.
    pub(crate) urgent: bool,
    /// Whether it carries a way to unsubscribe with one click.
    pub(crate) unsubscribe: bool,
}

/// A provider's yes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProviderAck {
    /// Its words.
    pub(crate) detail: Option<String>,
}

/// A provider's no, or silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderRefusal {
    /// What it context for the next attempt.
    pub(crate) class: FailureClass,
    /// Our word for it.
    pub(crate) code: String,
    /// The provider's words, without addresses.
    pub(crate) detail: Option<String>,
    /// The provider's wish.
    pub(crate) retry_after: Option<Duration>,
    /// Whether it proves that the address does not exist.
    pub(crate) suppress: bool,
    /// What failed: the circuit breaker counts only what says something about the provider.
    pub(crate) scope: FaultScope,
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultScope {
    /// The provider or our account with it: no message would have been taken.
    Provider,
    /// One recipient or one message: others may have been taken.
    Recipient,
    /// The message itself: it was refused here, before any call to the provider.
    NotSent,
}

// === impl Provider ===

impl Provider {
    /// Whether it carries messages to such an address.
    #[must_use]
    pub(crate) fn carries(&self, address: &Address) -> bool {
        match self {
            Self::Smtp(_) => matches!(address, Address::Email(_)),
            Self::Twilio(_) => matches!(address, Address::Phone(_)),
            Self::Fcm(_) => matches!(address, Address::DeviceToken(_)),
            Self::WebPush(_) => matches!(address, Address::Subscription(_)),
            Self::Http(_) => !matches!(address, Address::Subscription(_)),
            Self::File(_) | Self::Null => true,
            #[cfg(test)]
            Self::Script(script) => script.carries(address),
        }
    }

    /// Whether it calls the push service that a subscription names, and no server of the operator's
    /// choice.
    #[must_use]
    pub(crate) fn calls_endpoint(&self) -> bool {
        match self {
            Self::WebPush(_) => true,
            Self::Smtp(_)
            | Self::Twilio(_)
            | Self::Http(_)
            | Self::Fcm(_)
            | Self::File(_)
            | Self::Null => false,
            #[cfg(test)]
            Self::Script(_) => true,
        }
    }

    /// Asks whether a message is there that nobody knows to be handed over. Mail servers, FCM and
    /// push services have no such question; Twilio lists messages by number and day, not by our id,
    /// and tells by its status callback instead.
    ///
    /// # Errors
    /// The provider gives no answer now.
    pub(crate) async fn look_up(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<LookupResult, ProviderRefusal> {
        match self {
            Self::Http(http) => http.look_up(message).await,
            Self::File(file) => Ok(file.look_up(message).await),
            Self::Smtp(_) | Self::Twilio(_) | Self::Fcm(_) | Self::WebPush(_) | Self::Null => {
                Ok(LookupResult::Unsupported)
            }
            #[cfg(test)]
            Self::Script(script) => Ok(script.look_up(message).await),
        }
    }

    /// Carries a message. No transaction is open meanwhile.
    ///
    /// # Errors
    /// The provider's no, judged by the table of codes.
    pub(crate) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
        // Each in a box of its own: an attempt is moved about, and is as large as the largest call
        // that stands in it.
        match self {
            Self::Smtp(smtp) => Box::pin(smtp.send(message)).await,
            Self::Twilio(twilio) => Box::pin(twilio.send(message)).await,
            Self::Http(http) => Box::pin(http.send(message)).await,
            Self::Fcm(fcm) => Box::pin(fcm.send(message)).await,
            Self::WebPush(push) => Box::pin(push.send(message)).await,
            Self::File(file) => Box::pin(file.send(message)).await,
            Self::Null => Ok(ProviderAck::default()),
            #[cfg(test)]
            Self::Script(script) => script.send(message).await,
        }
    }
}

/// What a provider says when it is asked by our id whether it has a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookupResult {
    /// It has it.
    Found(ProviderAck),
    /// It has not.
    NotFound,
    /// It cannot be asked.
    Unsupported,
}

// === impl ProviderRefusal ===

impl ProviderRefusal {
    /// The address or the message is of a kind that this provider does not carry. No call was made.
    #[must_use]
    pub(crate) fn unsupported_message() -> Self {
        Self {
            class: FailureClass::Permanent,
            code: "address_kind_not_carried".to_owned(),
            detail: None,
            retry_after: None,
            suppress: false,
            scope: FaultScope::NotSent,
        }
    }

    /// About the provider, or about one recipient, whatever the table of codes says.
    #[must_use]
    pub(crate) fn with_scope(self, scope: FaultScope) -> Self {
        Self { scope, ..self }
    }

    /// With the provider's words.
    #[must_use]
    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}
