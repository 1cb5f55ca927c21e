//! The token cache: contents, expiry and memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::fixtures::{
    NOW_S, RSA, USERS, World, b64, claims_of, clock, issuers, user_claims, with,
};
use crate::clock::{Period, Timestamp};
use crate::token::cache::{CachedResult, TokenCache};
use crate::token::digest::TokenHasher;
use crate::token::jwk::VerificationKey;
use crate::token::{Caller, Claims, Service, TokenError, User, VerifierOptions};

#[tokio::test]
async fn token_is_cached_until_exp() {
    let world = World::usual().await;
    let token = RSA.token("u1", &with(user_claims(), "exp", json!(NOW_S + 60)));
    assert!(world.verifier.verify_cached(&token).is_none());
    assert!(world.accepts(&token).await);
    world.clock.advance(Duration::from_millis(59_999));
    let cached = world.verifier.verify_cached(&token).expect("cached");
    assert_eq!(cached.expect("accepted").issuer(), USERS);
    world.clock.advance(Duration::from_millis(1));
    assert!(world.verifier.verify_cached(&token).is_none());
    assert_eq!(world.rejection(&token).await, TokenError::Expired);
}

#[tokio::test]
async fn what_a_clock_that_was_ahead_decided_ends_when_it_is_right() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    world.clock.advance(Duration::from_secs(100 * 86_400));
    assert_eq!(world.rejection(&token).await, TokenError::Expired);
    world.clock.set(Timestamp::from_unix_seconds(NOW_S));
    assert!(world.accepts(&token).await);
    let fetches = world.users.requests();
    world.verifier.refresh_due().await;
    // The keys are from later.
    assert_eq!(world.users.requests(), fetches + 1);
}

#[tokio::test]
async fn cached_token_does_not_match_a_changed_token() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.accepts(&token).await);
    for place in (0..token.len()).step_by(7) {
        let mut other = token.clone().into_bytes();
        other[place] = if other[place] == b'A' { b'B' } else { b'A' };
        let other = String::from_utf8(other).unwrap();
        assert!(world.verifier.verify_cached(&other).is_none());
        assert!(!world.accepts(&other).await, "byte {place}");
    }
    let shorter = &token[..token.len() - 1];
    assert!(world.verifier.verify_cached(shorter).is_none());
    assert!(world.verifier.verify_cached("").is_none());
}

#[tokio::test]
async fn change_of_trusted_issuers_clears_the_cache() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.accepts(&token).await);
    let mut changed = issuers(&world.users.url, &world.services.url);
    changed[0].client_ids = vec!["another".to_owned()];
    world.trust(changed.clone()).await;
    assert!(world.verifier.verify_cached(&token).is_none());
    assert_eq!(world.rejection(&token).await, TokenError::Client);
    // The keys of an issuer that stays are kept.
    assert_eq!(world.users.requests(), 1);
    world.trust(changed).await;
    // Nothing has changed.
    assert!(world.verifier.verify_cached(&token).is_some());
    world.trust(Vec::new()).await;
    assert_eq!(world.rejection(&token).await, TokenError::Issuer);
}

#[tokio::test]
async fn rejection_is_cached_briefly() {
    let world = World::usual().await;
    let token = RSA.token("u1", &user_claims());
    let (input, _) = token.rsplit_once('.').unwrap();
    let forged = format!("{input}.{}", b64([1; 256]));
    assert_eq!(world.rejection(&forged).await, TokenError::Signature);
    let cached = world.verifier.verify_cached(&forged).expect("cached");
    assert_eq!(cached.err(), Some(TokenError::Signature));
    world.clock.advance(Duration::from_secs(5));
    assert!(world.verifier.verify_cached(&forged).is_none());
}

#[tokio::test]
async fn temporary_rejection_is_not_cached() {
    let world = World::usual().await;
    let early = RSA.token("u1", &with(user_claims(), "nbf", json!(NOW_S + 6)));
    assert_eq!(world.rejection(&early).await, TokenError::NotYetValid);
    world.clock.advance(Duration::from_secs(1));
    assert!(world.accepts(&early).await);
}

async fn with_cache(cache_bytes: usize) -> World {
    let options = |options| VerifierOptions {
        cache_bytes,
        ..options
    };
    World::with_options(&[RSA.jwk("u1")], &[], options).await
}

#[tokio::test]
async fn memory_is_bounded_and_used_entries_stay() {
    const BYTES: usize = 100_000;
    let world = with_cache(BYTES).await;
    let token = |n: usize| RSA.token("u1", &claims_of(n));
    let favourite = token(0);
    assert!(world.accepts(&favourite).await);
    let mut kept = 0;
    for n in 1..600 {
        assert!(world.accepts(&token(n)).await);
        kept += usize::from(world.verifier.verify_cached(&favourite).is_some());
        let (entries, bytes) = world.verifier.cache_size();
        assert!(bytes <= BYTES && entries < 400, "{entries} {bytes}");
    }
    assert_eq!(kept, 599);
    assert!(world.verifier.cache_size().0 > 50);
}

#[tokio::test]
async fn cache_of_zero_bytes_stores_nothing() {
    let world = with_cache(0).await;
    let token = RSA.token("u1", &user_claims());
    assert!(world.accepts(&token).await);
    assert!(world.verifier.verify_cached(&token).is_none());
}

#[test]
fn digest_covers_the_whole_token_and_the_secret() {
    let [hasher, other] = [b"one fixed secret", b"another's secret"].map(TokenHasher::new);
    let token = RSA.token("u1", &user_claims());
    let digest = hasher.digest(&token);
    assert!(hasher.digest(&token.clone()) == digest && other.digest(&token) != digest);
    for place in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[place] ^= 1;
        let changed = String::from_utf8(changed).expect("ASCII");
        assert_ne!(hasher.digest(&changed), digest, "byte {place}");
    }
    assert_ne!(hasher.digest(&token[1..]), digest);
    assert_ne!(hasher.digest(&format!("{token}\0")), digest);
}

/// An operation on the cache: insert, reject, look up, advance one second, change the trusted
/// issuers.
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

/// Returns tokens that share their header, and in pairs their payload or their signature.
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
    /// Compares with a plain map: a cached result is the last one inserted for this token, and
    /// is still valid.
    #[test]
    fn cache_agrees_with_a_plain_map(steps in steps(), bytes in prop_oneof![Just(900usize), Just(1 << 20)]) {
        let (cache, clock, hasher) = (TokenCache::new(bytes), clock(), TokenHasher::new(b"one fixed secret"));
        let members = RSA.jwk("u1");
        let (_, key) = VerificationKey::read(members.as_object().expect("an object")).expect("a key");
        let key = Arc::new(key);
        key.extend_until(Timestamp(i64::MAX));
        let mut generation = 1;
        let mut said: HashMap<String, (Result<i64, ()>, Timestamp, u32)> = HashMap::new();
        for step in steps {
            let now = clock.now();
            match step {
                Step::Accept { token, lives_s } => {
                    let token = made_up(token);
                    let expires_at = now.unix_seconds() + lives_s;
                    let caller = service(&token, expires_at);
                    let digest = hasher.digest(&token);
                    cache.insert(digest, CachedResult::Accepted { caller, key: Arc::clone(&key) }, generation);
                    prop_assert_eq!(cache.get(digest, now, generation).is_some(), lives_s > 0);
                    said.insert(token, (Ok(expires_at), Timestamp::from_unix_seconds(expires_at), generation));
                }
                Step::Refuse { token, lives_s } => {
                    let token = made_up(token);
                    let period = Period::new(now, Duration::from_secs(lives_s));
                    let refused = CachedResult::Rejected { error: TokenError::Signature, period };
                    cache.insert(hasher.digest(&token), refused, generation);
                    said.insert(token, (Err(()), period.until(), generation));
                }
                Step::Ask { token } => {
                    let token = made_up(token);
                    if let Some(outcome) = cache.get(hasher.digest(&token), now, generation) {
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

/// Uses names in the format of a pool.
#[test]
fn default_size_holds_a_hundred_thousand_tokens() {
    let (_, key) = VerificationKey::read(RSA.jwk("u1").as_object().unwrap()).expect("a key");
    let (cache, key) = (TokenCache::new(40 << 20), Arc::new(key));
    let hasher = TokenHasher::new(b"one fixed secret");
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
        let digest = hasher.digest(&number.to_string());
        let key = Arc::clone(&key);
        cache.insert(digest, CachedResult::Accepted { caller, key }, 0);
    }
    assert_eq!(cache.size().0, 100_000, "{} bytes", cache.size().1);
}
