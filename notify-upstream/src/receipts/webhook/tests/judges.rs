//! Signatures made by official clients are accepted, and requests that they reject are rejected,
//! for single-byte changes.

use serde_json::json;

use super::*;
use crate::testing::judge;

/// Returns the vectors, each with some fifty changes of one byte.
fn variants() -> Vec<SignedRequest> {
    let mut variants = Vec::new();
    for original in all().into_iter().filter(|sent| sent.provider != "mailgun") {
        let step = (original.body.len() / 50).max(1);
        for at in (0..original.body.len()).step_by(step) {
            let mut body = original.body.clone().into_bytes();
            body[at] = if body[at] == b'x' { b'y' } else { b'x' };
            let body = String::from_utf8(body).expect("the vectors are ASCII");
            variants.push(SignedRequest {
                headers: original.headers.clone(),
                query: original.query.clone(),
                body,
                ..original
            });
        }
        variants.push(original);
    }
    variants.push(SignedRequest {
        body: at(&vectors(), "/sns/body_v1"),
        ..sent("sns", &[])
    });
    variants
}

/// Returns the verification request for the provider's client library, or `None` if the library
/// cannot represent it.
fn question(sent: &SignedRequest) -> Option<(&'static str, Value)> {
    let header = |name: &str| {
        sent.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let vectors = vectors();
    Some(match sent.provider {
        "twilio" => {
            let params: serde_json::Map<String, Value> =
                url::form_urlencoded::parse(sent.body.as_bytes())
                    .map(|(name, value)| (name.into_owned(), value.into_owned().into()))
                    .collect();
            let url = format!("https://gw.example/webhooks/twilio?id={ID}");
            let signature = header("x-twilio-signature");
            (
                "twilio-verify",
                json!({"token": "12345", "signature": signature, "url": url, "params": params}),
            )
        }
        "sns" => {
            let message: Value = serde_json::from_str(&sent.body)
                .ok()
                .filter(Value::is_object)?;
            (
                "sns-verify",
                json!({"pem": at(&vectors, "/sns/cert"), "message": message}),
            )
        }
        "sendgrid" => {
            let signature = header("x-twilio-email-event-webhook-signature");
            let timestamp = header("x-twilio-email-event-webhook-timestamp");
            let key = at(&vectors, "/sendgrid/key");
            let about = json!({"key": key, "signature": signature, "timestamp": timestamp, "body": sent.body});
            ("sendgrid-verify", about)
        }
        _ => {
            let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
            let headers: Value = names
                .map(|name| (name.to_owned(), Value::from(header(name))))
                .into_iter()
                .collect();
            let secret = at(&vectors, "/standard/secret");
            (
                "standard-verify",
                json!({"secret": secret, "headers": headers, "body": sent.body}),
            )
        }
    })
}

#[tokio::test]
async fn verification_agrees_with_official_clients() {
    if judge::installed("the_official_clients_and_we_agree_on_every_byte").is_none() {
        return;
    }
    let webhooks = webhooks();
    let variants = variants();
    let asked: Vec<_> = variants
        .iter()
        .filter_map(|sent| Some((sent, question(sent)?)))
        .collect();
    let questions: Vec<_> = asked.iter().map(|(_, question)| question.clone()).collect();
    let answers = judge::ask(&questions).await;
    let (mut good, mut bad) = (0, 0);
    for ((sent, _), answer) in asked.into_iter().zip(answers) {
        // The signature of an event that cannot be parsed is still valid.
        let believed = !matches!(
            read(&webhooks, sent, NOW).await,
            Err(WebhookRejection::Signature | WebhookRejection::Unavailable)
        );
        // Verification is stricter than the signature alone: SNS signs for any account, so topic
        // and region must match.
        if sent.provider == "sns" && !believed && answer == true {
            let message: Value = serde_json::from_str(&sent.body).expect("parsed before");
            assert_ne!(
                message["SigningCertURL"], "https://sns.us-west-2.amazonaws.com/cert.pem",
                "{}",
                sent.body
            );
            continue;
        }
        assert_eq!(answer, believed, "{} {}", sent.provider, sent.body);
        *(if believed { &mut good } else { &mut bad }) += 1;
    }
    assert!(good >= 5 && bad >= 100, "{good} believed, {bad} refused");
}

#[tokio::test]
async fn signature_by_official_client_is_accepted() {
    if judge::installed("what_the_official_clients_sign_is_believed").is_none() {
        return;
    }
    let secret = at(&vectors(), "/standard/secret");
    let params = [
        ("MessageSid", "SM2"),
        ("MessageStatus", "delivered"),
        ("To", "+491701234567"),
        ("Body", "ä & ="),
    ];
    let form = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(params)
        .finish();
    let body = json!({"type": "sms.delivered", "data": {"notificationId": ID}, "ü": "\u{1f600}"})
        .to_string();
    let params: Value = params
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .into_iter()
        .collect();
    let url = format!("https://gw.example/webhooks/twilio?id={ID}");
    let signatures = judge::ask(&[
        (
            "twilio-sign",
            json!({"token": "12345", "url": url, "params": params}),
        ),
        (
            "standard-sign",
            json!({"secret": secret, "id": "m9", "seconds": NOW.unix_seconds(), "body": body}),
        ),
    ])
    .await;
    let text = |index: usize| signatures[index].as_str().expect("a signature").to_owned();
    let by_twilio = SignedRequest {
        body: form,
        ..sent("twilio", &[("x-twilio-signature", text(0))])
    };
    let by_standard = sent(
        "standard",
        &[
            ("webhook-id", "m9".to_owned()),
            ("webhook-timestamp", NOW.unix_seconds().to_string()),
            ("webhook-signature", text(1)),
        ],
    );
    for sent in [
        by_twilio,
        SignedRequest {
            body,
            ..by_standard
        },
    ] {
        let reports = read(&webhooks(), &sent, NOW)
            .await
            .expect("a signature by the official client");
        assert_eq!(reports[0].kind, ReceiptKind::Delivered, "{}", sent.provider);
        assert_eq!(reports[0].id.map(|id| id.to_string()).as_deref(), Some(ID));
    }
}
