//! The `state` parameter of a social sign-in.

use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::testing::redis;
use serde_json::json;

use crate::flows::SocialCallback;
use crate::testing::browser::{callback, follow, start};
use crate::testing::{Fixture, FixtureOptions, client, social_of};

#[tokio::test]
async fn state_is_single_use_and_must_be_sealed_here() {
    let fixture = Fixture::new().await;
    let url = start(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    assert_eq!(follow(&fixture, back.clone()).await.name, "temporaryToken");
    assert_eq!(follow(&fixture, back.clone()).await.value, "invalid_state");
    let forged = SocialCallback {
        state: Some("x".to_owned()),
        ..back.clone()
    };
    assert_eq!(follow(&fixture, forged).await.value, "invalid_state");
    // A text with another sealing context.
    let sealed = fixture
        .service
        .flows
        .refresh
        .key_ring
        .seal(&["postern refresh token"], b"{}");
    let other = SocialCallback {
        state: Some(sealed),
        ..back
    };
    assert_eq!(follow(&fixture, other).await.value, "invalid_state");
    assert_eq!(
        follow(&fixture, SocialCallback::default()).await.value,
        "invalid_request"
    );
}

#[tokio::test]
async fn failed_callback_uses_the_state_and_old_states_expire() {
    let fixture = Fixture::new().await;
    let url = start(&fixture, None).await;
    let (code, state) = fixture.provider.consent(&url, json!({}));
    let wrong = callback(("another code".to_owned(), state.clone()));
    assert_eq!(follow(&fixture, wrong).await.value, "provider_error");
    assert_eq!(
        follow(&fixture, callback((code, state))).await.value,
        "invalid_state"
    );

    let url = start(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    fixture.clock.advance(Duration::from_secs(10 * 60));
    assert_eq!(follow(&fixture, back).await.value, "invalid_state");
}

#[tokio::test]
async fn one_of_concurrent_callbacks_with_a_state_succeeds() {
    let fixture = Fixture::with(FixtureOptions {
        cache: Some(redis().await),
        ..FixtureOptions::default()
    })
    .await;
    let replicas = [Arc::clone(&fixture.service), fixture.replica().await];
    let url = start(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    let mut racing = tokio::task::JoinSet::new();
    for index in 0..16 {
        let (service, back) = (Arc::clone(&replicas[index % 2]), back.clone());
        racing.spawn(async move { social_of(&service).handle_callback(&client(), back).await });
    }
    let landings = racing.join_all().await;
    let won = landings
        .iter()
        .filter(|landing| landing.name == "temporaryToken")
        .count();
    let lost = landings
        .iter()
        .filter(|landing| landing.value == "invalid_state")
        .count();
    assert_eq!((won, lost), (1, 15));
}

#[tokio::test]
async fn starting_a_sign_in_stores_nothing() {
    let fixture = Fixture::new().await;
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let before = format!("{:?}", fixture.service.cache);
    let mut longest = 0;
    for _ in 0..100 {
        let url = start(&fixture, Some(challenge)).await;
        let state = url
            .query_pairs()
            .find(|(name, _)| name == "state")
            .expect("a state")
            .1
            .len();
        longest = longest.max(state);
    }
    assert!(before.contains("entries: 0"), "{before}");
    assert_eq!(format!("{:?}", fixture.service.cache), before);
    assert!(longest < 600, "{longest}");
}
