//! E-mail events of Amazon SES through Amazon SNS (docs.aws.amazon.com/sns, "Verifying the
//! signatures of Amazon SNS messages").

mod certificate;

use std::time::Duration;

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
};
use postern_core::clock::Timestamp;
use postern_core::identity::partition_domain;
use serde_json::Value;
use url::Url;

pub(crate) use certificate::CertificateCache;
#[cfg(test)]
pub(super) use certificate::SigningCertificate;

use super::{
    WebhookRejection, WebhookRequest, base64, id_in_message_id, json, text, within_window,
    without_address,
};
use crate::address::hash;
use crate::receipts::bounce::{conclude, is_objection, judge};
use crate::store::ProviderReport;
use crate::store::row::ReceiptKind;

/// The accepted topics and their signing certificates. Any AWS account can have SNS sign messages,
/// so the topic determines authenticity.
#[derive(Debug)]
pub(crate) struct SnsWebhook {
    /// ARNs of the accepted topics.
    pub(crate) topics: Vec<String>,
    pub(crate) certificates: CertificateCache,
}

/// SNS repeats a delivery with its first timestamp for up to an hour.
const SIGNATURE_WINDOW: Duration = Duration::from_secs(3700);

impl SnsWebhook {
    /// Returns whether `text` is the ARN of a topic.
    pub(crate) fn is_topic(text: &str) -> bool {
        topic_host(text).is_some()
    }

    pub(super) async fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<ProviderReport>, WebhookRejection> {
        let body = json(request.body).map_err(|_| WebhookRejection::Signature)?;
        let part = |name: &str| text(&body, &format!("/{name}")).ok_or(WebhookRejection::Signature);
        let topic = part("TopicArn")?;
        if !self.topics.iter().any(|known| known == topic) {
            return Err(WebhookRejection::Signature);
        }
        let url = certificate_url(part("SigningCertURL")?, topic);
        let url = url.ok_or(WebhookRejection::Signature)?;
        let signature = base64(part("Signature")?)?;
        let signed = signed_text(&body).ok_or(WebhookRejection::Signature)?;
        let algorithm = match part("SignatureVersion")? {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(WebhookRejection::Signature),
        };
        let sent_at = Timestamp::parse(part("Timestamp")?).ok_or(WebhookRejection::Signature)?;
        let sent_at = sent_at.unix_seconds().to_string();
        within_window(&sent_at, request.now, SIGNATURE_WINDOW)?;
        // Verified last, because it may require an HTTP request.
        let certificate = self
            .certificates
            .certificate(&url, request.source, request.now);
        let certificate = certificate.await?;
        UnparsedPublicKey::new(algorithm, &certificate.public_key)
            .verify(signed.as_bytes(), &signature)
            .map_err(|_| WebhookRejection::Signature)?;
        match part("Type")? {
            "Notification" => {
                let event = json(part("Message")?.as_bytes())?;
                let report = report(request, part("MessageId")?, &event);
                Ok(report.into_iter().collect())
            }
            "SubscriptionConfirmation" => {
                let url = subscribe_url(part("SubscribeURL")?, topic);
                let url = url.ok_or(WebhookRejection::Unreadable)?;
                let confirmed = self.certificates.fetch_text(&url).await;
                confirmed.map_err(|_| WebhookRejection::Unavailable)?;
                tracing::info!(topic, "SNS subscription confirmed");
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Returns the host that signs for a topic: SNS in the region of the ARN
/// (`arn:{partition}:sns:{region}:…`). Accepting any other host would let an attacker sign. Returns
/// `None` if `topic` is not the ARN of a topic.
fn topic_host(topic: &str) -> Option<String> {
    let parts: Vec<&str> = topic.split(':').collect();
    let ["arn", partition, "sns", region, account, name] = parts[..] else {
        return None;
    };
    let is_region = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_valid = partition.starts_with("aws")
        && region.len() >= 3
        && region.bytes().all(is_region)
        && !account.is_empty()
        && account.bytes().all(|byte| byte.is_ascii_digit())
        && !name.is_empty();
    is_valid.then(|| format!("sns.{region}.{}", partition_domain(region)))
}

/// Parses an `https` URL on exactly the topic's host, without port, user or fragment, in canonical
/// spelling.
fn parse_topic_url(text: &str, topic: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_canonical = text.starts_with(&format!("https://{}/", topic_host(topic)?));
    (is_canonical && url.as_str() == text && url.fragment().is_none()).then_some(url)
}

fn certificate_url(text: &str, topic: &str) -> Option<Url> {
    let url = parse_topic_url(text, topic)?;
    let name = url.path().strip_prefix('/')?.strip_suffix(".pem")?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (name.bytes().all(is_allowed) && url.query().is_none()).then_some(url)
}

fn subscribe_url(text: &str, topic: &str) -> Option<Url> {
    let url = parse_topic_url(text, topic)?;
    let has = |name: &str, value: &str| {
        let found = url.query_pairs().filter(|(known, _)| known == name);
        found.map(|(_, value)| value).eq([value])
    };
    (url.path() == "/" && has("Action", "ConfirmSubscription") && has("TopicArn", topic))
        .then_some(url)
}

/// Returns the signed text: name and value of the signed fields, one per line, in the order of
/// their names.
fn signed_text(body: &Value) -> Option<String> {
    let names = match text(body, "/Type")? {
        "Notification" => "Message MessageId Subject Timestamp TopicArn Type",
        _ => "Message MessageId SubscribeURL Timestamp Token TopicArn Type",
    };
    let mut signed = String::new();
    for name in names.split(' ') {
        match body.get(name) {
            Some(Value::String(value)) => signed.extend([name, "\n", value, "\n"]),
            None | Some(Value::Null) if name == "Subject" => {}
            _ => return None,
        }
    }
    Some(signed)
}

pub(super) fn report(
    request: &WebhookRequest<'_>,
    event_id: &str,
    event: &Value,
) -> Option<ProviderReport> {
    let name = text(event, "/eventType").or_else(|| text(event, "/notificationType"))?;
    // On SES's list of addresses: it has not sent the message.
    let is_listed = ["/bounce/bounceSubType", "/complaint/complaintSubType"]
        .iter()
        .any(|pointer| text(event, pointer) == Some("OnAccountSuppressionList"));
    let leaves = event.pointer("/subscription/newTopicPreferences/unsubscribeAll");
    let objection = match name {
        "Complaint" if is_objection(text(event, "/complaint/complaintFeedbackType")) => {
            Some("complained")
        }
        "Subscription" if leaves == Some(&Value::Bool(true)) => Some("unsubscribed"),
        _ => None,
    };
    let kind = match name {
        "Send" => ReceiptKind::Sent,
        "DeliveryDelay" => ReceiptKind::Deferred,
        "Bounce" | "Reject" | "Rendering Failure" => ReceiptKind::Failed,
        "Complaint" if is_listed => ReceiptKind::Failed,
        "Delivery" => ReceiptKind::Delivered,
        _ if objection.is_some() => ReceiptKind::Delivered,
        _ => return None,
    };
    let recipient = text(event, "/mail/destination/0");
    let diagnostic = text(event, "/bounce/bouncedRecipients/0/diagnosticCode");
    let description = diagnostic.or_else(|| text(event, "/delivery/smtpResponse"));
    let status = text(event, "/bounce/bouncedRecipients/0/status");
    let bounce = (text(event, "/bounce/bounceType") == Some("Permanent"))
        .then(|| judge(diagnostic.unwrap_or_default(), status.unwrap_or("5.0.0")));
    let code = objection.or(status).map(str::to_owned);
    let (kind, code, dead) = conclude(kind, code, bounce);
    let mut times = "delivery bounce deliveryDelay complaint subscription mail".split(' ');
    let at = times.find_map(|part| Timestamp::parse(text(event, &format!("/{part}/timestamp"))?));
    Some(ProviderReport {
        event_id: event_id.to_owned(),
        id: message_id(event).and_then(id_in_message_id),
        kind,
        at: at.unwrap_or(request.now),
        code,
        detail: description.map(|description| without_address(description, recipient)),
        dead_address: text(event, "/bounce/bouncedRecipients/0/emailAddress")
            .filter(|_| dead && !is_listed)
            .map(str::to_owned),
        // Each message has one recipient.
        objector: recipient.filter(|_| objection.is_some()).map(hash),
    })
}

/// Returns the `Message-ID` assigned by this service; SES adds another one.
fn message_id(event: &Value) -> Option<&str> {
    let headers = event.pointer("/mail/headers").and_then(Value::as_array);
    let ours = headers.into_iter().flatten().find(|header| {
        text(header, "/name").is_some_and(|name| name.eq_ignore_ascii_case("message-id"))
    });
    ours.and_then(|header| text(header, "/value"))
        .or_else(|| text(event, "/mail/commonHeaders/messageId"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &str = "arn:aws:sns:us-west-2:123456789012:mail";

    #[test]
    fn certificate_url_is_limited_to_region_of_topic() {
        let good = "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-0a.pem";
        assert!(certificate_url(good, TOPIC).is_some());
        let china = "arn:aws-cn:sns:cn-north-1:1:mail";
        assert!(certificate_url("https://sns.cn-north-1.amazonaws.com.cn/x.pem", china).is_some());
        assert!(certificate_url("https://sns.cn-north-1.amazonaws.com/x.pem", china).is_none());
        for (partition, region, domain) in [
            ("aws-us-gov", "us-gov-west-1", "amazonaws.com"),
            ("aws-eusc", "eusc-de-east-1", "amazonaws.eu"),
            ("aws-iso", "us-iso-east-1", "c2s.ic.gov"),
        ] {
            let host = topic_host(&format!("arn:{partition}:sns:{region}:1:mail"));
            assert_eq!(host, Some(format!("sns.{region}.{domain}")));
        }
        for bad in [
            "http://sns.us-west-2.amazonaws.com/x.pem",
            "https://sns.us-east-1.amazonaws.com/x.pem",
            "https://sns.us-west-2.amazonaws.com.cn/x.pem",
            "https://sns.us-west-2.amazonaws.com.evil.example/x.pem",
            "https://evil.example/sns.us-west-2.amazonaws.com/x.pem",
            "https://sns.evil.example#.amazonaws.com/x.pem",
            "https://x@sns.us-west-2.amazonaws.com/x.pem",
            "https://:x@sns.us-west-2.amazonaws.com/x.pem",
            "https://sns.us-west-2.amazonaws.com:443/x.pem",
            "https://sns.us-west-2.amazonaws.com:8443/x.pem",
            "https://sns.us-west-2.amazonaws.com/x.pem?y=.pem",
            "https://sns.us-west-2.amazonaws.com/?x.pem",
            "https://sns.us-west-2.amazonaws.com/x.pem#y",
            "https://sns.us-west-2.amazonaws.com/a/../x.pem",
            "https://sns.us-west-2.amazonaws.com/a/x.pem",
            "https://SNS.us-west-2.amazonaws.com/x.pem",
            "https://sns.us-west-2.amazonaws.com\\x.pem",
            "https://s3.amazonaws.com/x.pem",
        ] {
            assert!(certificate_url(bad, TOPIC).is_none(), "{bad}");
        }
        let (queue, evil) = ("arn:aws:sqs:us-west-2:1:x", "arn:evil:sns:us-west-2:1:x");
        for bad in ["", "mail", queue, evil, "arn:aws:sns:a.b:1:x"] {
            assert_eq!(topic_host(bad), None, "{bad}");
        }
    }

    #[test]
    fn subscription_of_another_topic_is_not_confirmed() {
        let url = |query: &str| format!("https://sns.us-west-2.amazonaws.com/?{query}");
        let query = format!("Action=ConfirmSubscription&TopicArn={TOPIC}&Token=23");
        let good = url(&query);
        assert!(subscribe_url(&good, TOPIC).is_some());
        for bad in [
            good.replace("us-west-2.amazonaws", "us-east-1.amazonaws"),
            good.replace("ConfirmSubscription", "DeleteTopic"),
            good.replace(":mail", ":other"),
            format!("{good}&Action=DeleteTopic"),
            good.replace("amazonaws.com/", "amazonaws.com:443/"),
            url("Action=ConfirmSubscription"),
        ] {
            assert!(subscribe_url(&bad, TOPIC).is_none(), "{bad}");
        }
    }
}
