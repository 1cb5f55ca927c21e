//! Fetches caused by messages that name certificates, and the responses to them.

use super::*;

/// Returns the message of the vectors with another certificate name.
fn naming(name: &str) -> SignedRequest {
    let known = sent("sns", &[]);
    let body = known.body.replace("/cert.pem", &format!("/{name}.pem"));
    assert_ne!(body, known.body);
    SignedRequest { body, ..known }
}

fn amazon(answer: Result<String, WebhookRejection>) -> (ScriptedFetches, Webhooks) {
    let script = ScriptedFetches::new(answer);
    let certificates = CertificateCache::scripted(script.clone());
    (script, webhooks_of(certificates))
}

#[tokio::test]
async fn certificate_is_fetched_once_and_failures_again() {
    let (script, webhooks) = amazon(Err(WebhookRejection::Signature));
    assert_rejected(&webhooks, &naming("new"), NOW).await;
    script.set_response(Err(WebhookRejection::Unavailable));
    let outcome = read(&webhooks, &naming("new"), NOW).await;
    assert_eq!(outcome, Err(WebhookRejection::Unavailable));
    script.set_response(Ok("no certificate".to_owned()));
    assert_rejected(&webhooks, &naming("new"), NOW).await;
    script.set_response(Ok(at(&vectors(), "/sns/cert")));
    for _ in 0..2 {
        only(&webhooks, &naming("new")).await;
    }
    let mut forged = naming("new");
    forged.body = forged.body.replace("m1", "m2");
    assert_rejected(&webhooks, &forged, NOW).await;
    assert_eq!(script.fetches().len(), 4, "it is cached afterwards");
}

#[tokio::test]
async fn fetches_per_minute_are_bounded() {
    let (script, webhooks) = amazon(Err(WebhookRejection::Signature));
    let mut last = Ok(Vec::new());
    for number in 0..200 {
        last = read(&webhooks, &naming(&format!("x{number}")), NOW).await;
    }
    assert_eq!(script.fetches().len(), 30);
    let repeated = "SNS repeats a genuine message";
    assert_eq!(last, Err(WebhookRejection::Unavailable), "{repeated}");
    for (name, seconds) in [("y", 60), ("z", 3 * 3600)] {
        let later = NOW.plus(Duration::from_secs(seconds));
        assert_rejected(&webhooks, &naming(name), later).await;
        assert_eq!(script.fetches().len(), 31, "none for an expired message");
    }
}

#[tokio::test]
async fn flood_from_one_network_leaves_fetches_for_others() {
    let (script, webhooks) = amazon(Err(WebhookRejection::Signature));
    let from = |name: &str, address: &str| {
        let (mut message, address) = (naming(name), HeaderValue::from_str(address));
        let address = address.expect("value");
        message.headers.insert("x-forwarded-for", address);
        message
    };
    for number in 0..100 {
        let one = from(&format!("a{number}"), "203.0.113.9");
        let many = from(&format!("b{number}"), &format!("2001:db8:0:1::{number:x}"));
        for forged in [one, many] {
            read(&webhooks, &forged, NOW).await.expect_err("forged");
        }
    }
    assert_eq!(script.fetches().len(), 10, "five per network");
    script.set_response(Ok(at(&vectors(), "/sns/cert")));
    only(&webhooks, &from("new", "198.51.100.7")).await;
}
