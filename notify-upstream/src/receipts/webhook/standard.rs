//! Standard Webhooks.

use postern_core::Secret;
use postern_core::clock::Timestamp;

use super::{
    SIGNATURE_WINDOW, WebhookRejection, WebhookRequest, base64, header, hmac_sha256, json, text,
    within_window,
};
use crate::address::hash;
use crate::notification::NotificationId;
use crate::store::ProviderReport;
use crate::store::row::ReceiptKind;

/// Standard Webhooks (standardwebhooks.com, symmetric `v1`), for providers without built-in
/// support: `{"type": "notification.delivered", "timestamp": "…", "data": {"notificationId": "…",
/// "code"?, "detail"?, "recipient"?}}`. The type ends with `sent`, `deferred`, `delivered`,
/// `failed`, `bounced`, `complained` or `unsubscribed`; the last two require the recipient.
#[derive(Debug)]
pub(crate) struct StandardWebhook {
    /// Stored encoded, because `Secret` holds text.
    key: Secret,
}

impl StandardWebhook {
    /// Creates a receiver with a secret in the format of the standard: base64, with or without the
    /// prefix `whsec_`. Returns `None` if it is not base64.
    pub(crate) fn new(secret: &Secret) -> Option<Self> {
        let encoded = secret.expose();
        let encoded = encoded.strip_prefix("whsec_").unwrap_or(encoded);
        base64(encoded).ok().filter(|key| !key.is_empty())?;
        let key = Secret::from(encoded);
        Some(Self { key })
    }

    pub(super) fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<ProviderReport>, WebhookRejection> {
        let id = header(request.headers, "webhook-id")?;
        let timestamp = header(request.headers, "webhook-timestamp")?;
        let signatures = header(request.headers, "webhook-signature")?;
        within_window(timestamp, request.now, SIGNATURE_WINDOW)?;
        let key = base64(self.key.expose())?;
        let head = format!("{id}.{timestamp}.");
        let parts = [head.as_bytes(), request.body];
        // More than one during rotation of a secret.
        let mut encoded = signatures.split(' ').take(MAX_SIGNATURES);
        if !encoded.any(|one| {
            let tag = one.strip_prefix("v1,").map(base64);
            tag.is_some_and(|tag| hmac_sha256(&key, &parts, &tag.unwrap_or_default()).is_ok())
        }) {
            return Err(WebhookRejection::Signature);
        }
        report(request, id).map(|report| vec![report])
    }
}

/// Maximum number of signatures that are tried.
const MAX_SIGNATURES: usize = 8;

pub(super) fn report(
    request: &WebhookRequest<'_>,
    event_id: &str,
) -> Result<ProviderReport, WebhookRejection> {
    let body = json(request.body)?;
    let name = text(&body, "/type").ok_or(WebhookRejection::Unreadable)?;
    let last = name.rsplit('.').next().unwrap_or_default();
    let objection = Some(last).filter(|last| matches!(*last, "complained" | "unsubscribed"));
    let id = text(&body, "/data/notificationId").and_then(NotificationId::parse);
    let at = text(&body, "/timestamp").and_then(Timestamp::parse);
    let kind = match last {
        "sent" => ReceiptKind::Sent,
        "deferred" => ReceiptKind::Deferred,
        "delivered" | "complained" | "unsubscribed" => ReceiptKind::Delivered,
        "failed" => ReceiptKind::Failed,
        "bounced" => ReceiptKind::Bounced,
        _ => return Err(WebhookRejection::Unreadable),
    };
    Ok(ProviderReport {
        event_id: event_id.to_owned(),
        id: Some(id.ok_or(WebhookRejection::Unreadable)?),
        kind,
        at: at.unwrap_or(request.now),
        code: objection.or(text(&body, "/data/code")).map(str::to_owned),
        detail: text(&body, "/data/detail").map(str::to_owned),
        dead_address: None,
        objector: objection
            .map(|_| text(&body, "/data/recipient").ok_or(WebhookRejection::Unreadable))
            .transpose()?
            .map(hash),
    })
}
