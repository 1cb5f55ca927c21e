//! Fetches caused by messages that name certificates, and the responses to them.

use super::*;

/// Returns the message of the vectors with another certificate name.
fn naming(name: &str) -> SignedRequest {
    let known = sent("sns", &[]);
    let body = known.body.replace("/cert.pem", &format!("/{name}.pem"));
    assert_ne!(body, known.body);
    SignedRequest { body, ..known }
}

fn amazon(answer: Result<String, FetchError>) -> (ScriptedFetches, Webhooks) {
    let script = ScriptedFetches::new(answer);
    (
        script.clone(),
        webhooks_of(CertificateCache::scripted(script)),
    )
}

#[tokio::test]
async fn certificate_is_fetched_once_and_failures_again() {
    let (script, webhooks) = amazon(Err(FetchError::NotFound));
    let outcome = async || read(&webhooks, &naming("new"), NOW).await;
    assert_eq!(outcome().await, Err(WebhookRejection::Signature));
    script.set_response(Err(FetchError::Unavailable));
    assert_eq!(outcome().await, Err(WebhookRejection::Unavailable));
    script.set_response(Ok("no certificate".to_owned()));
    assert_eq!(outcome().await, Err(WebhookRejection::Signature));
    script.set_response(Ok(at(&vectors(), "/sns/cert")));
    for _ in 0..2 {
        assert_eq!(outcome().await.map(|reports| reports.len()), Ok(1));
    }
    let forged = SignedRequest {
        body: naming("new").body.replace("m1", "m2"),
        ..naming("new")
    };
    assert_eq!(
        read(&webhooks, &forged, NOW).await,
        Err(WebhookRejection::Signature)
    );
    assert_eq!(script.fetches().len(), 4, "it is cached afterwards");
}

#[tokio::test]
async fn fetches_per_minute_are_bounded() {
    let (script, webhooks) = amazon(Err(FetchError::NotFound));
    let mut answers = Vec::new();
    for number in 0..200 {
        answers.push(read(&webhooks, &naming(&format!("x{number}")), NOW).await);
    }
    assert_eq!(script.fetches().len(), 30);
    assert_eq!(
        answers.last(),
        Some(&Err(WebhookRejection::Unavailable)),
        "SNS repeats a genuine message"
    );
    let next_minute = NOW.plus(Duration::from_secs(60));
    assert_eq!(
        read(&webhooks, &naming("y"), next_minute).await,
        Err(WebhookRejection::Signature)
    );
    let old = NOW.plus(Duration::from_secs(3 * 3600));
    assert_eq!(
        read(&webhooks, &naming("z"), old).await,
        Err(WebhookRejection::Signature)
    );
    assert_eq!(
        script.fetches().len(),
        31,
        "an expired message causes no fetch"
    );
}

#[tokio::test]
async fn flood_from_one_network_leaves_fetches_for_others() {
    let (script, webhooks) = amazon(Err(FetchError::NotFound));
    let from = |name: &str, address: String| {
        let mut message = naming(name);
        message.headers.insert(
            "x-forwarded-for",
            HeaderValue::from_str(&address).expect("value"),
        );
        message
    };
    for number in 0..100 {
        let one = from(&format!("a{number}"), "203.0.113.9".to_owned());
        let many = from(&format!("b{number}"), format!("2001:db8:0:1::{number:x}"));
        for forged in [one, many] {
            read(&webhooks, &forged, NOW).await.expect_err("forged");
        }
    }
    assert_eq!(script.fetches().len(), 10, "five per network");
    script.set_response(Ok(at(&vectors(), "/sns/cert")));
    let own = from("new", "198.51.100.7".to_owned());
    assert_eq!(
        read(&webhooks, &own, NOW)
            .await
            .map(|reports| reports.len()),
        Ok(1)
    );
}
