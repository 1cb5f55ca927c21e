//! Requests signed with OpenSSL and with Python's `hmac`, from `vectors.json`.

mod certificates;
mod events;
mod judges;
pub(super) mod script;

use http::{HeaderName, HeaderValue};

use self::script::ScriptedFetches;
use super::sns::FetchError;
use super::*;
use crate::delivery::report::ProviderReport;
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
        FetchError::NotFound,
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
    let headers = headers
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).expect("value"),
            )
        })
        .collect();
    let body = at(&vectors(), &format!("/{provider}/body"));
    let query = (provider == "twilio").then(|| format!("id={ID}"));
    SignedRequest {
        provider,
        headers,
        query,
        body,
    }
}

fn all() -> Vec<SignedRequest> {
    let vectors = vectors();
    let time = "1763600000".to_owned();
    vec![
        sent(
            "twilio",
            &[("x-twilio-signature", at(&vectors, "/twilio/sig"))],
        ),
        sent("sns", &[]),
        sent(
            "sendgrid",
            &[
                (
                    "x-twilio-email-event-webhook-signature",
                    at(&vectors, "/sendgrid/sig"),
                ),
                ("x-twilio-email-event-webhook-timestamp", time.clone()),
            ],
        ),
        sent("mailgun", &[]),
        sent(
            "standard",
            &[
                ("webhook-id", "msg_1".to_owned()),
                ("webhook-timestamp", time),
                (
                    "webhook-signature",
                    format!("v1,AAAA {}", at(&vectors, "/standard/sig")),
                ),
            ],
        ),
    ]
}

async fn read(
    webhooks: &Webhooks,
    sent: &SignedRequest,
    now: Timestamp,
) -> Result<Vec<ProviderReport>, WebhookRejection> {
    let source = sent
        .headers
        .get("x-forwarded-for")
        .and_then(|text| text.to_str().ok()?.parse().ok());
    let (query, body) = (sent.query.as_deref(), sent.body.as_bytes());
    let incoming = WebhookRequest {
        headers: &sent.headers,
        query,
        body,
        source,
        now,
    };
    webhooks.read(sent.provider, &incoming).await
}

#[tokio::test]
async fn signed_request_of_each_provider_is_parsed() {
    let expected = [
        (
            "twilio",
            "SM1/undelivered",
            ReceiptKind::Bounced,
            Some("+491701234567"),
        ),
        ("sns", "m1", ReceiptKind::Delivered, None),
        (
            "sendgrid",
            "sg1",
            ReceiptKind::Bounced,
            Some("ada@example.com"),
        ),
        (
            "mailgun",
            "ev1",
            ReceiptKind::Bounced,
            Some("ada@example.com"),
        ),
        ("standard", "msg_1", ReceiptKind::Delivered, None),
    ];
    let webhooks = webhooks();
    for (sent, (provider, event, kind, dead)) in all().iter().zip(expected) {
        let reports = read(&webhooks, sent, NOW).await.expect("a valid signature");
        assert_eq!(reports.len(), 1, "{provider}");
        let report = &reports[0];
        assert_eq!(
            (
                report.event_id.as_str(),
                report.kind,
                report.dead_address.as_deref()
            ),
            (event, kind, dead)
        );
        assert_eq!(
            report.id.map(|id| id.to_string()).as_deref(),
            Some(ID),
            "{provider}"
        );
        assert!(
            !report.detail.clone().unwrap_or_default().contains("ada@"),
            "{provider}"
        );
    }
}

#[tokio::test]
async fn any_changed_signed_byte_is_rejected() {
    let webhooks = webhooks();
    for sent in all() {
        // Mailgun signs only timestamp and token.
        let positions: Vec<usize> = match sent.provider {
            "mailgun" => ["1763600000", "tok"]
                .map(|part| sent.body.find(part).expect("part of the body"))
                .into(),
            _ => (0..sent.body.len()).step_by(7).collect(),
        };
        for at in positions {
            let mut changed = sent.body.clone().into_bytes();
            changed[at] = if changed[at] == b'x' { b'y' } else { b'x' };
            let incoming = WebhookRequest {
                headers: &sent.headers,
                query: sent.query.as_deref(),
                body: &changed,
                source: None,
                now: NOW,
            };
            let outcome = webhooks.read(sent.provider, &incoming).await;
            // SNS does not sign the whitespace between fields; changing it makes the JSON invalid.
            assert_eq!(
                outcome,
                Err(WebhookRejection::Signature),
                "{} at {at}",
                sent.provider
            );
        }
    }
}

#[tokio::test]
async fn wrong_key_missing_header_and_old_timestamp_are_rejected() {
    let webhooks = webhooks();
    for sent in all() {
        assert_eq!(
            read(&Webhooks::default(), &sent, NOW).await,
            Err(WebhookRejection::Signature),
            "{}",
            sent.provider
        );
        if sent.provider != "twilio" {
            let later = NOW.plus(Duration::from_secs(10 * 3600));
            assert_eq!(
                read(&webhooks, &sent, later).await,
                Err(WebhookRejection::Signature),
                "{}",
                sent.provider
            );
        }
        if !matches!(sent.provider, "sns" | "mailgun") {
            let bare = SignedRequest {
                headers: HeaderMap::new(),
                ..sent
            };
            assert_eq!(
                read(&webhooks, &bare, NOW).await,
                Err(WebhookRejection::Signature),
                "{}",
                bare.provider
            );
        }
    }
    let nobody = SignedRequest {
        provider: "acme",
        ..all().remove(0)
    };
    assert_eq!(
        read(&webhooks, &nobody, NOW).await,
        Err(WebhookRejection::Signature)
    );
}

#[tokio::test]
async fn sns_signature_versions_are_accepted_for_known_topics() {
    let mut webhooks = webhooks();
    let first = SignedRequest {
        body: at(&vectors(), "/sns/body_v1"),
        ..sent("sns", &[])
    };
    assert_eq!(
        read(&webhooks, &first, NOW)
            .await
            .map(|reports| reports.len()),
        Ok(1)
    );
    if let Some(sns) = &mut webhooks.sns {
        sns.topics = vec!["arn:aws:sns:us-west-2:2:mail".to_owned()];
    }
    assert_eq!(
        read(&webhooks, &first, NOW).await,
        Err(WebhookRejection::Signature)
    );
}

#[test]
fn report_without_notification_is_not_stored() {
    let report = ProviderReport {
        event_id: "e\n".to_owned(),
        id: None,
        kind: ReceiptKind::Sent,
        at: NOW,
        code: None,
        detail: None,
        dead_address: None,
        objector: None,
    };
    assert_eq!(report.receipt("x"), None);
    let ours = ProviderReport {
        id: NotificationId::parse(ID),
        ..report
    };
    assert_eq!(
        ours.receipt("x").map(|receipt| receipt.event_id).as_deref(),
        Some("e")
    );
}
