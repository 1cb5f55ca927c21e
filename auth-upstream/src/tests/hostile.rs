//! A provider that lies, breaks off or keeps silent signs nobody in, and says no more than a word
//! to the UI.

use std::sync::atomic::Ordering;
use std::time::Duration;

use postern_common::Code;
use serde_json::json;

use crate::social::Callback;
use crate::testing::social::{begin, callback, finish, land};
use crate::testing::{Fixture, Mood, Wish};

const ADA: &str = "ada@example.com";

#[tokio::test]
async fn what_the_provider_says_wrong_signs_nobody_in() {
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
            land(&fixture, claims.clone()).await.value,
            "invalid_id_token",
            "{claims}"
        );
    }
    let url = begin(&fixture, None).await;
    let (_, state) = fixture.provider.consent(&url, json!({}));
    let wrong_code = callback(("another code".to_owned(), state));
    assert_eq!(finish(&fixture, wrong_code).await.value, "provider_error");
    assert!(fixture.pool.user(ADA).is_none());
}

#[tokio::test]
async fn an_answer_in_anothers_name_is_refused() {
    let fixture = Fixture::new().await;
    let url = begin(&fixture, None).await;
    let mut back = callback(fixture.provider.consent(&url, json!({})));
    back.issuer = Some("https://evil.example".to_owned());
    assert_eq!(finish(&fixture, back).await.value, "invalid_request");
    let url = begin(&fixture, None).await;
    let (_, state) = fixture.provider.consent(&url, json!({}));
    let denied = Callback {
        error: Some("access_denied".to_owned()),
        state: Some(state),
        ..Callback::default()
    };
    assert_eq!(finish(&fixture, denied).await.value, "access_denied");
}

#[tokio::test]
async fn one_that_always_names_itself_is_held_to_it() {
    let fixture = Fixture::new().await;
    fixture.provider.set(Mood::Named);
    assert_eq!(
        land(&fixture, json!({})).await.value,
        "invalid_request",
        "the answer of another"
    );
    let url = begin(&fixture, None).await;
    let mut back = callback(fixture.provider.consent(&url, json!({})));
    back.issuer = Some(fixture.provider.url.clone());
    assert_eq!(finish(&fixture, back).await.name, "temporaryToken");
}

#[tokio::test]
async fn no_answer_but_a_signed_one_of_its_own_is_believed() {
    let rows = [
        (Mood::Page(200), "provider_error"),
        (Mood::Page(500), "provider_error"),
        (Mood::Huge, "provider_unavailable"),
        (Mood::Redirect, "provider_error"),
        (Mood::NoIdToken, "invalid_id_token"),
        (Mood::Unsigned, "invalid_id_token"),
        (Mood::Hmac, "invalid_id_token"),
    ];
    let fixture = Fixture::new().await;
    for (mood, expected) in rows {
        fixture.provider.set(mood);
        assert_eq!(land(&fixture, json!({})).await.value, expected, "{mood:?}");
    }
    assert!(fixture.pool.user(ADA).is_none());
    fixture.provider.set(Mood::Honest);
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken");
}

#[tokio::test]
async fn one_that_keeps_silent_is_given_up_and_its_own_errors_are_words_of_ours() {
    let fixture = Fixture::new().await;
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken");
    fixture.provider.set(Mood::Silent);
    assert_eq!(
        land(&fixture, json!({})).await.value,
        "provider_unavailable"
    );
    fixture.provider.set(Mood::Honest);
    for (error, expected) in [
        ("access_denied", "access_denied"),
        ("temporarily_unavailable", "provider_unavailable"),
        ("server_error", "provider_unavailable"),
        ("invalid_scope", "provider_error"),
        ("<script>alert(1)</script>", "provider_error"),
    ] {
        let url = begin(&fixture, None).await;
        let (code, state) = fixture.provider.consent(&url, json!({}));
        // An error beside a code is an error.
        let (code, error) = (Some(code), Some(error.to_owned()));
        let sent = Callback {
            code,
            error,
            state: Some(state),
            issuer: None,
        };
        assert_eq!(finish(&fixture, sent).await.value, expected);
    }
}

#[tokio::test]
async fn its_description_is_looked_for_again_and_must_be_its_own() {
    let fixture = Fixture::new().await;
    let social = fixture.auth.social.as_ref().expect("on");
    for mood in [Mood::Hidden, Mood::Impostor] {
        fixture.provider.set(mood);
        fixture.clock.advance(Duration::from_secs(1));
        let asked = fixture.provider.described.load(Ordering::SeqCst);
        for _ in 0..3 {
            let refused = fixture
                .auth
                .begin_social(social, None)
                .await
                .expect_err("not known");
            assert_eq!(refused.code(), Code::Unavailable, "{mood:?}");
        }
        assert_eq!(
            fixture.provider.described.load(Ordering::SeqCst),
            asked + 1,
            "once a second at most"
        );
    }
    fixture.provider.set(Mood::Honest);
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken");
    let asked = fixture.provider.described.load(Ordering::SeqCst);
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken");
    assert_eq!(
        fixture.provider.described.load(Ordering::SeqCst),
        asked,
        "known for an hour"
    );
    // Away when it is looked for again: used as it was.
    fixture.provider.set(Mood::Impostor);
    fixture.clock.advance(Duration::from_secs(3600));
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken");
    // Moved: followed a minute later.
    fixture.provider.set(Mood::Moved);
    assert_eq!(land(&fixture, json!({})).await.value, "provider_error");
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken");
}

#[tokio::test]
async fn where_a_challenge_is_required_no_sign_in_begins_without() {
    let social = "require_code_challenge = true";
    let fixture = Fixture::with(Wish {
        social,
        ..Wish::default()
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
            .expect("an answer")
    };
    let refused = get("").await;
    assert_eq!(refused.status(), 400);
    let problem: serde_json::Value = refused.json().await.expect("a problem");
    assert_eq!(
        (
            &problem["errors"][0]["pointer"],
            &problem["errors"][0]["code"]
        ),
        (&json!("?code_challenge"), &json!("missing_field"))
    );
    let begun = get("?code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM").await;
    assert_eq!(begun.status(), 302);
}
