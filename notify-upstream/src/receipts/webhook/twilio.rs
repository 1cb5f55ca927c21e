//! Twilio webhooks.

use aws_lc_rs::hmac;
use postern_core::Secret;
use url::Url;

use super::{WebhookRejection, WebhookRequest, base64, bytes, header};
use crate::notification::NotificationId;
use crate::store::ProviderReport;
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
        let tag = base64(header(request.headers, "x-twilio-signature")?)?;
        let form = url::form_urlencoded::parse(request.body).into_owned();
        let mut form: Vec<(String, String)> = form.collect();
        form.sort();
        let fields: String = form
            .iter()
            .flat_map(|(name, value)| [&**name, value])
            .collect();
        let query = request
            .query
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, bytes(&self.auth_token));
        // Twilio signs the URL with or without its port, as its own validators accept.
        let port = self
            .url
            .port_or_known_default()
            .map(|port| format!(":{port}"));
        let is_signed = |port: &String| {
            let (host, path) = (self.url.host_str().unwrap_or_default(), self.url.path());
            let url = format!("{}://{host}{port}{path}{query}", self.url.scheme());
            hmac::verify(&key, format!("{url}{fields}").as_bytes(), &tag).is_ok()
        };
        if ![Some(String::new()), port].iter().flatten().any(is_signed) {
            return Err(WebhookRejection::Signature);
        }
        Ok(report(request, &form).into_iter().collect())
    }
}

fn report(request: &WebhookRequest<'_>, form: &[(String, String)]) -> Option<ProviderReport> {
    let field = |name: &str| {
        let found = form.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    };
    let status = field("MessageStatus").or_else(|| field("SmsStatus"))?;
    let error = field("ErrorCode").filter(|code| !code.is_empty());
    let kind = match status {
        "delivered" | "read" => ReceiptKind::Delivered,
        "undelivered" if error.is_some_and(proves_invalid) => ReceiptKind::Bounced,
        "undelivered" | "failed" | "canceled" | "partially_delivered" => ReceiptKind::Failed,
        "accepted" | "scheduled" | "queued" | "sending" | "sent" => ReceiptKind::Sent,
        _ => return None,
    };
    let mut query = url::form_urlencoded::parse(request.query.unwrap_or_default().as_bytes());
    let id = query.find(|(name, _)| name == "id");
    let message = field("MessageSid").or_else(|| field("SmsSid"))?;
    let dead = error
        .filter(|code| proves_invalid(code))
        .and_then(|_| field("To"));
    Some(ProviderReport {
        event_id: format!("{message}/{status}"),
        id: id.and_then(|(_, id)| NotificationId::parse(&id)),
        kind,
        at: request.now,
        code: error.map(str::to_owned),
        detail: Some(status.to_owned()),
        dead_address: dead.map(str::to_owned),
        objector: None,
    })
}

/// Returns whether an error code proves that the number does not exist. 30005: unknown destination.
/// 30006 does not: "landline or unreachable carrier".
fn proves_invalid(code: &str) -> bool {
    code == "30005"
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::base64::Engine;
    use ::base64::engine::general_purpose::STANDARD;
    use http::HeaderMap;
    use postern_core::clock::Timestamp;

    fn read(public: &str, signed: &str, status: &str) -> Option<ReceiptKind> {
        let webhook = TwilioWebhook {
            auth_token: Secret::from("12345"),
            url: public.parse().expect("URL"),
        };
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"12345");
        let text = format!("{signed}?id=xMessageSidSM1MessageStatus{status}");
        let tag = STANDARD.encode(hmac::sign(&key, text.as_bytes()));
        let mut headers = HeaderMap::new();
        headers.insert("x-twilio-signature", tag.parse().expect("a header"));
        let body = format!("MessageSid=SM1&MessageStatus={status}");
        let request = WebhookRequest {
            headers: &headers,
            query: Some("id=x"),
            body: body.as_bytes(),
            source: None,
            now: Timestamp(0),
        };
        Some(webhook.read(&request).ok()?.first()?.kind)
    }

    #[test]
    fn url_is_signed_with_or_without_its_port() {
        let (bare, default) = ("https://gw.example/twilio", "https://gw.example:443/twilio");
        let other = "https://gw.example:8443/twilio";
        let sent = Some(ReceiptKind::Sent);
        for (public, signed, expected) in [
            (bare, bare, sent),
            (bare, default, sent),
            (default, bare, sent),
            (other, other, sent),
            (other, bare, sent),
            (bare, other, None),
            (other, default, None),
            (bare, "http://gw.example/twilio", None),
        ] {
            assert_eq!(read(public, signed, "sent"), expected, "{public} {signed}");
        }
    }

    /// twilio.com/docs/messaging/api/message-resource#message-status-values
    #[test]
    fn every_status_of_a_message_is_understood() {
        let url = "https://gw.example/twilio";
        for (status, expected) in [
            ("accepted", Some(ReceiptKind::Sent)),
            ("scheduled", Some(ReceiptKind::Sent)),
            ("queued", Some(ReceiptKind::Sent)),
            ("sending", Some(ReceiptKind::Sent)),
            ("delivered", Some(ReceiptKind::Delivered)),
            ("read", Some(ReceiptKind::Delivered)),
            ("undelivered", Some(ReceiptKind::Failed)),
            ("failed", Some(ReceiptKind::Failed)),
            ("canceled", Some(ReceiptKind::Failed)),
            ("partially_delivered", Some(ReceiptKind::Failed)),
            ("received", None),
        ] {
            assert_eq!(read(url, url, status), expected, "{status}");
        }
    }
}
