//! Webhooks: delivery reports that providers send over HTTP.
//!
//! The signature is verified over the raw body before anything else is parsed. Reports are stored
//! in an inbox that is unique per provider event. A status is merged from it by rank when it is
//! read, so that order and repetition of reports do not matter, and a report may precede the SENT
//! record.

mod mailgun;
mod sendgrid;
mod sns;
mod standard;
mod twilio;

use std::net::IpAddr;
use std::time::Duration;

use ::base64::Engine;
use ::base64::engine::general_purpose::STANDARD;
use aws_lc_rs::hmac;
use http::HeaderMap;
use postern_core::Secret;
use postern_core::clock::Timestamp;
use serde_json::Value;

pub(crate) use sns::{CertificateCache, SnsWebhook};

use crate::notification::NotificationId;
use crate::store::{ProviderReport, WebhookToken};

/// The configured webhook receivers. A request for another provider is answered as one with an
/// invalid signature.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    /// Twilio: SMS status.
    pub(crate) twilio: Option<TwilioWebhook>,
    /// Amazon SNS: e-mail events of SES.
    pub(crate) sns: Option<SnsWebhook>,
    /// SendGrid: e-mail events.
    pub(crate) sendgrid: Option<SendGridWebhook>,
    /// Mailgun: e-mail events.
    pub(crate) mailgun: Option<MailgunWebhook>,
    /// Standard Webhooks: any other provider.
    pub(crate) standard: Option<StandardWebhook>,
}

/// A webhook request as received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WebhookRequest<'a> {
    pub(crate) headers: &'a HeaderMap,
    /// The query without `?`.
    pub(crate) query: Option<&'a str>,
    pub(crate) body: &'a [u8],
    /// The client's address, if known.
    pub(crate) source: Option<IpAddr>,
    pub(crate) now: Timestamp,
}

/// The reports of a verified request, and the token that binds its signature to the body, if the
/// scheme of the provider does not cover the body.
pub(crate) type VerifiedWebhook = (Vec<ProviderReport>, Option<WebhookToken>);

/// The reason why a webhook request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebhookRejection {
    /// The signature is missing, invalid or expired, or the provider is not configured.
    Signature,
    /// The signature is valid and the body cannot be parsed.
    Unreadable,
    /// The provider's certificate cannot be fetched at present.
    Unavailable,
}

/// Maximum difference between a signed timestamp and the current time, for schemes without a window
/// of their own.
const SIGNATURE_WINDOW: Duration = Duration::from_secs(300);

impl Webhooks {
    /// Returns whether a provider is configured.
    pub(crate) fn have(&self, provider: &str) -> bool {
        match provider {
            "twilio" => self.twilio.is_some(),
            "sns" => self.sns.is_some(),
            "sendgrid" => self.sendgrid.is_some(),
            "mailgun" => self.mailgun.is_some(),
            "standard" => self.standard.is_some(),
            _ => false,
        }
    }

    /// Verifies and parses a provider's request.
    ///
    /// # Errors
    /// The reason for rejection. Nothing has been changed then.
    pub(crate) async fn read(
        &self,
        provider: &str,
        request: &WebhookRequest<'_>,
    ) -> Result<VerifiedWebhook, WebhookRejection> {
        let missing = WebhookRejection::Signature;
        let reports = match provider {
            "twilio" => self.twilio.as_ref().ok_or(missing)?.read(request)?,
            "sns" => self.sns.as_ref().ok_or(missing)?.read(request).await?,
            "sendgrid" => self.sendgrid.as_ref().ok_or(missing)?.read(request)?,
            "mailgun" => return self.mailgun.as_ref().ok_or(missing)?.read(request),
            "standard" => self.standard.as_ref().ok_or(missing)?.read(request)?,
            _ => return Err(missing),
        };
        Ok((reports, None))
    }
}

/// Time for which a webhook token is remembered: as long as its signed timestamp is accepted.
pub(crate) const WEBHOOK_TOKEN_TTL: Duration = mailgun::SIGNATURE_WINDOW;

pub(crate) use mailgun::MailgunWebhook;
pub(crate) use sendgrid::SendGridWebhook;
pub(crate) use standard::StandardWebhook;
pub(crate) use twilio::TwilioWebhook;

/// Verifies an HMAC-SHA256 over `parts` in constant time.
fn hmac_sha256(secret: &[u8], parts: &[&[u8]], tag: &[u8]) -> Result<(), WebhookRejection> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::verify(&key, &parts.concat(), tag).map_err(|_| WebhookRejection::Signature)
}

/// Checks that a signed timestamp is within `window` of `now`.
fn within_window(
    unix_seconds: &str,
    now: Timestamp,
    window: Duration,
) -> Result<(), WebhookRejection> {
    let signed = unix_seconds.parse().ok();
    let distance = signed.map(|signed| now.unix_seconds().abs_diff(signed));
    let is_within = distance.is_some_and(|distance| distance <= window.as_secs());
    is_within.then_some(()).ok_or(WebhookRejection::Signature)
}

fn base64(text: &str) -> Result<Vec<u8>, WebhookRejection> {
    let decoded = STANDARD.decode(text);
    decoded.map_err(|_| WebhookRejection::Signature)
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, WebhookRejection> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.ok_or(WebhookRejection::Signature)
}

fn json(body: &[u8]) -> Result<Value, WebhookRejection> {
    serde_json::from_slice(body).map_err(|_| WebhookRejection::Unreadable)
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// Returns the notification identifier in a `Message-ID` of this service, `<id@domain>`.
pub(crate) fn id_in_message_id(message_id: &str) -> Option<NotificationId> {
    let id = message_id.trim().trim_start_matches('<').split('@').next();
    NotificationId::parse(id?)
}

/// Replaces the recipient's address in a provider's description.
pub(crate) fn without_address(words: &str, address: Option<&str>) -> String {
    match address.filter(|address| !address.is_empty()) {
        Some(address) => words.replace(address, "<recipient>"),
        None => words.to_owned(),
    }
}

fn bytes(secret: &Secret) -> &[u8] {
    secret.expose().as_bytes()
}

#[cfg(test)]
mod tests;
