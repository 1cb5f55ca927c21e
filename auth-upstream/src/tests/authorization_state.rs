//! The `state` parameter of a social sign-in, and the temporary token at its end: each is used once.

use std::time::Duration;

use postern_core::Code;
use postern_store::cache::testing::RedisServer;

use crate::flows::{SocialCallback, TemporaryTokens};
use crate::testing::browser::{self, callback, follow, start};
use crate::testing::{Fixture, FixtureOptions};

#[tokio::test]
async fn state_is_single_use_and_must_be_sealed_here() {
    let fixture = Fixture::new().await;
    let back = callback(&fixture).await;
    assert_eq!(follow(&fixture, back.clone()).await.name, "temporaryToken");
    assert_eq!(follow(&fixture, back.clone()).await.value, "invalid_state");
    let foreign = |state: String| SocialCallback {
        state: Some(state),
        ..back.clone()
    };
    // A text with another sealing context.
    let key_ring = &fixture.flows().refresh.key_ring;
    let sealed = key_ring.seal(&["postern refresh token"], b"{}");
    for state in ["x".to_owned(), sealed] {
        let landing = follow(&fixture, foreign(state)).await;
        assert_eq!(landing.value, "invalid_state");
    }
    let empty = follow(&fixture, SocialCallback::default()).await;
    assert_eq!(empty.value, "invalid_request");
}

#[tokio::test]
async fn failed_callback_uses_the_state_and_old_states_expire() {
    let fixture = Fixture::new().await;
    let back = callback(&fixture).await;
    let wrong = SocialCallback {
        code: Some("another code".to_owned()),
        ..back.clone()
    };
    assert_eq!(follow(&fixture, wrong).await.value, "provider_error");
    assert_eq!(follow(&fixture, back).await.value, "invalid_state");

    let back = callback(&fixture).await;
    fixture.clock.advance(Duration::from_secs(10 * 60));
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
async fn used_tokens_and_states_of_a_snapshot_are_rejected() {
    let mut redis = RedisServer::start(&["--save", "3600 1", "--appendonly", "no"]).await;
    // A long deadline, for loaded machines.
    let fixture = Fixture::with(FixtureOptions {
        cache_url: Some(format!("{}?deadline=2000ms", redis.url())),
        ..FixtureOptions::default()
    })
    .await;
    let sign_in = async || browser::sign_in(&fixture, browser::ADA).await.value;
    let (used, unused) = (sign_in().await, sign_in().await);
    let back = callback(&fixture).await;
    redis.command("SAVE").await;
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
        let stored = cache.get(&TemporaryTokens::cache_key(token)).await;
        assert!(stored.expect("the cache answers").is_some(), "restored");
        let rejected = fixture.try_exchange(token, None).await;
        let rejected = rejected.expect_err("a token of another epoch");
        assert_eq!(rejected.code(), Code::InvalidTemporaryToken);
    }
    let landing = follow(&fixture, back).await;
    assert_eq!(landing.value, "invalid_state", "its mark is lost");
    fixture.exchange(&sign_in().await).await;
}
