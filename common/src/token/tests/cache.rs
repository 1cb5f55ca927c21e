//! What is remembered, for how long, and how much of it.

use std::time::Duration;

use serde_json::json;

use super::kit::{NOW_S, RSA, USERS, World, b64, issuers, user_claims, with};
use crate::token::Refusal;
use crate::token::jwk::NamedKey;

#[tokio::test]
async fn a_token_is_remembered_until_exp() {
    let world = World::usual().await;
    let token = RSA.token("u1", &with(user_claims(), "exp", json!(NOW_S + 60)));
    assert!(world.verifier.verify_cached(&token).is_none());
    assert!(world.verifier.verify(&token).await.is_ok());
    world.clock.advance(Duration::from_millis(59_999));
    let caller = world.verifier.verify_cached(&token).expect("remembered").expect("accepted");
    assert_eq!(caller.issuer(), USERS);
    world.clock.advance(Duration::from_millis(1));
    assert!(world.verifier.verify_cached(&token).is_none());
    assert_eq!(world.verifier.verify(&token).await.unwrap_err(), Refusal::Expired);
}

#[tokio::test]
async fn a_remembered_token_vouches_for_no_other_byte() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.verifier.verify(&token).await.is_ok());
    for place in (0..token.len()).step_by(7) {
        let mut other = token.clone().into_bytes();
        other[place] = if other[place] == b'A' { b'B' } else { b'A' };
        let other = String::from_utf8(other).unwrap();
        assert!(world.verifier.verify_cached(&other).is_none());
        assert!(world.verifier.verify(&other).await.is_err(), "byte {place}");
    }
    assert!(world.verifier.verify_cached(&token[..token.len() - 1]).is_none());
    assert!(world.verifier.verify_cached("").is_none());
}

#[tokio::test]
async fn a_change_of_the_trust_forgets_everything() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.verifier.verify(&token).await.is_ok());
    let mut changed = issuers(&world.users.url, &world.services.url);
    changed[0].client_ids = vec!["another".to_owned()];
    world.verifier.replace_issuers(changed);
    assert!(world.verifier.verify_cached(&token).is_none());
    assert_eq!(world.verifier.verify(&token).await.unwrap_err(), Refusal::Client);
    assert_eq!(world.users.requests(), 1, "the keys of an issuer that stays are kept");
    world.verifier.replace_issuers(Vec::new());
    assert_eq!(world.verifier.verify(&token).await.unwrap_err(), Refusal::Issuer);
}

#[tokio::test]
async fn a_refusal_is_remembered_briefly() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    let (input, _) = token.rsplit_once('.').unwrap();
    let forged = format!("{input}.{}", b64([1; 256]));
    assert_eq!(world.verifier.verify(&forged).await.unwrap_err(), Refusal::Signature);
    assert_eq!(world.verifier.verify_cached(&forged).expect("remembered").unwrap_err(), Refusal::Signature);
    world.clock.advance(Duration::from_secs(5));
    assert!(world.verifier.verify_cached(&forged).is_none());
}

#[tokio::test]
async fn what_passes_by_itself_is_not_remembered() {
    let world = World::usual().await;
    let early = RSA.token("u1", &with(user_claims(), "nbf", json!(NOW_S + 6)));
    assert_eq!(world.verifier.verify(&early).await.unwrap_err(), Refusal::NotYetValid);
    world.clock.advance(Duration::from_secs(1));
    assert!(world.verifier.verify(&early).await.is_ok());
}

#[tokio::test]
async fn memory_is_bounded_and_what_is_asked_for_stays() {
    const BYTES: usize = 200_000;
    let world = World::with_options(&[RSA.jwk("u1")], &[], |mut options| {
        options.cache_bytes = BYTES;
        options
    })
    .await;
    let token = |n: usize| RSA.token("u1", &with(user_claims(), "sub", json!(format!("{n}"))));
    let favourite = token(0);
    assert!(world.verifier.verify(&favourite).await.is_ok());
    let mut kept = 0;
    for n in 1..600 {
        assert!(world.verifier.verify(&token(n)).await.is_ok());
        kept += usize::from(world.verifier.verify_cached(&favourite).is_some());
        let (entries, bytes) = world.verifier.cache_size();
        assert!(bytes <= BYTES && entries < 400, "{entries} entries, {bytes} bytes");
    }
    assert_eq!(kept, 599);
    assert!(world.verifier.cache_size().0 > 50);
}

#[tokio::test]
async fn a_cache_of_no_bytes_remembers_nothing() {
    let world = World::with_options(&[RSA.jwk("u1")], &[], |mut options| {
        options.cache_bytes = 0;
        options
    })
    .await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.verifier.verify(&token).await.is_ok());
    assert!(world.verifier.verify_cached(&token).is_none());
}

#[test]
fn the_header_is_kept_once_and_still_compared() {
    let members = RSA.jwk("u1");
    let key = NamedKey::read(members.as_object().expect("an object")).expect("a key").key;
    let token = RSA.token("u1", &user_claims());
    let text = key.without_header(&token);
    assert!(text.len() < token.len() && key.kept_as(&token, text));
    let other_header = RSA.token_with(&json!({"alg": "RS256", "kid": "u1", "typ": "JWT"}), &user_claims());
    let other_text = key.without_header(&other_header);
    assert_eq!(other_text, other_header, "a header that is spelt otherwise is kept with its token");
    assert!(key.kept_as(&other_header, other_text) && !key.kept_as(&other_header, text));
    let start = token.len() - text.len();
    for head in ["x".repeat(start), format!("{}é", "x".repeat(start - 1)), String::new()] {
        assert!(!key.kept_as(&format!("{head}{text}"), text) || head.is_empty());
    }
    assert!(!key.kept_as("é", text));
}
