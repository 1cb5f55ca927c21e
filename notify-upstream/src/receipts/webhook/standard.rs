//! Standard Webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use postern_common::Secret;
use postern_common::clock::Timestamp;

use super::{
    SIGNATURE_WINDOW, WebhookRejection, WebhookRequest, header, hmac_sha256, json, text,
    within_window,
};
use crate::delivery::report::ProviderReport;
use crate::notification::NotificationId;
use crate::store::row::ReceiptKind;

/// Standard Webhooks (standardwebhooks.com, symmetric `v1`), for providers without built-in
/// support: `{"type": "notification.delivered", "timestamp": "…", "data": {"notificationId": "…",
/// "code"?, "detail"?}}`. The type ends with `sent`, `deferred`, `delivered`, `failed` or
/// `bounced`.
#[derive(Debug)]
pub(crate) struct StandardWebhook {
    key: Secret,
}

impl StandardWebhook {
    /// Creates a receiver with a secret in the format of the standard: base64, with or without the
    /// prefix `whsec_`. Returns `None` if it is not base64.
    #[must_use]
    pub(crate) fn new(secret: &Secret) -> Option<Self> {
        let encoded = secret
            .expose()
            .strip_prefix("whsec_")
            .unwrap_or(secret.expose());
        let key = STANDARD
            .decode(encoded)
            .ok()
            .filter(|key| !key.is_empty())?;
        // Stored encoded because `Secret` holds text. Decoding it for each request is negligible
        // beside the HMAC.
        Some(Self {
            key: Secret::new(STANDARD.encode(key)),
        })
    }

    pub(super) fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<ProviderReport>, WebhookRejection> {
        let SignatureHeaders {
            id,
            timestamp,
            tags,
        } = signature(request.headers, request.now)?;
        let key = STANDARD
            .decode(self.key.expose())
            .map_err(|_| WebhookRejection::Signature)?;
        let parts: [&[u8]; 5] = [
            id.as_bytes(),
            b".",
            timestamp.as_bytes(),
            b".",
            request.body,
        ];
        if !tags
            .iter()
            .any(|tag| hmac_sha256(&key, &parts, tag).is_ok())
        {
            return Err(WebhookRejection::Signature);
        }
        report(request, id).map(|report| vec![report])
    }
}

/// The signature headers.
pub(super) struct SignatureHeaders<'a> {
    id: &'a str,
    timestamp: &'a str,
    /// More than one during rotation of a secret.
    tags: Vec<Vec<u8>>,
}

/// Maximum number of signatures that are tried.
const MAX_SIGNATURES: usize = 8;

/// Parses the signature headers. The timestamp is within the window, and at least one signature has
/// the right length.
pub(super) fn signature(
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<SignatureHeaders<'_>, WebhookRejection> {
    let id = header(headers, "webhook-id")?;
    let timestamp = header(headers, "webhook-timestamp")?;
    let signatures = header(headers, "webhook-signature")?;
    within_window(
        timestamp.parse().map_err(|_| WebhookRejection::Signature)?,
        now,
        SIGNATURE_WINDOW,
    )?;
    let encoded = signatures
        .split(' ')
        .take(MAX_SIGNATURES)
        .filter_map(|one| one.strip_prefix("v1,"));
    let tags: Vec<Vec<u8>> = encoded
        .filter_map(|one| STANDARD.decode(one).ok())
        .filter(|tag| tag.len() == 32)
        .collect();
    if tags.is_empty() {
        Err(WebhookRejection::Signature)
    } else {
        Ok(SignatureHeaders {
            id,
            timestamp,
            tags,
        })
    }
}

fn report(
    request: &WebhookRequest<'_>,
    event_id: &str,
) -> Result<ProviderReport, WebhookRejection> {
    let body = json(request.body)?;
    let name = text(&body, "/type").ok_or(WebhookRejection::Unreadable)?;
    let kind = match name.rsplit('.').next().unwrap_or_default() {
        "sent" => ReceiptKind::Sent,
        "deferred" => ReceiptKind::Deferred,
        "delivered" => ReceiptKind::Delivered,
        "failed" => ReceiptKind::Failed,
        "bounced" => ReceiptKind::Bounced,
        _ => return Err(WebhookRejection::Unreadable),
    };
    Ok(ProviderReport {
        event_id: event_id.to_owned(),
        id: Some(
            text(&body, "/data/notificationId")
                .and_then(NotificationId::parse)
                .ok_or(WebhookRejection::Unreadable)?,
        ),
        kind,
        at: text(&body, "/timestamp")
            .and_then(Timestamp::parse)
            .unwrap_or(request.now),
        code: text(&body, "/data/code").map(str::to_owned),
        detail: text(&body, "/data/detail").map(str::to_owned),
        dead_address: None,
        objector: None,
    })
}
