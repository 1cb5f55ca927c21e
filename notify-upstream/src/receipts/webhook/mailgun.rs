//! Mailgun webhooks.

use std::time::Duration;

use postern_core::Secret;
use postern_core::clock::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    WebhookRejection, WebhookRequest, bytes, hmac_sha256, id_in_message_id, json, text,
    within_window, without_address,
};
use crate::address::hash;
use crate::notification::NotificationId;
use crate::receipts::bounce::{conclude, judge};
use crate::store::ProviderReport;
use crate::store::WebhookToken;
use crate::store::row::ReceiptKind;

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
    ) -> Result<Vec<ProviderReport>, WebhookRejection> {
        let body = json(request.body).map_err(|_| WebhookRejection::Signature)?;
        let part = |name: &str| {
            text(&body, &format!("/signature/{name}")).ok_or(WebhookRejection::Signature)
        };
        let (timestamp, token, signature) =
            (part("timestamp")?, part("token")?, part("signature")?);
        let tag = hex::decode(signature).map_err(|_| WebhookRejection::Signature)?;
        hmac_sha256(
            bytes(&self.signing_key),
            &[timestamp.as_bytes(), token.as_bytes()],
            &tag,
        )?;
        within_window(timestamp, request.now, SIGNATURE_WINDOW)?;
        let event = body.get("event-data").ok_or(WebhookRejection::Unreadable)?;
        Ok(report(request, event).into_iter().collect())
    }

    /// Returns the token that binds the signature to this body. Call it only after
    /// [`MailgunWebhook::read`] has verified the signature.
    pub(super) fn token(request: &WebhookRequest<'_>) -> Option<WebhookToken> {
        let body = json(request.body).ok()?;
        let part = |name: &str| text(&body, &format!("/signature/{name}"));
        // Concatenated as signed, so that moving characters between the two fields yields the same
        // token.
        let token = format!("{}{}", part("timestamp")?, part("token")?);
        Some(WebhookToken {
            provider: "mailgun",
            token,
            body: Sha256::digest(request.body).into(),
        })
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
    let description = text(event, "/delivery-status/description")
        .filter(|description| !description.is_empty())
        .or_else(|| text(event, "/delivery-status/message"));
    let code = event
        .pointer("/delivery-status/code")
        .map(ToString::to_string);
    let bounce = (permanent && objection.is_none()).then(|| {
        let reply = format!(
            "{} {}",
            code.as_deref().unwrap_or_default(),
            description.unwrap_or_default()
        );
        let is_bounce = matches!(reason, "bounce" | "suppress-bounce");
        let status = text(event, "/delivery-status/enhanced-code");
        judge(
            &reply,
            status.unwrap_or(if is_bounce { "5.0.0" } else { "" }),
        )
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
    let seconds = event
        .get("timestamp")?
        .as_f64()
        .filter(|seconds| (0.0..7e9).contains(seconds))?;
    Some(Timestamp((seconds * 1000.0) as i64))
}
