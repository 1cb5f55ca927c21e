//! Twilio webhooks.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use postern_common::Secret;
use url::Url;

use super::{WebhookRejection, WebhookRequest, bytes, header};
use crate::delivery::report::ProviderReport;
use crate::notification::NotificationId;
use crate::store::row::ReceiptKind;

/// SMS status callbacks of Twilio (twilio.com/docs/usage/security): HMAC-SHA1 over the URL and the
/// sorted form fields.
#[derive(Debug)]
pub(crate) struct TwilioWebhook {
    /// The account's auth token.
    pub(crate) auth_token: Secret,
    /// The callback URL configured at Twilio, without its query.
    pub(crate) url: Url,
}

impl TwilioWebhook {
    pub(super) fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<ProviderReport>, WebhookRejection> {
        let tag = signature(request.headers)?;
        let mut form: Vec<(String, String)> = url::form_urlencoded::parse(request.body)
            .into_owned()
            .collect();
        form.sort();
        let mut signed = self.url.to_string();
        if let Some(query) = request.query {
            signed.push('?');
            signed.push_str(query);
        }
        for (name, value) in &form {
            signed.push_str(name);
            signed.push_str(value);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, bytes(&self.auth_token));
        hmac::verify(&key, signed.as_bytes(), &tag).map_err(|_| WebhookRejection::Signature)?;
        Ok(report(request, &form).into_iter().collect())
    }
}

/// Returns the HMAC in the header, 20 bytes.
pub(super) fn signature(headers: &HeaderMap) -> Result<Vec<u8>, WebhookRejection> {
    let sent = header(headers, "x-twilio-signature")?;
    STANDARD
        .decode(sent)
        .ok()
        .filter(|tag| tag.len() == 20)
        .ok_or(WebhookRejection::Signature)
}

fn report(request: &WebhookRequest<'_>, form: &[(String, String)]) -> Option<ProviderReport> {
    let field = |name: &str| {
        form.iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    let status = field("MessageStatus").or_else(|| field("SmsStatus"))?;
    let error = field("ErrorCode").filter(|code| !code.is_empty());
    let kind = match status {
        "delivered" | "read" => ReceiptKind::Delivered,
        "undelivered" if error.is_some_and(proves_invalid) => ReceiptKind::Bounced,
        "undelivered" | "failed" => ReceiptKind::Failed,
        "accepted" | "queued" | "sending" | "sent" => ReceiptKind::Sent,
        _ => return None,
    };
    let query = url::form_urlencoded::parse(request.query.unwrap_or_default().as_bytes());
    let id = query
        .into_owned()
        .find(|(name, _)| name == "id")
        .and_then(|(_, id)| NotificationId::parse(&id));
    Some(ProviderReport {
        event_id: format!(
            "{}/{status}",
            field("MessageSid").or_else(|| field("SmsSid"))?
        ),
        id,
        kind,
        at: request.now,
        code: error.map(str::to_owned),
        detail: Some(status.to_owned()),
        dead_address: error
            .filter(|code| proves_invalid(code))
            .and_then(|_| field("To"))
            .map(str::to_owned),
    })
}

/// Returns whether an error code proves that the number does not exist. 30005: unknown destination.
/// 30006 does not: "landline or unreachable carrier".
fn proves_invalid(code: &str) -> bool {
    code == "30005"
}
