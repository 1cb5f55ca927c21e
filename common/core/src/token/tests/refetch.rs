//! Refetches for unknown keys: cancellation, floods and repetition.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::fixtures::{Behaviour, OTHER_RSA, RSA, World, jwks, user_claims, with};
use crate::token::TokenError;

const UNAVAILABLE: TokenError = TokenError::KeysUnavailable { retry_after_s: 1 };

#[tokio::test]
async fn cancelled_request_decides_nothing_for_waiting_ones() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    world.users.becomes(Behaviour::Hang);
    let tokens = ["a", "b"]
        .map(|subject| OTHER_RSA.token("u2", &with(user_claims(), "sub", json!(subject))));
    let mut given_up = Box::pin(world.verifier.verify(&tokens[0]));
    let mut patient = Box::pin(world.verifier.verify(&tokens[1]));
    let asked = async {
        while world.users.requests() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = &mut given_up => panic!("the server hangs"),
        _ = &mut patient => panic!("the server hangs"),
        () = asked => {}
    }
    world.users.becomes(Behaviour::Serve(jwks(&[
        RSA.jwk("u1"),
        OTHER_RSA.jwk("u2"),
    ])));
    drop(given_up);
    assert!(patient.await.is_ok());
}

#[tokio::test]
async fn flood_of_unknown_kids_is_bounded_per_issuer() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let flood = |n: usize| {
        RSA.token_with(
            &json!({"alg": "RS256", "kid": format!("x{n}")}),
            &user_claims(),
        )
    };
    let tokens: Vec<String> = (0..2000).map(flood).collect();
    let errors = join_all(tokens.iter().map(|token| world.verifier.verify(token))).await;
    assert!(
        errors
            .iter()
            .all(|outcome| matches!(outcome, Err(TokenError::KeyUnknown | UNAVAILABLE)))
    );
    let fetches = world.users.requests();
    assert!(
        fetches <= 3,
        "{fetches} fetches for 2,000 concurrent unknown kids"
    );
    for n in 0..20 {
        world.rejection(&flood(5000 + n)).await;
    }
    world.users.becomes(Behaviour::Serve(jwks(&[
        RSA.jwk("u1"),
        OTHER_RSA.jwk("u2"),
    ])));
    let legitimate = OTHER_RSA.token("u2", &user_claims());
    assert!(
        world.accepts(&legitimate).await,
        "a new key is served after the budget is spent"
    );
    assert!(world.accepts(&RSA.token("u1", &user_claims())).await);
    assert_eq!(
        world.services.requests(),
        1,
        "the other issuer is not affected"
    );
}

#[tokio::test]
async fn repeated_token_of_a_removed_key_causes_one_fetch() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let token = OTHER_RSA.token("gone", &user_claims());
    for _ in 0..20 {
        assert_eq!(world.rejection(&token).await, TokenError::KeyUnknown);
    }
    assert_eq!(world.users.requests(), 2);
    world
        .users
        .becomes(Behaviour::Serve(jwks(&[OTHER_RSA.jwk("gone")])));
    world.clock.advance(Duration::from_secs(5));
    assert!(
        world.accepts(&token).await,
        "the restored key is fetched again"
    );
}
