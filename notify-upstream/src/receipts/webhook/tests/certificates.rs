//! Fetches caused by messages that name certificates, and the responses to them.

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;

/// Returns the message of the vectors with another certificate name.
fn naming(name: &str) -> SignedRequest {
    let known = sent("sns", &[]);
    let body = known.body.replace("/cert.pem", &format!("/{name}.pem"));
    assert_ne!(body, known.body);
    SignedRequest { body, ..known }
}

fn amazon(answer: Result<String, FetchError>, permits: usize) -> (ScriptedFetches, Webhooks) {
    let script = ScriptedFetches::new(answer, permits);
    (
        script.clone(),
        webhooks_of(CertificateCache::scripted(script)),
    )
}

#[tokio::test]
async fn missing_certificate_is_fetched_once_in_five_minutes() {
    let (script, webhooks) = amazon(Err(FetchError::NotFound), 9);
    for (after_s, fetches) in [(0, 1), (1, 1), (299, 1), (300, 2)] {
        let now = NOW.plus(Duration::from_secs(after_s));
        assert_eq!(
            read(&webhooks, &naming("other"), now).await,
            Err(WebhookRejection::Signature),
            "{after_s}"
        );
        assert_eq!(script.fetches().len(), fetches, "{after_s}");
    }
    script.set_response(Ok("no certificate".to_owned()));
    assert_eq!(
        read(&webhooks, &naming("text"), NOW).await,
        Err(WebhookRejection::Signature)
    );
}

#[tokio::test]
async fn unanswered_fetch_is_retried_before_sns_redelivers() {
    let (script, webhooks) = amazon(Err(FetchError::Unavailable), 9);
    for (after_s, fetches) in [(0, 1), (9, 1), (10, 2)] {
        let now = NOW.plus(Duration::from_secs(after_s));
        assert_eq!(
            read(&webhooks, &naming("new"), now).await,
            Err(WebhookRejection::Unavailable),
            "{after_s}"
        );
        assert_eq!(script.fetches().len(), fetches, "{after_s}");
    }
    script.set_response(Ok(at(&vectors(), "/sns/cert")));
    let now = NOW.plus(Duration::from_secs(20));
    assert_eq!(
        read(&webhooks, &naming("new"), now)
            .await
            .map(|reports| reports.len()),
        Ok(1)
    );
    let forged = SignedRequest {
        body: naming("new").body.replace("m1", "m2"),
        ..naming("new")
    };
    assert_eq!(
        read(&webhooks, &forged, now).await,
        Err(WebhookRejection::Signature)
    );
    assert_eq!(
        script.fetches().len(),
        3,
        "the certificate is cached afterwards"
    );
}

#[tokio::test]
async fn concurrent_fetches_are_shared_and_bounded_per_minute() {
    let (script, webhooks) = amazon(Err(FetchError::NotFound), 0);
    let message = naming("other");
    let mut all = Box::pin(join_all((0..20).map(|_| read(&webhooks, &message, NOW))));
    assert!(
        (&mut all).now_or_never().is_none(),
        "all wait for the fetch"
    );
    assert_eq!(script.fetches().len(), 1);
    script.add_permits(1000);
    assert!(
        all.await
            .iter()
            .all(|outcome| *outcome == Err(WebhookRejection::Signature))
    );
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
    let (script, webhooks) = amazon(Err(FetchError::NotFound), 1000);
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
