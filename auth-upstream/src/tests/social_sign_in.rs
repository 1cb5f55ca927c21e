//! Social sign-in and the exchange of temporary tokens.

use std::sync::Arc;

use postern_common::Code;
use serde_json::json;

use crate::config::TokenDelivery;
use crate::flows::ResetRequest;
use crate::testing::browser::{callback, follow, sign_in as sign_in_at_provider, start};
use crate::testing::{Fixture, FixtureOptions, client, email, social_of};

const ADA: &str = "ada@example.com";

#[tokio::test]
async fn temporary_token_is_exchanged_once_for_pool_tokens() {
    let fixture = Fixture::new().await;
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    assert_eq!(
        (landing.name, landing.delivery),
        ("temporaryToken", TokenDelivery::Fragment)
    );
    let found = fixture.exchange(&landing.value).await;
    assert_eq!(
        (found.user.email.as_str(), found.user.provider.as_str()),
        (ADA, "stub")
    );
    let user = fixture.pool.user(ADA).expect("a pool user");
    assert_eq!(found.user.user_id, user.subject);
    assert_eq!(
        fixture.actors.profile(&user.subject).expect("saved")["profile"]["firstName"],
        "Ada"
    );
    let tokens = found.tokens.expect("tokens of the pool");
    fixture.refresh(&tokens).await.expect("refreshed");

    let again = fixture
        .service
        .flows
        .exchange
        .exchange(&client(), &landing.value, None)
        .await
        .expect_err("used before");
    assert_eq!(again.code(), Code::InvalidTemporaryToken);
    // A second sign-in resolves to the same user.
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    let found = fixture.exchange(&landing.value).await;
    assert_eq!(found.user.user_id, user.subject);
}

#[tokio::test]
async fn exchange_without_aws_credentials_has_no_tokens() {
    let fixture = Fixture::with(FixtureOptions {
        no_credentials: true,
        ..FixtureOptions::default()
    })
    .await;
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    let found = fixture.exchange(&landing.value).await;
    assert_eq!((&found.tokens, found.user.email.as_str()), (&None, ADA));
    let body = serde_json::to_value(&found).expect("JSON");
    assert_eq!(
        (&body["tokens"], &body["tokensUnavailable"]),
        (&json!(null), &"not_configured".into())
    );
    let json = serde_json::to_value(&found.user).expect("JSON");
    assert_eq!(
        (&json["emailVerified"], &json["name"]),
        (&true.into(), &"Ada Lovelace".into())
    );
}

#[tokio::test]
async fn temporary_token_expires_after_five_minutes() {
    let fixture = Fixture::new().await;
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    fixture.clock.advance(crate::flows::TEMPORARY_TOKEN_TTL);
    let late = fixture
        .service
        .flows
        .exchange
        .exchange(&client(), &landing.value, None)
        .await
        .expect_err("expired");
    assert_eq!(late.code(), Code::InvalidTemporaryToken);
}

#[tokio::test]
async fn wrong_verifier_invalidates_the_token() {
    let fixture = Fixture::new().await;
    let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    for (first, is_right) in [
        (Some(verifier), true),
        (Some(challenge), false),
        (None, false),
    ] {
        let url = start(&fixture, Some(challenge)).await;
        let landing = follow(
            &fixture,
            callback(fixture.provider.consent(&url, json!({}))),
        )
        .await;
        let outcome = fixture
            .service
            .flows
            .exchange
            .exchange(&client(), &landing.value, first)
            .await;
        assert_eq!(outcome.is_ok(), is_right, "{first:?}");
        let again = fixture
            .service
            .flows
            .exchange
            .exchange(&client(), &landing.value, Some(verifier))
            .await;
        assert!(again.is_err(), "invalidated");
    }
}

#[tokio::test]
async fn password_of_the_user_is_never_replaced() {
    let fixture = Fixture::new().await;
    sign_in_at_provider(&fixture, json!({})).await;
    let reset = ResetRequest {
        email: email(ADA),
        code: "123456".to_owned(),
        new_password: "Password-2".into(),
    };
    fixture
        .service
        .flows
        .password
        .reset(&client(), &reset)
        .await
        .expect("reset");
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    let found = fixture.exchange(&landing.value).await;
    assert_eq!(found.tokens, None);
    fixture
        .sign_in(ADA, "Password-2")
        .await
        .expect("the password works");
}

#[tokio::test]
async fn provider_tokens_are_resealed_with_the_newest_key() {
    let fixture = Fixture::new().await;
    sign_in_at_provider(&fixture, json!({})).await;
    let replica = fixture.replica_with_new_key().await;
    let social = social_of(&replica);
    assert_eq!(
        social.provider_tokens().reseal_all().await.expect("sealed"),
        1
    );
    assert_eq!(
        social
            .provider_tokens()
            .reseal_all()
            .await
            .expect("nothing left"),
        0
    );
    let first = (String::new(), String::new());
    let stored = replica
        .store
        .provider_tokens(&first, 9)
        .await
        .expect("read")
        .remove(0);
    let context = [
        "stub",
        fixture.provider.url.as_str(),
        "p-1",
        stored.user_id.as_str(),
    ];
    let opened = social
        .config()
        .key_ring
        .open(&context, &stored.sealed)
        .expect("opens");
    assert_eq!(opened.as_slice(), b"provider-refresh");
    // Neither the older key nor another user id opens it.
    let older = fixture.social();
    assert!(
        older
            .config()
            .key_ring
            .open(&context, &stored.sealed)
            .is_none()
    );
    assert!(
        social
            .config()
            .key_ring
            .open(&["stub", &fixture.provider.url, "p-1", "u"], &stored.sealed)
            .is_none()
    );
}

#[tokio::test]
async fn one_of_concurrent_exchanges_succeeds() {
    let fixture = Fixture::new().await;
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (service, token) = (Arc::clone(&fixture.service), landing.value.clone());
        callers.spawn(async move {
            service
                .flows
                .exchange
                .exchange(&client(), &token, None)
                .await
                .is_ok()
        });
    }
    let won = callers
        .join_all()
        .await
        .into_iter()
        .filter(|won| *won)
        .count();
    assert_eq!(won, 1);
}
