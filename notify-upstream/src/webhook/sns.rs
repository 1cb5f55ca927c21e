//! Mail events of Amazon SES, by Amazon SNS (docs.aws.amazon.com/sns, "Verifying the signatures of Amazon SNS messages").

mod certificate;

use std::time::Duration;

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_common::clock::Timestamp;
use serde_json::Value;
use url::Url;

pub use certificate::Certificates;
#[cfg(test)]
pub(super) use certificate::public_key;

use super::{Incoming, Report, Unheard, id_in_message_id, json, text, within_window, without_address};
use crate::store::row::ReceiptKind;

/// The topics that we believe, and the certificates that they are signed with. Anyone with an account at Amazon can have
/// SNS sign something: the topic decides.
#[derive(Debug)]
pub struct Sns {
    /// ARNs of our topics.
    pub topics: Vec<String>,
    /// Signing certificates.
    pub certificates: Certificates,
}

/// SNS repeats a delivery with its first timestamp for up to an hour.
const WINDOW: Duration = Duration::from_secs(3700);

impl Sns {
    pub(super) async fn read(&self, incoming: &Incoming<'_>) -> Result<Vec<Report>, Unheard> {
        let body = json(incoming.body).map_err(|_| Unheard::Signature)?;
        let part = |name: &str| text(&body, &format!("/{name}")).ok_or(Unheard::Signature);
        if !self.topics.iter().any(|topic| part("TopicArn") == Ok(topic)) {
            return Err(Unheard::Signature);
        }
        let url = amazon_url(part("SigningCertURL")?)
            .filter(|url| url.path().ends_with(".pem"))
            .ok_or(Unheard::Signature)?;
        let signature = STANDARD.decode(part("Signature")?).map_err(|_| Unheard::Signature)?;
        let signed = signed_text(&body).ok_or(Unheard::Signature)?;
        let key = self.certificates.public_key(&url).await?;
        let algorithm = match part("SignatureVersion")? {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(Unheard::Signature),
        };
        UnparsedPublicKey::new(algorithm, &*key)
            .verify(signed.as_bytes(), &signature)
            .map_err(|_| Unheard::Signature)?;
        let sent_at = Timestamp::parse(part("Timestamp")?).ok_or(Unheard::Signature)?;
        within_window(sent_at.unix_seconds(), incoming.now, WINDOW)?;
        match part("Type")? {
            "Notification" => {
                let event: Value = serde_json::from_str(part("Message")?).map_err(|_| Unheard::Unreadable)?;
                Ok(report(incoming, part("MessageId")?, &event).into_iter().collect())
            }
            "SubscriptionConfirmation" => {
                let url = amazon_url(part("SubscribeURL")?).ok_or(Unheard::Unreadable)?;
                self.certificates.visit(&url).await?;
                tracing::info!(topic = part("TopicArn")?, "subscription confirmed");
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// `https://sns.{region}.amazonaws.com` (or `.com.cn`), nothing else: whoever could name another place could sign.
fn amazon_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?;
    let region = host.strip_prefix("sns.")?;
    let region =
        region.strip_suffix(".amazonaws.com").or_else(|| region.strip_suffix(".amazonaws.com.cn"))?;
    let sound = url.scheme() == "https"
        && url.port().is_none()
        && url.username().is_empty()
        && region.len() >= 3
        && region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    sound.then_some(url)
}

/// Name and value, a line each, of the fields that are signed, in the order of their names.
fn signed_text(body: &Value) -> Option<String> {
    let names: &[&str] = match text(body, "/Type")? {
        "Notification" => &["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
        _ => &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
    };
    let mut signed = String::new();
    for name in names {
        match body.get(*name) {
            Some(Value::String(value)) => {
                signed.push_str(name);
                signed.push('\n');
                signed.push_str(value);
                signed.push('\n');
            }
            None | Some(Value::Null) if *name == "Subject" => {}
            _ => return None,
        }
    }
    Some(signed)
}

fn report(incoming: &Incoming<'_>, event_id: &str, event: &Value) -> Option<Report> {
    let name = text(event, "/eventType").or_else(|| text(event, "/notificationType"))?;
    let hard = text(event, "/bounce/bounceType") == Some("Permanent");
    let kind = match name {
        "Send" => ReceiptKind::Sent,
        "DeliveryDelay" => ReceiptKind::Deferred,
        "Delivery" => ReceiptKind::Delivered,
        "Bounce" if hard => ReceiptKind::Bounced,
        "Bounce" | "Reject" | "Rendering Failure" => ReceiptKind::Failed,
        _ => return None,
    };
    let recipient = text(event, "/mail/destination/0");
    let words = text(event, "/bounce/bouncedRecipients/0/diagnosticCode")
        .or_else(|| text(event, "/delivery/smtpResponse"));
    let times = ["/delivery/timestamp", "/bounce/timestamp", "/deliveryDelay/timestamp", "/mail/timestamp"];
    Some(Report {
        event_id: event_id.to_owned(),
        id: message_id(event).and_then(id_in_message_id),
        kind,
        at: times.iter().find_map(|pointer| Timestamp::parse(text(event, pointer)?)).unwrap_or(incoming.now),
        code: text(event, "/bounce/bouncedRecipients/0/status").map(str::to_owned),
        detail: words.map(|words| without_address(words, recipient)),
        dead_address: text(event, "/bounce/bouncedRecipients/0/emailAddress")
            .filter(|_| hard)
            .map(str::to_owned),
    })
}

/// The `Message-ID` that we gave; SES puts one of its own beside it.
fn message_id(event: &Value) -> Option<&str> {
    let headers = event.pointer("/mail/headers").and_then(Value::as_array);
    let ours = headers
        .into_iter()
        .flatten()
        .find(|header| text(header, "/name").is_some_and(|name| name.eq_ignore_ascii_case("message-id")));
    ours.and_then(|header| text(header, "/value")).or_else(|| text(event, "/mail/commonHeaders/messageId"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_amazon_is_asked_for_certificates() {
        assert!(amazon_url("https://sns.us-west-2.amazonaws.com/x.pem").is_some());
        assert!(amazon_url("https://sns.cn-north-1.amazonaws.com.cn/x.pem").is_some());
        for bad in [
            "http://sns.us-west-2.amazonaws.com/x.pem",
            "https://sns.us-west-2.amazonaws.com.evil.example/x.pem",
            "https://evil.example/sns.us-west-2.amazonaws.com",
            "https://sns.evil.example#.amazonaws.com/x.pem",
            "https://x@sns.us-west-2.amazonaws.com/x.pem",
            "https://sns.a.b.amazonaws.com/x.pem",
            "https://s3.amazonaws.com/x.pem",
            "https://sns.us-west-2.amazonaws.com:8443/x.pem",
        ] {
            assert!(amazon_url(bad).is_none(), "{bad}");
        }
    }
}
