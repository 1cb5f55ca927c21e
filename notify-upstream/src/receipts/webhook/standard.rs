use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use postern_common::Secret;
use postern_common::clock::Timestamp;

use super::{Incoming, Unheard, WINDOW, header, hmac_sha256, json, text, within_window};
use crate::delivery::report::Report;
use crate::notification::NotificationId;
use crate::store::row::ReceiptKind;

/// Standard Webhooks (standardwebhooks.com, symmetric `v1`), for providers without built-in
/// support: `{"type": "notification.delivered", "timestamp": "…", "data": {"notificationId": "…",
/// "code"?, "detail"?}}`. The type ends with `sent`, `deferred`, `delivered`, `failed` or
/// `bounced`.
#[derive(Debug)]
pub(crate) struct Standard {
    key: Secret,
}

impl Standard {
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

    pub(super) fn read(&self, incoming: &Incoming<'_>) -> Result<Vec<Report>, Unheard> {
        let Signature {
            id,
            timestamp,
            tags,
        } = signature(incoming.headers, incoming.now)?;
        let key = STANDARD
            .decode(self.key.expose())
            .map_err(|_| Unheard::Signature)?;
        let parts: [&[u8]; 5] = [
            id.as_bytes(),
            b".",
            timestamp.as_bytes(),
            b".",
            incoming.body,
        ];
        if !tags
            .iter()
            .any(|tag| hmac_sha256(&key, &parts, tag).is_ok())
        {
            return Err(Unheard::Signature);
        }
        report(incoming, id).map(|report| vec![report])
    }
}

/// The signature headers.
pub(super) struct Signature<'a> {
    id: &'a str,
    timestamp: &'a str,
    /// More than one during rotation of a secret.
    tags: Vec<Vec<u8>>,
}

/// Maximum number of signatures that are tried.
const MAX_TAGS: usize = 8;

/// Parses the signature headers. The timestamp is within the window, and at least one signature has
/// the right length.
pub(super) fn signature(headers: &HeaderMap, now: Timestamp) -> Result<Signature<'_>, Unheard> {
    let id = header(headers, "webhook-id")?;
    let timestamp = header(headers, "webhook-timestamp")?;
    let signatures = header(headers, "webhook-signature")?;
    within_window(
        timestamp.parse().map_err(|_| Unheard::Signature)?,
        now,
        WINDOW,
    )?;
    let encoded = signatures
        .split(' ')
        .take(MAX_TAGS)
        .filter_map(|one| one.strip_prefix("v1,"));
    let tags: Vec<Vec<u8>> = encoded
        .filter_map(|one| STANDARD.decode(one).ok())
        .filter(|tag| tag.len() == 32)
        .collect();
    if tags.is_empty() {
        Err(Unheard::Signature)
    } else {
        Ok(Signature {
            id,
            timestamp,
            tags,
        })
    }
}

fn report(incoming: &Incoming<'_>, event_id: &str) -> Result<Report, Unheard> {
    let body = json(incoming.body)?;
    let name = text(&body, "/type").ok_or(Unheard::Unreadable)?;
    let kind = match name.rsplit('.').next().unwrap_or_default() {
        "sent" => ReceiptKind::Sent,
        "deferred" => ReceiptKind::Deferred,
        "delivered" => ReceiptKind::Delivered,
        "failed" => ReceiptKind::Failed,
        "bounced" => ReceiptKind::Bounced,
        _ => return Err(Unheard::Unreadable),
    };
    Ok(Report {
        event_id: event_id.to_owned(),
        id: Some(
            text(&body, "/data/notificationId")
                .and_then(NotificationId::parse)
                .ok_or(Unheard::Unreadable)?,
        ),
        kind,
        at: text(&body, "/timestamp")
            .and_then(Timestamp::parse)
            .unwrap_or(incoming.now),
        code: text(&body, "/data/code").map(str::to_owned),
        detail: text(&body, "/data/detail").map(str::to_owned),
        dead_address: None,
    })
}
