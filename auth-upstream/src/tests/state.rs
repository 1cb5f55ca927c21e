//! The state of a social sign-in.

use std::sync::Arc;
use std::time::Duration;

use postern_common::cache::testing::redis;
use serde_json::json;

use crate::social::Callback;
use crate::testing::social::{begin, callback, finish};
use crate::testing::{Fixture, Wish, visitor};

#[tokio::test]
async fn a_state_is_used_once_and_must_be_ours() {
    let fixture = Fixture::new().await;
    let url = begin(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    assert_eq!(finish(&fixture, back.clone()).await.name, "temporaryToken");
    assert_eq!(finish(&fixture, back.clone()).await.value, "invalid_state");
    let forged = Callback {
        state: Some("x".to_owned()),
        ..back.clone()
    };
    assert_eq!(finish(&fixture, forged).await.value, "invalid_state");
    // A text of ours that is no state.
    let sealed = fixture.auth.ring.seal(&["postern refresh token"], b"{}");
    let other = Callback {
        state: Some(sealed),
        ..back
    };
    assert_eq!(finish(&fixture, other).await.value, "invalid_state");
    assert_eq!(
        finish(&fixture, Callback::default()).await.value,
        "invalid_request"
    );
}

#[tokio::test]
async fn a_state_that_failed_is_used_too_and_an_old_one_is_none() {
    let fixture = Fixture::new().await;
    let url = begin(&fixture, None).await;
    let (code, state) = fixture.provider.consent(&url, json!({}));
    let wrong = callback(("another code".to_owned(), state.clone()));
    assert_eq!(finish(&fixture, wrong).await.value, "provider_error");
    assert_eq!(
        finish(&fixture, callback((code, state))).await.value,
        "invalid_state"
    );

    let url = begin(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    fixture.clock.advance(Duration::from_secs(10 * 60));
    assert_eq!(finish(&fixture, back).await.value, "invalid_state");
}

#[tokio::test]
async fn of_sixteen_callbacks_with_one_state_one_goes_on_whichever_replica_it_meets() {
    let fixture = Fixture::with(Wish {
        cache: Some(redis().await),
        ..Wish::default()
    })
    .await;
    let replicas = [Arc::clone(&fixture.auth), fixture.replica().await];
    let url = begin(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    let mut racing = tokio::task::JoinSet::new();
    for index in 0..16 {
        let (auth, back) = (Arc::clone(&replicas[index % 2]), back.clone());
        racing.spawn(async move {
            let social = auth.social.as_ref().expect("on");
            auth.finish_social(&visitor(), social, back).await
        });
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

/// Whoever begins sign-ins fills nothing: all that is remembered travels with the browser.
#[tokio::test]
async fn beginning_stores_nothing_and_the_state_is_short() {
    // Room for a mark, the temporary token and what else one sign-in needs, and not for a hundred
    // beginnings.
    let fixture = Fixture::new().await;
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let before = format!("{:?}", fixture.auth.cache);
    let mut longest = 0;
    for _ in 0..100 {
        let url = begin(&fixture, Some(challenge)).await;
        let state = url
            .query_pairs()
            .find(|(name, _)| name == "state")
            .expect("a state")
            .1
            .len();
        longest = longest.max(state);
    }
    assert!(before.contains("entries: 0"), "{before}");
    assert_eq!(format!("{:?}", fixture.auth.cache), before);
    assert!(longest < 600, "{longest}");
}
