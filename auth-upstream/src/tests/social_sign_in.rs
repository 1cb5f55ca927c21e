//! Social sign-in and the exchange of temporary tokens.

use postern_core::Code;
use serde_json::json;

use crate::testing::browser::{self, consent, follow, start};
use crate::testing::{ADA, Fault, Fixture, refused};

#[tokio::test]
async fn temporary_token_is_exchanged_once_for_pool_tokens() {
    let fixture = Fixture::new().await;
    let landing = browser::sign_in(&fixture, browser::ADA).await;
    let found = fixture.exchange(&landing.value).await;
    let subject = fixture.pool().subject(ADA).await.expect("a pool user");
    let user = serde_json::to_value(&found.user).expect("JSON");
    let expected = json!({ "userId": subject, "email": ADA, "emailVerified": true,
        "name": "Ada Lovelace", "provider": "dev" });
    assert_eq!(user, expected);
    let sent = fixture.bodies("/actors/register");
    let profile = json!({ "firstName": "Ada", "lastName": "Lovelace", "emailVerified": true });
    assert_eq!(sent[0]["profile"], profile);
    let tokens = found.tokens.expect("tokens of the pool");
    fixture.refresh(&tokens).await.expect("refreshed");
    refused(
        fixture.try_exchange(&landing.value, None).await,
        Code::InvalidTemporaryToken,
    );
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
        let landing = follow(&fixture, consent(&url, browser::ADA).await).await;
        let outcome = fixture.try_exchange(&landing.value, first).await;
        assert_eq!(outcome.is_ok(), is_right, "{first:?}");
        let again = fixture.try_exchange(&landing.value, Some(verifier)).await;
        again.expect_err("invalidated");
    }
}

#[tokio::test]
async fn provider_tokens_are_sealed_to_their_user() {
    let fixture = Fixture::new().await;
    let known = |answer: &mut serde_json::Value| answer["refresh_token"] = json!("known");
    fixture.inject("/token", 1, Fault::change(known));
    browser::sign_in(&fixture, browser::ADA).await;
    let stored = fixture.service.store.provider_tokens().await.remove(0);
    let (subject, user_id, sealed) = &stored;
    let social = fixture.flows().social.as_ref();
    let key_ring = &social.expect("social sign-in is on").config.key_ring;
    let open = |user_id: &str| {
        let context = ["dev", fixture.development_url(), subject, user_id];
        let opened = key_ring.open(&context, sealed);
        opened.map(|plain| plain.to_vec())
    };
    assert_eq!(open(user_id).as_deref(), Some(&b"known"[..]));
    assert_eq!(open("another"), None);
}
