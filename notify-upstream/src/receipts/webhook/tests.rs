//! Requests signed with OpenSSL and with Python's `hmac`, from `vectors.json`.

mod certificates;
mod events;
mod judges;
pub(super) mod script;

use http::{HeaderName, HeaderValue};

use self::script::ScriptedFetches;
use super::*;
use crate::store::ProviderReport;
use crate::store::row::ReceiptKind;

const ID: &str = "0190a5d0-0000-7000-8000-000000000001";
const NOW: Timestamp = Timestamp(1_763_600_000_000);

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).expect("JSON")
}

fn at(vectors: &Value, pointer: &str) -> String {
    text(vectors, pointer)
        .expect("a text in the vectors")
        .to_owned()
}

/// Returns receivers whose certificate cache contains only the certificate of the vectors.
fn webhooks() -> Webhooks {
    webhooks_of(CertificateCache::scripted(ScriptedFetches::new(Err(
        WebhookRejection::Signature,
    ))))
}

fn webhooks_of(certificates: CertificateCache) -> Webhooks {
    let vectors = vectors();
    let url = "https://sns.us-west-2.amazonaws.com/cert.pem"
        .parse()
        .expect("URL");
    let certificate = sns::SigningCertificate::parse(&at(&vectors, "/sns/cert"), &url);
    certificates.insert(&url, certificate.expect("a certificate"));
    Webhooks {
        twilio: Some(TwilioWebhook {
            auth_token: Secret::from("12345"),
            url: "https://gw.example/webhooks/twilio".parse().expect("URL"),
        }),
        sns: Some(SnsWebhook {
            topics: vec!["arn:aws:sns:us-west-2:1:mail".to_owned()],
            certificates,
        }),
        sendgrid: SendGridWebhook::new(&at(&vectors, "/sendgrid/key")),
        mailgun: Some(MailgunWebhook {
            signing_key: Secret::from("mg-key"),
        }),
        standard: StandardWebhook::new(&Secret::new(at(&vectors, "/standard/secret"))),
    }
}

/// A webhook request as sent by a provider.
struct SignedRequest {
    provider: &'static str,
    headers: HeaderMap,
    query: Option<String>,
    body: String,
}

fn sent(provider: &'static str, headers: &[(&'static str, String)]) -> SignedRequest {
    let header = |(name, value): &(&'static str, String)| {
        let value = HeaderValue::from_str(value).expect("value");
        (HeaderName::from_static(name), value)
    };
    SignedRequest {
        provider,
        headers: headers.iter().map(header).collect(),
        query: (provider == "twilio").then(|| format!("id={ID}")),
        body: at(&vectors(), &format!("/{provider}/body")),
    }
}

fn all() -> Vec<SignedRequest> {
    let vectors = vectors();
    let signature = |provider: &str| at(&vectors, &format!("/{provider}/sig"));
    let time = "1763600000".to_owned();
    let sendgrid = [
        (
            "x-twilio-email-event-webhook-signature",
            signature("sendgrid"),
        ),
        ("x-twilio-email-event-webhook-timestamp", time.clone()),
    ];
    let signatures = format!("v1,AAAA {}", signature("standard"));
    let standard = [
        ("webhook-id", "msg_1".to_owned()),
        ("webhook-timestamp", time),
        ("webhook-signature", signatures),
    ];
    vec![
        sent("twilio", &[("x-twilio-signature", signature("twilio"))]),
        sent("sns", &[]),
        sent("sendgrid", &sendgrid),
        sent("mailgun", &[]),
        sent("standard", &standard),
    ]
}

async fn read(
    webhooks: &Webhooks,
    sent: &SignedRequest,
    now: Timestamp,
) -> Result<Vec<ProviderReport>, WebhookRejection> {
    let source = sent.headers.get("x-forwarded-for");
    let incoming = WebhookRequest {
        headers: &sent.headers,
        query: sent.query.as_deref(),
        body: sent.body.as_bytes(),
        source: source.and_then(|text| text.to_str().ok()?.parse().ok()),
        now,
    };
    let verified = webhooks.read(sent.provider, &incoming).await;
    verified.map(|(reports, _token)| reports)
}

async fn assert_rejected(webhooks: &Webhooks, sent: &SignedRequest, now: Timestamp) {
    let outcome = read(webhooks, sent, now).await;
    let about = format!("{} {}", sent.provider, sent.body);
    assert_eq!(outcome, Err(WebhookRejection::Signature), "{about}");
}

async fn only(webhooks: &Webhooks, sent: &SignedRequest) -> ProviderReport {
    let reports = read(webhooks, sent, NOW).await;
    let mut reports = reports.expect("a valid signature");
    assert_eq!(reports.len(), 1, "{}", sent.provider);
    let report = reports.remove(0);
    let id = report.id.map(|id| id.to_string());
    assert_eq!(id.as_deref(), Some(ID), "{}", sent.provider);
    report
}

#[tokio::test]
async fn signed_request_of_each_provider_is_parsed() {
    use ReceiptKind::{Bounced, Delivered};
    let ada = Some("ada@example.com");
    let expected = [
        ("SM1/undelivered", Bounced, Some("+491701234567")),
        ("m1", Delivered, None),
        ("sg1", Bounced, ada),
        ("ev1", Bounced, ada),
        ("msg_1", Delivered, None),
    ];
    let webhooks = webhooks();
    for (sent, expected) in all().iter().zip(expected) {
        let report = only(&webhooks, sent).await;
        let dead = report.dead_address.as_deref();
        assert_eq!((report.event_id.as_str(), report.kind, dead), expected);
        let detail = report.detail.clone().unwrap_or_default();
        assert!(!detail.contains("ada@"), "{}", sent.provider);
    }
}

#[tokio::test]
async fn any_changed_signed_byte_is_rejected() {
    let webhooks = webhooks();
    for mut sent in all() {
        // Mailgun signs only timestamp and token.
        let positions: Vec<usize> = match sent.provider {
            "mailgun" => ["1763600000", "tok"]
                .map(|part| sent.body.find(part).expect("part of the body"))
                .into(),
            _ => (0..sent.body.len()).step_by(7).collect(),
        };
        let original = sent.body.clone();
        for at in positions {
            // SNS does not sign the whitespace between fields; changing it makes the JSON invalid.
            sent.body = changed(&original, at);
            assert_rejected(&webhooks, &sent, NOW).await;
        }
    }
}

/// Returns a text with another byte at a position.
fn changed(text: &str, at: usize) -> String {
    let mut bytes = text.to_owned().into_bytes();
    bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
    String::from_utf8(bytes).expect("the vectors are ASCII")
}

#[tokio::test]
async fn wrong_key_missing_header_and_old_timestamp_are_rejected() {
    let webhooks = webhooks();
    let later = NOW.plus(Duration::from_secs(10 * 3600));
    for mut sent in all() {
        assert_rejected(&Webhooks::default(), &sent, NOW).await;
        if sent.provider != "twilio" {
            assert_rejected(&webhooks, &sent, later).await;
        }
        if !matches!(sent.provider, "sns" | "mailgun") {
            sent.headers.clear();
            assert_rejected(&webhooks, &sent, NOW).await;
        }
    }
    let mut unknown = all().remove(0);
    unknown.provider = "acme";
    assert_rejected(&webhooks, &unknown, NOW).await;
}

#[tokio::test]
async fn sns_signature_versions_are_accepted_for_known_topics() {
    let mut webhooks = webhooks();
    let mut first = sent("sns", &[]);
    first.body = at(&vectors(), "/sns/body_v1");
    only(&webhooks, &first).await;
    if let Some(sns) = &mut webhooks.sns {
        sns.topics = vec!["arn:aws:sns:us-west-2:2:mail".to_owned()];
    }
    assert_rejected(&webhooks, &first, NOW).await;
}
