//! Refetches for unknown keys: cancellation, floods and repetition.

use std::time::Duration;

use futures_util::future::join_all;

use super::fixtures::{Behaviour, OTHER_RSA, RSA, World, claims_of, keys, user_claims};
use crate::token::TokenError;

const UNAVAILABLE: TokenError = TokenError::KeysUnavailable;

#[tokio::test]
async fn cancelled_request_decides_nothing_for_waiting_ones() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    world.users.becomes(Behaviour::Hang);
    let tokens = ["a", "b"].map(|subject| OTHER_RSA.token("u2", &claims_of(subject)));
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
    let both = keys(&[RSA.jwk("u1"), OTHER_RSA.jwk("u2")]);
    world.users.becomes(both);
    drop(given_up);
    assert!(patient.await.is_ok());
}

#[tokio::test]
async fn flood_of_unknown_kids_is_bounded_per_issuer() {
    let world = World::usual().await;
    world.verifier.refresh_now().await;
    let flood = |n: usize| RSA.token(&format!("x{n}"), &user_claims());
    let tokens: Vec<String> = (0..2000).map(flood).collect();
    let errors = join_all(tokens.iter().map(|token| world.verifier.verify(token))).await;
    let is_refused =
        |outcome: &Result<_, _>| matches!(outcome, Err(TokenError::KeyUnknown | UNAVAILABLE));
    assert!(errors.iter().all(is_refused));
    let fetches = world.users.requests();
    assert!(fetches <= 3, "{fetches} fetches");
    for n in 0..20 {
        world.rejection(&flood(5000 + n)).await;
    }
    let both = keys(&[RSA.jwk("u1"), OTHER_RSA.jwk("u2")]);
    world.users.becomes(both);
    let legitimate = OTHER_RSA.token("u2", &user_claims());
    // A new key is served after the budget is spent.
    assert!(world.accepts(&legitimate).await);
    assert!(world.accepts(&RSA.token("u1", &user_claims())).await);
    let of_other_issuer = world.services.requests();
    assert_eq!(of_other_issuer, 1);
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
    world.users.becomes(keys(&[OTHER_RSA.jwk("gone")]));
    world.clock.advance(Duration::from_secs(5));
    assert!(world.accepts(&token).await, "it is restored");
}
