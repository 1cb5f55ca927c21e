//! Requests that official clients accept or reject are accepted or rejected, for single-byte
//! changes.

use serde_json::json;

use super::*;
use crate::testing::judge;

/// Returns the vectors, each with some fifty changes of one byte.
fn variants() -> Vec<SignedRequest> {
    let mut variants = Vec::new();
    for original in all().into_iter().filter(|sent| sent.provider != "mailgun") {
        let step = (original.body.len() / 50).max(1);
        for at in (0..original.body.len()).step_by(step) {
            variants.push(SignedRequest {
                headers: original.headers.clone(),
                query: original.query.clone(),
                body: changed(&original.body, at),
                ..original
            });
        }
        variants.push(original);
    }
    let mut first = sent("sns", &[]);
    first.body = at(&vectors(), "/sns/body_v1");
    variants.push(first);
    variants
}

/// Returns the verification request for the provider's client library, or `None` if the library
/// cannot represent it.
fn question(sent: &SignedRequest) -> Option<(&'static str, Value)> {
    let header = |name: &str| {
        let value = sent.headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    };
    let (vectors, body) = (vectors(), &sent.body);
    Some(match sent.provider {
        "twilio" => {
            let form = url::form_urlencoded::parse(body.as_bytes()).into_owned();
            let params: std::collections::BTreeMap<String, String> = form.collect();
            let url = format!("https://gw.example/webhooks/twilio?id={ID}");
            let signature = header("x-twilio-signature");
            let about =
                json!({"token": "12345", "signature": signature, "url": url, "params": params});
            ("twilio-verify", about)
        }
        "sns" => {
            let message = serde_json::from_str(body).ok().filter(Value::is_object)?;
            let about = json!({"pem": at(&vectors, "/sns/cert"), "message": message});
            ("sns-verify", about)
        }
        "sendgrid" => {
            let signature = header("x-twilio-email-event-webhook-signature");
            let timestamp = header("x-twilio-email-event-webhook-timestamp");
            let key = at(&vectors, "/sendgrid/key");
            let about =
                json!({"key": key, "signature": signature, "timestamp": timestamp, "body": body});
            ("sendgrid-verify", about)
        }
        _ => {
            let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
            let headers = names.map(|name| (name, header(name)));
            let headers = std::collections::BTreeMap::from(headers);
            let secret = at(&vectors, "/standard/secret");
            let about = json!({"secret": secret, "headers": headers, "body": body});
            ("standard-verify", about)
        }
    })
}

#[tokio::test]
async fn verification_agrees_with_official_clients() {
    if judge::installed("verification_agrees_with_official_clients").is_none() {
        return;
    }
    let webhooks = webhooks();
    let variants = variants();
    let question = |sent| Some((sent, question(sent)?));
    let (asked, questions): (Vec<_>, Vec<_>) = variants.iter().filter_map(question).unzip();
    let answers = judge::ask(&questions).await;
    let (mut good, mut bad) = (0, 0);
    for (sent, answer) in asked.into_iter().zip(answers) {
        // The signature of an event that cannot be parsed is still valid.
        let believed = !matches!(
            read(&webhooks, sent, NOW).await,
            Err(WebhookRejection::Signature | WebhookRejection::Unavailable)
        );
        // Verification is stricter than the signature alone: SNS signs for any account, so topic
        // and region must match.
        if sent.provider == "sns" && !believed && answer == true {
            let message: Value = serde_json::from_str(&sent.body).expect("parsed before");
            let known = "https://sns.us-west-2.amazonaws.com/cert.pem";
            assert_ne!(message["SigningCertURL"], known, "{}", sent.body);
            continue;
        }
        assert_eq!(answer, believed, "{} {}", sent.provider, sent.body);
        *(if believed { &mut good } else { &mut bad }) += 1;
    }
    assert!(good >= 5 && bad >= 100, "{good} believed, {bad} refused");
}

#[tokio::test]
async fn signature_by_official_client_is_accepted() {
    if judge::installed("signature_by_official_client_is_accepted").is_none() {
        return;
    }
    let secret = at(&vectors(), "/standard/secret");
    let params = std::collections::BTreeMap::from([
        ("MessageSid", "SM2"),
        ("MessageStatus", "delivered"),
        ("To", "+491701234567"),
        ("Body", "ä & ="),
    ]);
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    let form = form.extend_pairs(&params).finish();
    let body = json!({"type": "sms.delivered", "data": {"notificationId": ID}, "ü": "\u{1f600}"})
        .to_string();
    let url = format!("https://gw.example/webhooks/twilio?id={ID}");
    let seconds = NOW.unix_seconds();
    let twilio = json!({"token": "12345", "url": url, "params": params});
    let standard = json!({"secret": secret, "id": "m9", "seconds": seconds, "body": body});
    let questions = [("twilio-sign", twilio), ("standard-sign", standard)];
    let signatures = judge::ask(&questions).await;
    let signature = |index: usize| signatures[index].as_str().expect("a signature").to_owned();
    let headers = [
        ("webhook-id", "m9".to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        ("webhook-signature", signature(1)),
    ];
    let mut by_twilio = sent("twilio", &[("x-twilio-signature", signature(0))]);
    let mut by_standard = sent("standard", &headers);
    (by_twilio.body, by_standard.body) = (form, body);
    for sent in [by_twilio, by_standard] {
        let report = only(&webhooks(), &sent).await;
        assert_eq!(report.kind, ReceiptKind::Delivered, "{}", sent.provider);
    }
}
