//! What providers report later.
//!
//! The signature is checked over the raw body before anything else is read. Reports go to an inbox
//! that is unique per provider event; the status is merged from it by rank when it is read, so that
//! neither the order of reports nor their repetition matters, and one that comes before SENT is
//! stored waits there.

mod mailgun;
mod sendgrid;
mod sns;
mod standard;
mod twilio;

use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::hmac;
use http::HeaderMap;
use postern_common::Secret;
use postern_common::clock::Timestamp;
use serde_json::Value;

pub(crate) use sns::{Certificates, Sns};

use crate::delivery::report::Report;
use crate::notification::{Channel, NotificationId};
use crate::store::WebhookToken;

/// The webhooks that are configured; one that is not answers as to a bad signature.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    /// Twilio: SMS status.
    pub(crate) twilio: Option<Twilio>,
    /// Amazon SNS: mail events of SES.
    pub(crate) sns: Option<Sns>,
    /// SendGrid: mail events.
    pub(crate) sendgrid: Option<SendGrid>,
    /// Mailgun: mail events.
    pub(crate) mailgun: Option<Mailgun>,
    /// Standard Webhooks: any other.
    pub(crate) standard: Option<Standard>,
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    /// Its headers.
    pub(crate) headers: &'a HeaderMap,
    /// Its query, without `?`.
    pub(crate) query: Option<&'a str>,
    /// Its body.
    pub(crate) body: &'a [u8],
    /// The address that it came from, where it is known.
    pub(crate) source: Option<IpAddr>,
    /// When it came.
    pub(crate) now: Timestamp,
}

/// Why a webhook is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// The signature is missing, wrong or too old, or this provider is not configured.
    Signature,
    /// It is signed and cannot be read.
    Unreadable,
    /// The provider's certificate cannot be fetched now.
    Unavailable,
}

/// How old or how far ahead a signed time may be, where the scheme has one.
const WINDOW: Duration = Duration::from_secs(300);

// === impl Webhooks ===

impl Webhooks {
    /// Checks what can be checked before the body is read: that the provider is configured, and
    /// that the headers have the form of its signature scheme and the time of now. Mailgun and SNS
    /// sign within the body.
    ///
    /// # Errors
    /// [`Unheard::Signature`].
    pub(crate) fn check_headers(
        &self,
        provider: &str,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<(), Unheard> {
        let configured = match provider {
            "twilio" => self
                .twilio
                .as_ref()
                .map(|_| twilio::signature(headers).map(|_| ())),
            "sns" => self.sns.as_ref().map(|sns| sns.check_topic(headers)),
            "sendgrid" => self
                .sendgrid
                .as_ref()
                .map(|_| sendgrid::signature(headers, now).map(|_| ())),
            "mailgun" => self.mailgun.as_ref().map(|_| Ok(())),
            "standard" => self
                .standard
                .as_ref()
                .map(|_| standard::signature(headers, now).map(|_| ())),
            _ => None,
        };
        configured.unwrap_or(Err(Unheard::Signature))
    }

    /// Checks and reads what a provider sent.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) async fn read(
        &self,
        provider: &str,
        incoming: &Incoming<'_>,
    ) -> Result<Vec<Report>, Unheard> {
        match provider {
            "twilio" => self
                .twilio
                .as_ref()
                .ok_or(Unheard::Signature)?
                .read(incoming),
            "sns" => {
                self.sns
                    .as_ref()
                    .ok_or(Unheard::Signature)?
                    .read(incoming)
                    .await
            }
            "sendgrid" => self
                .sendgrid
                .as_ref()
                .ok_or(Unheard::Signature)?
                .read(incoming),
            "mailgun" => self
                .mailgun
                .as_ref()
                .ok_or(Unheard::Signature)?
                .read(incoming),
            "standard" => self
                .standard
                .as_ref()
                .ok_or(Unheard::Signature)?
                .read(incoming),
            _ => Err(Unheard::Signature),
        }
    }

    /// Whether a provider of this channel is to report what becomes of what it took. FCM has no
    /// receipts, and of Standard Webhooks nobody knows which channel they are about.
    #[must_use]
    pub(crate) fn report(&self, channel: Channel) -> bool {
        let Self {
            twilio,
            sns,
            sendgrid,
            mailgun,
            standard: _,
        } = self;
        match channel {
            Channel::Email => sns.is_some() || sendgrid.is_some() || mailgun.is_some(),
            Channel::Sms => twilio.is_some(),
            Channel::Push => false,
        }
    }

    /// What binds the signature to the body, where the provider's own scheme does not. Only after
    /// [`Webhooks::read`] has found the signature good.
    #[must_use]
    pub(crate) fn token(&self, provider: &str, incoming: &Incoming<'_>) -> Option<WebhookToken> {
        if provider == "mailgun" {
            Mailgun::token(incoming)
        } else {
            None
        }
    }
}

/// How long the token of a webhook must be remembered: as long as its signed time is accepted.
pub(crate) const TOKEN_LIFE: Duration = mailgun::WINDOW;

pub(crate) use mailgun::Mailgun;
pub(crate) use sendgrid::SendGrid;
pub(crate) use standard::Standard;
pub(crate) use twilio::Twilio;

/// HMAC-SHA256 over `parts`, compared in constant time.
fn hmac_sha256(secret: &[u8], parts: &[&[u8]], tag: &[u8]) -> Result<(), Unheard> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::verify(&key, &parts.concat(), tag).map_err(|_| Unheard::Signature)
}

/// A signed time within the window.
fn within_window(unix_seconds: i64, now: Timestamp, window: Duration) -> Result<(), Unheard> {
    let distance = now.unix_seconds().abs_diff(unix_seconds);
    if distance <= window.as_secs() {
        Ok(())
    } else {
        Err(Unheard::Signature)
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Unheard> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .ok_or(Unheard::Signature)
}

fn json(body: &[u8]) -> Result<Value, Unheard> {
    serde_json::from_slice(body).map_err(|_| Unheard::Unreadable)
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// Our id in a `Message-ID` of ours: `<id@domain>`.
pub(crate) fn id_in_message_id(message_id: &str) -> Option<NotificationId> {
    NotificationId::parse(
        message_id
            .trim()
            .trim_start_matches('<')
            .split('@')
            .next()?,
    )
}

/// A provider's words without the address that they may repeat.
pub(crate) fn without_address(words: &str, address: Option<&str>) -> String {
    match address.filter(|address| !address.is_empty()) {
        Some(address) => words.replace(address, "<recipient>"),
        None => words.to_owned(),
    }
}

/// A secret's bytes.
fn bytes(secret: &Secret) -> &[u8] {
    secret.expose().as_bytes()
}

#[cfg(test)]
mod tests;
