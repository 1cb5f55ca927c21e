//! SendGrid webhooks.

use std::time::Duration;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use postern_core::clock::Timestamp;
use serde_json::Value;

use super::{
    WebhookRejection, WebhookRequest, base64, header, id_in_message_id, json, text, within_window,
    without_address,
};
use crate::address::hash;
use crate::notification::NotificationId;
use crate::receipts::bounce::{conclude, judge};
use crate::store::ProviderReport;
use crate::store::row::ReceiptKind;

/// E-mail events of SendGrid (Signed Event Webhook): ECDSA on P-256 over timestamp and body.
#[derive(Debug)]
pub(crate) struct SendGridWebhook {
    key: Vec<u8>,
}

/// SendGrid batches events before sending; the timestamp is that of the sending.
const SIGNATURE_WINDOW: Duration = Duration::from_secs(600);

impl SendGridWebhook {
    /// Creates a receiver with the public key that SendGrid displays: base64 of a
    /// `SubjectPublicKeyInfo`. Returns `None` if it is not base64.
    pub(crate) fn new(public_key: &str) -> Option<Self> {
        let key = base64(public_key.trim()).ok();
        key.filter(|key| key.len() >= 65).map(|key| Self { key })
    }

    pub(super) fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<ProviderReport>, WebhookRejection> {
        let signature = header(request.headers, "x-twilio-email-event-webhook-signature")?;
        let timestamp = header(request.headers, "x-twilio-email-event-webhook-timestamp")?;
        let signature = base64(signature)?;
        within_window(timestamp, request.now, SIGNATURE_WINDOW)?;
        let signed = [timestamp.as_bytes(), request.body].concat();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.key)
            .verify(&signed, &signature)
            .map_err(|_| WebhookRejection::Signature)?;
        let Value::Array(events) = json(request.body)? else {
            return Err(WebhookRejection::Unreadable);
        };
        let reports = events.iter().filter_map(|event| report(request, event));
        Ok(reports.collect())
    }
}

pub(super) fn report(request: &WebhookRequest<'_>, event: &Value) -> Option<ProviderReport> {
    let name = text(event, "/event")?;
    let kind = match name {
        "processed" => ReceiptKind::Sent,
        "deferred" => ReceiptKind::Deferred,
        "delivered" | "spamreport" | "unsubscribe" | "group_unsubscribe" => ReceiptKind::Delivered,
        "bounce" | "dropped" => ReceiptKind::Failed,
        _ => return None,
    };
    let email = text(event, "/email");
    let description = text(event, "/reason").or_else(|| text(event, "/response"));
    let objection = match (name, description) {
        ("spamreport", _) | ("dropped", Some("Spam Reporting Address")) => Some("complained"),
        ("unsubscribe" | "group_unsubscribe", _) | ("dropped", Some("Unsubscribed Address")) => {
            Some("unsubscribed")
        }
        _ => None,
    };
    // The type `blocked` is a refusal of this message.
    let bounce = (name == "bounce" && text(event, "/type") == Some("bounce")).then(|| {
        let status = text(event, "/status").unwrap_or("5.0.0");
        judge(description.unwrap_or_default(), status)
    });
    let code = objection.or_else(|| text(event, "/status"));
    let (kind, code, dead) = conclude(kind, code.map(str::to_owned), bounce);
    let by_argument = text(event, "/notificationId").and_then(NotificationId::parse);
    let seconds = event.get("timestamp").and_then(Value::as_i64);
    Some(ProviderReport {
        event_id: text(event, "/sg_event_id")?.to_owned(),
        id: by_argument.or_else(|| id_in_message_id(text(event, "/smtp-id")?)),
        kind,
        at: seconds.map_or(request.now, Timestamp::from_unix_seconds),
        code,
        detail: description.map(|description| without_address(description, email)),
        dead_address: email.filter(|_| dead).map(str::to_owned),
        objector: email.filter(|_| objection.is_some()).map(hash),
    })
}
