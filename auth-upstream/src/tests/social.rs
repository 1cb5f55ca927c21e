use std::sync::Arc;

use postern_common::Code;
use serde_json::json;

use crate::config::Delivery;
use crate::password::Reset;
use crate::testing::social::{begin, callback, finish, land};
use crate::testing::{Fixture, Wish, email, login, visitor};

const ADA: &str = "ada@example.com";

#[tokio::test]
async fn a_social_sign_in_ends_in_tokens_of_the_pool_once() {
    let fixture = Fixture::new().await;
    let landing = land(&fixture, json!({})).await;
    assert_eq!(
        (landing.name, landing.delivery),
        ("temporaryToken", Delivery::Fragment)
    );
    let found = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged");
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
    fixture
        .auth
        .refresh(&visitor(), &tokens.refresh_token)
        .await
        .expect("refreshed");

    let again = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect_err("used");
    assert_eq!(again.code(), Code::InvalidTemporaryToken);
    // The same person again is the same user.
    let landing = land(&fixture, json!({})).await;
    let found = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged");
    assert_eq!(found.user.user_id, user.subject);
}

#[tokio::test]
async fn without_credentials_the_exchange_tells_the_user_alone() {
    let fixture = Fixture::with(Wish {
        no_credentials: true,
        ..Wish::default()
    })
    .await;
    let landing = land(&fixture, json!({})).await;
    let found = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged");
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
async fn a_temporary_token_lives_five_minutes() {
    let fixture = Fixture::new().await;
    let landing = land(&fixture, json!({})).await;
    fixture.clock.advance(crate::temporary_token::TTL);
    let late = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect_err("expired");
    assert_eq!(late.code(), Code::InvalidTemporaryToken);
}

#[tokio::test]
async fn a_wrong_verifier_uses_the_token_up() {
    let fixture = Fixture::new().await;
    let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    for (first, is_right) in [
        (Some(verifier), true),
        (Some(challenge), false),
        (None, false),
    ] {
        let url = begin(&fixture, Some(challenge)).await;
        let landing = finish(
            &fixture,
            callback(fixture.provider.consent(&url, json!({}))),
        )
        .await;
        let outcome = fixture
            .auth
            .exchange(&visitor(), &landing.value, first)
            .await;
        assert_eq!(outcome.is_ok(), is_right, "{first:?}");
        let again = fixture
            .auth
            .exchange(&visitor(), &landing.value, Some(verifier))
            .await;
        assert!(again.is_err(), "used up");
    }
}

#[tokio::test]
async fn a_password_of_the_persons_own_is_never_replaced() {
    let fixture = Fixture::new().await;
    land(&fixture, json!({})).await;
    let reset = Reset {
        email: email(ADA),
        code: "123456".to_owned(),
        new_password: "Password-2".into(),
    };
    fixture
        .auth
        .reset_password(&visitor(), &reset)
        .await
        .expect("reset");
    let landing = land(&fixture, json!({})).await;
    let found = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged");
    assert_eq!(found.tokens, None);
    fixture
        .auth
        .login(&visitor(), &login(ADA, "Password-2"))
        .await
        .expect("the password works");
}

#[tokio::test]
async fn a_new_key_seals_what_the_older_one_sealed() {
    let fixture = Fixture::new().await;
    land(&fixture, json!({})).await;
    let replica = fixture.replica_with_a_new_key().await;
    let social = replica.social.as_ref().expect("on");
    assert_eq!(
        replica
            .reseal_provider_tokens(social)
            .await
            .expect("sealed"),
        1
    );
    assert_eq!(
        replica
            .reseal_provider_tokens(social)
            .await
            .expect("nothing left"),
        0
    );
    let first = (String::new(), String::new());
    let stored = replica
        .store
        .sealed_tokens(&first, 9)
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
        .config
        .ring
        .open(&context, &stored.sealed)
        .expect("opens");
    assert_eq!(opened.as_slice(), b"provider-refresh");
    // The older key alone opens it no more, nor does the newest for another user.
    let older = fixture.auth.social.as_ref().expect("on");
    assert!(older.config.ring.open(&context, &stored.sealed).is_none());
    assert!(
        social
            .config
            .ring
            .open(&["stub", &fixture.provider.url, "p-1", "u"], &stored.sealed)
            .is_none()
    );
}

#[tokio::test]
async fn sixteen_exchanges_race_and_one_wins() {
    let fixture = Fixture::new().await;
    let landing = land(&fixture, json!({})).await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (auth, token) = (Arc::clone(&fixture.auth), landing.value.clone());
        callers.spawn(async move { auth.exchange(&visitor(), &token, None).await.is_ok() });
    }
    let won = callers
        .join_all()
        .await
        .into_iter()
        .filter(|won| *won)
        .count();
    assert_eq!(won, 1);
}
