//! What is used once: states and temporary tokens of social sign-ins, and codes.

use postern_core::Code;
use postern_store::cache::testing::RedisServer;

use super::account_codes::{redeem, send};
use crate::flows::{CodePurpose, SocialCallback, temporary_token_key};
use crate::testing::browser::{self, callback, follow, start};
use crate::testing::{ADA, Fixture, refused};

#[tokio::test]
async fn failed_callback_uses_the_state() {
    let fixture = Fixture::new().await;
    let back = callback(&fixture).await;
    let wrong = SocialCallback {
        code: Some("another code".to_owned()),
        ..back.clone()
    };
    assert_eq!(follow(&fixture, wrong).await.value, "provider_error");
    assert_eq!(follow(&fixture, back).await.value, "invalid_state");
}

#[tokio::test]
async fn starting_a_sign_in_stores_nothing() {
    let fixture = Fixture::new().await;
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let before = format!("{:?}", fixture.service.cache);
    for _ in 0..100 {
        let url = start(&fixture, Some(challenge)).await;
        let mut query = url.query_pairs();
        let state = query.find(|(name, _)| name == "state").expect("a state");
        assert!(state.1.len() < 600, "{}", state.1.len());
    }
    assert!(before.contains("entries: 0"), "{before}");
    assert_eq!(format!("{:?}", fixture.service.cache), before);
}

#[tokio::test]
async fn used_tokens_codes_and_states_of_a_snapshot_are_rejected() {
    let mut redis = RedisServer::start(&["--save", "3600 1", "--appendonly", "no"]).await;
    // A long deadline, for loaded machines.
    let fixture =
        Fixture::with(|it| it.cache = Some(format!("{}?deadline=2000ms", redis.url()))).await;
    let sign_in = async || browser::sign_in(&fixture, browser::ADA).await.value;
    let (used, unused) = (sign_in().await, sign_in().await);
    let back = callback(&fixture).await;
    let code = send(&fixture, CodePurpose::Reset, ADA).await;
    redis.command("SAVE").await;
    let redeem = async |code: &str| redeem(&fixture, CodePurpose::Reset, ADA, code).await;
    assert_eq!(redeem(&code).await, Ok(()));
    fixture.exchange(&used).await;
    assert_eq!(follow(&fixture, back.clone()).await.name, "temporaryToken");
    redis.kill().await;
    redis.restart().await;
    let cache = &fixture.service.cache;
    while cache.ping().await.is_err() {
        tokio::task::yield_now().await;
    }
    for token in [&used, &unused] {
        // The snapshot contains both; the service cannot know which one was exchanged.
        let stored = cache.get(&temporary_token_key(token)).await;
        assert!(stored.expect("the cache answers").is_some(), "restored");
        refused(
            fixture.try_exchange(token, None).await,
            Code::InvalidTemporaryToken,
        );
    }
    assert_eq!(redeem(&code).await, Err(Code::InvalidCode));
    let landing = follow(&fixture, back).await;
    assert_eq!(landing.value, "invalid_state", "its mark is lost");
    let code = send(&fixture, CodePurpose::Reset, ADA).await;
    assert_eq!(redeem(&code).await, Ok(()));
    fixture.exchange(&sign_in().await).await;
}
