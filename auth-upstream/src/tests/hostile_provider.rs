//! Incorrect, missing and malicious responses of a social provider. The UI gets the name of an
//! error.

use std::sync::atomic::Ordering;
use std::time::Duration;

use postern_common::Code;
use serde_json::json;

use crate::flows::SocialCallback;
use crate::testing::browser::{callback, follow, sign_in as sign_in_at_provider, start};
use crate::testing::{Fixture, FixtureOptions, ProviderBehavior};

const ADA: &str = "ada@example.com";

#[tokio::test]
async fn invalid_id_tokens_are_rejected() {
    let fixture = Fixture::new().await;
    let rows = [
        json!({ "iss": "https://evil.example" }),
        json!({ "aud": "another-client" }),
        json!({ "nonce": "another" }),
        json!({ "nonce": null }),
        json!({ "exp": 1 }),
        json!({ "exp": "4102444800" }),
        json!({ "iat": null }),
        json!({ "aud": ["social-client", "another-client"] }),
        json!({ "azp": "another-client" }),
        json!({ "forged": true }),
        json!({ "sub": "" }),
    ];
    for claims in rows {
        assert_eq!(
            sign_in_at_provider(&fixture, claims.clone()).await.value,
            "invalid_id_token",
            "{claims}"
        );
    }
    let url = start(&fixture, None).await;
    let (_, state) = fixture.provider.consent(&url, json!({}));
    let wrong_code = callback(("another code".to_owned(), state));
    assert_eq!(follow(&fixture, wrong_code).await.value, "provider_error");
    assert!(fixture.pool.user(ADA).is_none());
}

#[tokio::test]
async fn callback_of_another_issuer_is_rejected() {
    let fixture = Fixture::new().await;
    let url = start(&fixture, None).await;
    let mut back = callback(fixture.provider.consent(&url, json!({})));
    back.issuer = Some("https://evil.example".to_owned());
    assert_eq!(follow(&fixture, back).await.value, "invalid_request");
    let url = start(&fixture, None).await;
    let (_, state) = fixture.provider.consent(&url, json!({}));
    let denied = SocialCallback {
        error: Some("access_denied".to_owned()),
        state: Some(state),
        ..SocialCallback::default()
    };
    assert_eq!(follow(&fixture, denied).await.value, "access_denied");
}

#[tokio::test]
async fn missing_issuer_is_rejected_if_the_provider_sends_it() {
    let fixture = Fixture::new().await;
    fixture.provider.set(ProviderBehavior::SendsIssuer);
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.value,
        "invalid_request",
        "no issuer"
    );
    let url = start(&fixture, None).await;
    let mut back = callback(fixture.provider.consent(&url, json!({})));
    back.issuer = Some(fixture.provider.url.clone());
    assert_eq!(follow(&fixture, back).await.name, "temporaryToken");
}

#[tokio::test]
async fn unsigned_and_malformed_token_responses_are_rejected() {
    let rows = [
        (ProviderBehavior::HtmlPage(200), "provider_error"),
        (ProviderBehavior::HtmlPage(500), "provider_error"),
        (ProviderBehavior::OversizedResponse, "provider_unavailable"),
        (ProviderBehavior::Redirect, "provider_error"),
        (ProviderBehavior::NoIdToken, "invalid_id_token"),
        (ProviderBehavior::Unsigned, "invalid_id_token"),
        (ProviderBehavior::Hmac, "invalid_id_token"),
    ];
    let fixture = Fixture::new().await;
    for (behavior, expected) in rows {
        fixture.provider.set(behavior);
        assert_eq!(
            sign_in_at_provider(&fixture, json!({})).await.value,
            expected,
            "{behavior:?}"
        );
    }
    assert!(fixture.pool.user(ADA).is_none());
    fixture.provider.set(ProviderBehavior::Correct);
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken"
    );
}

#[tokio::test]
async fn timeout_and_provider_errors_map_to_error_names() {
    let fixture = Fixture::new().await;
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken"
    );
    fixture.provider.set(ProviderBehavior::Unresponsive);
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.value,
        "provider_unavailable"
    );
    fixture.provider.set(ProviderBehavior::Correct);
    for (error, expected) in [
        ("access_denied", "access_denied"),
        ("temporarily_unavailable", "provider_unavailable"),
        ("server_error", "provider_unavailable"),
        ("invalid_scope", "provider_error"),
        ("<script>alert(1)</script>", "provider_error"),
    ] {
        let url = start(&fixture, None).await;
        let (code, state) = fixture.provider.consent(&url, json!({}));
        // An error has precedence over a code.
        let (code, error) = (Some(code), Some(error.to_owned()));
        let sent = SocialCallback {
            code,
            error,
            state: Some(state),
            issuer: None,
        };
        assert_eq!(follow(&fixture, sent).await.value, expected);
    }
}

#[tokio::test]
async fn discovery_is_cached_repeated_and_validated() {
    let fixture = Fixture::new().await;
    for behavior in [ProviderBehavior::NoDiscovery, ProviderBehavior::WrongIssuer] {
        fixture.provider.set(behavior);
        fixture.clock.advance(Duration::from_secs(1));
        let discoveries = fixture.provider.discoveries.load(Ordering::SeqCst);
        for _ in 0..3 {
            let rejected = fixture
                .social()
                .start(None)
                .await
                .expect_err("no endpoints");
            assert_eq!(rejected.code(), Code::Unavailable, "{behavior:?}");
        }
        assert_eq!(
            fixture.provider.discoveries.load(Ordering::SeqCst),
            discoveries + 1,
            "at most once per second"
        );
    }
    fixture.provider.set(ProviderBehavior::Correct);
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken"
    );
    let discoveries = fixture.provider.discoveries.load(Ordering::SeqCst);
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken"
    );
    assert_eq!(
        fixture.provider.discoveries.load(Ordering::SeqCst),
        discoveries,
        "cached for an hour"
    );
    // A failed discovery keeps the known endpoints.
    fixture.provider.set(ProviderBehavior::WrongIssuer);
    fixture.clock.advance(Duration::from_secs(3600));
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken"
    );
    // Changed endpoints are adopted a minute later.
    fixture.provider.set(ProviderBehavior::Moved);
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.value,
        "provider_error"
    );
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken"
    );
}

#[tokio::test]
async fn required_code_challenge_is_enforced() {
    let social = "require_code_challenge = true";
    let fixture = Fixture::with(FixtureOptions {
        social,
        ..FixtureOptions::default()
    })
    .await;
    let url = fixture.serve().await;
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    let client = client.build().expect("a client");
    let get = async |query: &str| {
        client
            .get(format!("{url}/auth/social/login{query}"))
            .send()
            .await
            .expect("a response")
    };
    let rejected = get("").await;
    assert_eq!(rejected.status(), 400);
    let problem: serde_json::Value = rejected.json().await.expect("a problem");
    assert_eq!(
        (
            &problem["errors"][0]["pointer"],
            &problem["errors"][0]["code"]
        ),
        (&json!("?code_challenge"), &json!("missing_field"))
    );
    let started = get("?code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM").await;
    assert_eq!(started.status(), 302);
}
