//! Mailgun webhooks.

use std::time::Duration;

use postern_core::Secret;
use postern_core::clock::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    VerifiedWebhook, WebhookRejection, WebhookRequest, bytes, hmac_sha256, id_in_message_id, json,
    text, within_window, without_address,
};
use crate::address::hash;
use crate::notification::NotificationId;
use crate::receipts::bounce::{conclude, judge};
use crate::store::row::ReceiptKind;
use crate::store::{ProviderReport, WebhookToken};

/// E-mail events of Mailgun (documentation.mailgun.com, "Securing webhooks"): HMAC-SHA256 over
/// timestamp and token, both in the body beside the signature. The event itself is not signed, so a
/// token is bound to the first body that it arrives with.
#[derive(Debug)]
pub(crate) struct MailgunWebhook {
    /// The account's webhook signing key.
    pub(crate) signing_key: Secret,
}

/// Mailgun repeats a webhook with its first timestamp for up to eight hours. The inbox detects
/// repetitions by event identifier.
pub(super) const SIGNATURE_WINDOW: Duration = Duration::from_secs(9 * 3600);

impl MailgunWebhook {
    pub(super) fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<VerifiedWebhook, WebhookRejection> {
        let body = json(request.body).map_err(|_| WebhookRejection::Signature)?;
        let part = |name: &str| {
            text(&body, &format!("/signature/{name}")).ok_or(WebhookRejection::Signature)
        };
        let timestamp = part("timestamp")?;
        // Concatenated as signed, so that moving characters between the two fields yields the same
        // token.
        let token = format!("{timestamp}{}", part("token")?);
        let tag = hex::decode(part("signature")?).map_err(|_| WebhookRejection::Signature)?;
        hmac_sha256(bytes(&self.signing_key), &[token.as_bytes()], &tag)?;
        within_window(timestamp, request.now, SIGNATURE_WINDOW)?;
        let event = body.get("event-data").ok_or(WebhookRejection::Unreadable)?;
        let reports = report(request, event).into_iter().collect();
        let body = Sha256::digest(request.body).into();
        Ok((reports, Some(WebhookToken { token, body })))
    }
}

pub(super) fn report(request: &WebhookRequest<'_>, event: &Value) -> Option<ProviderReport> {
    let permanent = text(event, "/severity") == Some("permanent");
    let reason = text(event, "/reason").unwrap_or_default();
    let name = text(event, "/event")?;
    let kind = match name {
        "accepted" => ReceiptKind::Sent,
        "delivered" | "complained" | "unsubscribed" => ReceiptKind::Delivered,
        "failed" if permanent => ReceiptKind::Failed,
        "failed" => ReceiptKind::Deferred,
        "rejected" => ReceiptKind::Failed,
        _ => return None,
    };
    let objection = match (name, reason) {
        ("complained", _) | ("failed", "suppress-complaint") => Some("complained"),
        ("unsubscribed", _) | ("failed", "suppress-unsubscribe") => Some("unsubscribed"),
        _ => None,
    };
    let by_variable = text(event, "/user-variables/notificationId").and_then(NotificationId::parse);
    let recipient = text(event, "/recipient");
    let description = text(event, "/delivery-status/description").filter(|text| !text.is_empty());
    let description = description.or_else(|| text(event, "/delivery-status/message"));
    let code = event
        .pointer("/delivery-status/code")
        .map(ToString::to_string);
    let bounce = (permanent && objection.is_none()).then(|| {
        let code = code.as_deref().unwrap_or_default();
        let reply = format!("{code} {}", description.unwrap_or_default());
        let status = text(event, "/delivery-status/enhanced-code").unwrap_or(match reason {
            "bounce" | "suppress-bounce" => "5.0.0",
            _ => "",
        });
        judge(&reply, status)
    });
    let (kind, code, dead) = conclude(kind, objection.map(str::to_owned).or(code), bounce);
    Some(ProviderReport {
        event_id: text(event, "/id")?.to_owned(),
        id: by_variable.or_else(|| id_in_message_id(text(event, "/message/headers/message-id")?)),
        kind,
        at: at(event).unwrap_or(request.now),
        code,
        detail: description.map(|description| without_address(description, recipient)),
        dead_address: recipient.filter(|_| dead).map(str::to_owned),
        objector: recipient.filter(|_| objection.is_some()).map(hash),
    })
}

/// Parses Unix seconds with a fraction.
#[expect(
    clippy::cast_possible_truncation,
    reason = "milliseconds of the year 2200 are below 2^53"
)]
fn at(event: &Value) -> Option<Timestamp> {
    let seconds = event.get("timestamp")?.as_f64()?;
    (0.0..7e9)
        .contains(&seconds)
        .then_some(Timestamp((seconds * 1000.0) as i64))
}
