//! What is remembered, for how long, and how much of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::kit::{NOW_S, RSA, USERS, World, b64, clock, issuers, user_claims, with};
use crate::clock::Timestamp;
use crate::token::cache::{Cache, Outcome};
use crate::token::jwk::NamedKey;
use crate::token::mark::Marker;
use crate::token::{Caller, Claims, Refusal, Service, User};

#[tokio::test]
async fn a_token_is_remembered_until_exp() {
    let world = World::usual().await;
    let token = RSA.token("u1", &with(user_claims(), "exp", json!(NOW_S + 60)));
    assert!(world.verifier.verify_cached(&token).is_none());
    assert!(world.verifier.verify(&token).await.is_ok());
    world.clock.advance(Duration::from_millis(59_999));
    let caller = world
        .verifier
        .verify_cached(&token)
        .expect("remembered")
        .expect("accepted");
    assert_eq!(caller.issuer(), USERS);
    world.clock.advance(Duration::from_millis(1));
    assert!(world.verifier.verify_cached(&token).is_none());
    assert_eq!(
        world.verifier.verify(&token).await.unwrap_err(),
        Refusal::Expired
    );
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
    assert!(
        world
            .verifier
            .verify_cached(&token[..token.len() - 1])
            .is_none()
    );
    assert!(world.verifier.verify_cached("").is_none());
}

#[tokio::test]
async fn a_change_of_the_trust_forgets_everything() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.verifier.verify(&token).await.is_ok());
    let mut changed = issuers(&world.users.url, &world.services.url);
    changed[0].client_ids = vec!["another".to_owned()];
    world.verifier.replace_issuers(changed.clone());
    assert!(world.verifier.verify_cached(&token).is_none());
    assert_eq!(
        world.verifier.verify(&token).await.unwrap_err(),
        Refusal::Client
    );
    assert_eq!(
        world.users.requests(),
        1,
        "the keys of an issuer that stays are kept"
    );
    world.verifier.replace_issuers(changed);
    assert!(
        world.verifier.verify_cached(&token).is_some(),
        "a refusal stays: nothing has changed"
    );
    world.verifier.replace_issuers(Vec::new());
    assert_eq!(
        world.verifier.verify(&token).await.unwrap_err(),
        Refusal::Issuer
    );
}

#[tokio::test]
async fn a_refusal_is_remembered_briefly() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    let (input, _) = token.rsplit_once('.').unwrap();
    let forged = format!("{input}.{}", b64([1; 256]));
    assert_eq!(
        world.verifier.verify(&forged).await.unwrap_err(),
        Refusal::Signature
    );
    assert_eq!(
        world
            .verifier
            .verify_cached(&forged)
            .expect("remembered")
            .unwrap_err(),
        Refusal::Signature
    );
    world.clock.advance(Duration::from_secs(5));
    assert!(world.verifier.verify_cached(&forged).is_none());
}

#[tokio::test]
async fn what_passes_by_itself_is_not_remembered() {
    let world = World::usual().await;
    let early = RSA.token("u1", &with(user_claims(), "nbf", json!(NOW_S + 6)));
    assert_eq!(
        world.verifier.verify(&early).await.unwrap_err(),
        Refusal::NotYetValid
    );
    world.clock.advance(Duration::from_secs(1));
    assert!(world.verifier.verify(&early).await.is_ok());
}

#[tokio::test]
async fn memory_is_bounded_and_what_is_asked_for_stays() {
    const BYTES: usize = 100_000;
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
        assert!(
            bytes <= BYTES && entries < 400,
            "{entries} entries, {bytes} bytes"
        );
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
fn a_mark_is_of_the_whole_token_and_under_the_secret() {
    let (marker, other) = (
        Marker::new(b"one fixed secret"),
        Marker::new(b"another's secret"),
    );
    let token = RSA.token("u1", &user_claims());
    let mark = marker.mark(&token);
    assert!(marker.mark(&token.clone()) == mark && other.mark(&token) != mark);
    for place in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[place] ^= 1;
        let changed = String::from_utf8(changed).expect("ASCII");
        assert_ne!(marker.mark(&changed), mark, "byte {place}");
    }
    assert_ne!(marker.mark(&token[1..]), mark);
    assert_ne!(marker.mark(&format!("{token}\0")), mark);
}

/// What a step does to the cache: remember, refuse, ask, let a second pass, change the trust.
#[derive(Clone, Debug)]
enum Step {
    Accept { token: u8, lives_s: i64 },
    Refuse { token: u8, lives_s: u64 },
    Ask { token: u8 },
    Second,
    Change,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..12u8, 0..6i64).prop_map(|(token, lives_s)| Step::Accept { token, lives_s }),
        1 => (0..12u8, 0..6u64).prop_map(|(token, lives_s)| Step::Refuse { token, lives_s }),
        6 => (0..12u8).prop_map(|token| Step::Ask { token }),
        2 => Just(Step::Second),
        1 => Just(Step::Change),
    ];
    prop::collection::vec(step, 1..120)
}

/// Tokens of one key that share their header, and in pairs their payload or their signature.
fn made_up(number: u8) -> String {
    format!("header.payload{}.{:x>90}", number / 2, number % 3)
}

fn service(subject: &str, expires_at: i64) -> Caller {
    Caller::Service(Arc::new(Service {
        issuer: "i".into(),
        subject: subject.into(),
        service_id: "s".into(),
        scopes: Arc::default(),
        expires_at,
    }))
}

proptest! {
    /// Against a plain map: whatever is remembered is what was last said of this very token, and
    /// still counts.
    #[test]
    fn the_cache_says_of_a_token_what_was_said_of_it(steps in steps(), bytes in prop_oneof![Just(900usize), Just(1 << 20)]) {
        let (cache, clock, marker) = (Cache::new(bytes), clock(), Marker::new(b"one fixed secret"));
        let members = RSA.jwk("u1");
        let key = Arc::new(NamedKey::read(members.as_object().expect("an object")).expect("a key").key);
        key.keep_until(Timestamp(i64::MAX));
        let mut generation = 1;
        let mut said: HashMap<String, (Result<i64, ()>, Timestamp, u32)> = HashMap::new();
        for step in steps {
            let now = clock.now();
            match step {
                Step::Accept { token, lives_s } => {
                    let token = made_up(token);
                    let expires_at = now.unix_seconds() + lives_s;
                    let caller = service(&token, expires_at);
                    let mark = marker.mark(&token);
                    cache.insert(mark, Outcome::Accepted { caller, key: Arc::clone(&key) }, generation);
                    prop_assert_eq!(cache.get(mark, now, generation).is_some(), lives_s > 0);
                    said.insert(token, (Ok(expires_at), Timestamp::from_unix_seconds(expires_at), generation));
                }
                Step::Refuse { token, lives_s } => {
                    let token = made_up(token);
                    let until = now.plus(Duration::from_secs(lives_s));
                    let refused = Outcome::Refused { refusal: Refusal::Signature, until };
                    cache.insert(marker.mark(&token), refused, generation);
                    said.insert(token, (Err(()), until, generation));
                }
                Step::Ask { token } => {
                    let token = made_up(token);
                    if let Some(outcome) = cache.get(marker.mark(&token), now, generation) {
                        let (expected, until, since) = &said[&token];
                        prop_assert!(now < *until && *since == generation);
                        prop_assert_eq!(outcome.as_ref().map(Caller::expires_at).map_err(|_| ()), *expected);
                        prop_assert!(outcome.is_err() || outcome.is_ok_and(|caller| caller.subject() == token));
                    }
                }
                Step::Second => clock.advance(Duration::from_secs(1)),
                Step::Change => generation += 1,
            }
            prop_assert!(cache.size().1 <= bytes);
        }
    }
}

/// With names as a pool writes them.
#[test]
fn a_hundred_thousand_tokens_fit_into_what_the_gateway_gives_them() {
    let named = NamedKey::read(RSA.jwk("u1").as_object().unwrap()).expect("a key");
    let (cache, key, marker) = (
        Cache::new(40 << 20),
        Arc::new(named.key),
        Marker::new(b"one fixed secret"),
    );
    for number in 0..100_000 {
        let user = User {
            issuer: USERS.into(),
            subject: "7d8ca528-4931-4254-9273-ea5ee853f271".into(),
            username: "7d8ca528-4931-4254-9273-ea5ee853f271".into(),
            client_id: "2lq8p5s0example9client0id1".into(),
            scopes: Arc::new([]),
            groups: Arc::new([]),
            expires_at: i64::MAX,
            claims: Claims::default(),
        };
        let caller = Caller::User(Arc::new(user));
        let mark = marker.mark(&number.to_string());
        cache.insert(
            mark,
            Outcome::Accepted {
                caller,
                key: Arc::clone(&key),
            },
            0,
        );
    }
    assert_eq!(cache.size().0, 100_000, "{} bytes", cache.size().1);
}
