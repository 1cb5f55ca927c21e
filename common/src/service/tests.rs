mod stub;

use axum::http::header;
use serde_json::json;

use self::stub::{Mood, Stub};
use super::*;
use crate::Secret;
use crate::cache::{self, Cache};
use crate::clock::{Clock, Timestamp};
use crate::config::{Env, parse};
use crate::identity::{IdentityConfig, secret_hash};

const START: Timestamp = Timestamp(1_800_000_000_000);

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

fn identity(endpoint: &str, password: &str) -> IdentityConfig {
    let env = Env::from([
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", endpoint),
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "actor-client"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "service-client"),
        ("IDP_SERVICE_CLIENT_SECRET", "client-secret"),
        ("IDP_SERVICE_ACCOUNT_USERNAME", "auth"),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", password),
    ]);
    parse("test", "", |root| IdentityConfig::read(root, &env)).expect("complete")
}

struct World {
    clock: Clock,
    stub: Stub,
    cache: Cache,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(START);
        Self {
            stub: Stub::start(&clock).await,
            cache: Cache::memory(clock.clone()),
            clock,
        }
    }

    /// Creates another replica of the same service.
    fn replica(&self) -> ServiceTokens {
        self.replica_with("hunter2")
    }

    fn replica_with(&self, password: &str) -> ServiceTokens {
        ServiceTokens::new(
            &identity(&self.stub.url, password),
            self.cache.clone(),
            self.clock.clone(),
        )
    }

    fn sign_ins(&self) -> usize {
        self.stub.calls().len()
    }
}

/// Returns the number of the stub's sign-in that issued a token.
fn number(token: &Secret) -> u64 {
    claims(token)["n"].as_u64().expect("a number")
}

fn exp(token: &Secret) -> i64 {
    claims(token)["exp"].as_i64().expect("a number")
}

fn claims(token: &Secret) -> serde_json::Value {
    use base64::Engine;
    let payload = token.expose().split('.').nth(1).expect("a JWT");
    let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(payload)
        .expect("base64url");
    serde_json::from_slice(&payload).expect("JSON")
}

#[tokio::test]
async fn token_is_obtained_once_with_the_secret_hash() {
    let world = World::new().await;
    let tokens = world.replica();
    let first = tokens.token().await.expect("signed in");
    world.clock.advance(minutes(41));
    assert_eq!(tokens.token().await.expect("from memory"), first);
    let hash = secret_hash("auth", "service-client", "client-secret");
    let expected = json!({"AuthFlow": "USER_PASSWORD_AUTH", "ClientId": "service-client",
        "AuthParameters": {"USERNAME": "auth", "PASSWORD": "hunter2", "SECRET_HASH": hash}});
    assert_eq!(world.stub.calls(), [expected]);
}

#[tokio::test]
async fn token_with_service_id_is_used_id_or_access() {
    let world = World::new().await;
    world.stub.set(Mood::ClaimInAccessToken);
    let token = world.replica().token().await.expect("signed in");
    assert!(token::has_service_id(token.expose()));
}

#[tokio::test]
async fn concurrent_callers_on_two_replicas_sign_in_once() {
    let redis = cache::testing::redis().await.cache;
    let clock = Clock::manual(START);
    for shared in [Cache::memory(clock.clone()), redis] {
        let world = World {
            stub: Stub::start(&clock).await,
            cache: shared,
            clock: clock.clone(),
        };
        let replicas = [world.replica(), world.replica()];
        let call = |n: usize| {
            let tokens = replicas[n % 2].clone();
            tokio::spawn(async move { tokens.token().await.expect("signed in") })
        };
        let tokens = futures_util::future::join_all((0..50).map(call)).await;
        assert!(
            tokens
                .into_iter()
                .all(|token| number(&token.expect("no panic")) == 1)
        );
        assert_eq!(world.sign_ins(), 1);
    }
}

#[tokio::test]
async fn shared_copy_is_sealed_for_one_account() {
    let world = World::new().await;
    let tokens = world.replica();
    let token = tokens.token().await.expect("signed in");
    let key = format!("service-token:{}", tokens.account_digest());
    let sealed = world
        .cache
        .get(&key)
        .await
        .expect("answers")
        .expect("shared");
    let text = token.expose().as_bytes();
    assert!(
        !sealed
            .windows(20)
            .any(|part| text.windows(20).any(|other| part == other))
    );
    assert_eq!(
        number(
            &world
                .replica_with("other")
                .token()
                .await
                .expect("signed in")
        ),
        2
    );
    world
        .cache
        .set(&key, b"not sealed by us", minutes(1))
        .await
        .expect("set");
    assert_eq!(
        number(&world.replica().token().await.expect("signed in")),
        3
    );
}

#[tokio::test]
async fn token_is_refreshed_ahead_while_the_old_one_is_used() {
    let world = World::new().await;
    let tokens = world.replica();
    tokens.token().await.expect("signed in");
    world.clock.advance(minutes(52));
    assert_eq!(
        number(&tokens.token().await.expect("the old one, at once")),
        1
    );
    let renewed = async {
        while number(&tokens.token().await.expect("valid")) == 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(minutes(1), renewed)
        .await
        .expect("refreshed behind");
    assert_eq!(
        number(&world.replica().token().await.expect("from the cache")),
        2
    );
    assert_eq!(world.sign_ins(), 2);
}

#[tokio::test]
async fn token_is_refreshed_without_callers() {
    let world = World::new().await;
    let (first, second) = (world.replica(), world.replica());
    first.check_once().await;
    second.check_once().await;
    assert_eq!(
        world.sign_ins(),
        1,
        "the second replica uses the cached token"
    );
    for minute in 0..180 {
        world.clock.advance(minutes(1));
        first.check_once().await;
        second.check_once().await;
        let held = first.token().await.expect("fresh");
        let left = exp(&held) - world.clock.now().unix_seconds();
        assert!(left > 8 * 60, "{left} s left after {minute} minutes");
    }
    // Each token is valid for an hour and renewed 9 to 18 minutes ahead by one of the replicas.
    assert!((4..=5).contains(&world.sign_ins()), "{}", world.sign_ins());
}

#[tokio::test]
async fn background_task_renews_and_ends_at_shutdown() {
    let world = World::new().await;
    let tokens = world.replica();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn({
        let (tokens, shutdown) = (tokens.clone(), shutdown.clone());
        async move { tokens.run(shutdown).await }
    });
    let signed_in = async {
        while world.sign_ins() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(minutes(1), signed_in)
        .await
        .expect("signed in without a caller");
    shutdown.cancel();
    tokio::time::timeout(minutes(1), running)
        .await
        .expect("ended")
        .expect("well");
}

#[test]
fn replicas_refresh_at_different_times() {
    use base64::Engine;
    let claims =
        json!({"iat": START.unix_seconds(), "exp": START.unix_seconds() + 3600}).to_string();
    let token = format!(
        "e30.{}.c2ln",
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims)
    );
    let fresh_until = |chance: u32| {
        let held = token::ServiceToken::read(&token, START, chance).expect("a token");
        (0..60)
            .find(|minute| !held.is_fresh(START.plus(minutes(*minute))))
            .expect("it ends")
    };
    let all: std::collections::BTreeSet<u64> = (0..100).map(fresh_until).collect();
    assert_eq!((all.first(), all.last()), (Some(&43), Some(&51)), "{all:?}");
    assert!(all.len() >= 8, "{all:?}");
}

#[tokio::test]
async fn lock_of_a_dead_replica_delays_others_by_its_ttl() {
    let world = World::new().await;
    let tokens = world.replica();
    let lock = format!("service-token-lock:{}", tokens.account_digest());
    let held = world
        .cache
        .lock(&lock, Duration::from_secs(6))
        .await
        .expect("answers")
        .expect("free");
    // Its process has ended without a release.
    std::mem::forget(held);
    let waiting = tokio::spawn({
        let tokens = tokens.clone();
        async move { tokens.token().await }
    });
    assert!(
        waiting.await.expect("no panic").is_err(),
        "the caller times out earlier"
    );
    world.clock.advance(Duration::from_secs(6));
    let signed_in = async { while tokens.token().await.is_err() {} };
    tokio::time::timeout(minutes(1), signed_in)
        .await
        .expect("the renewal continues");
    assert_eq!(world.sign_ins(), 1);
}

#[tokio::test]
async fn old_token_is_used_in_an_outage_until_it_expires() {
    let world = World::new().await;
    let tokens = world.replica();
    tokens.token().await.expect("signed in");
    world.stub.set(Mood::Error(503, "InternalErrorException"));
    world.clock.advance(minutes(52));
    for _ in 0..7 {
        assert_eq!(number(&tokens.token().await.expect("still valid")), 1);
        world.clock.advance(minutes(1));
    }
    world.clock.advance(Duration::from_secs(49));
    tokens.token().await.expect("valid for eleven seconds");
    world.clock.advance(Duration::from_secs(1));
    let error = tokens
        .token()
        .await
        .expect_err("ten seconds left are too few");
    assert!(
        matches!(error, ServiceTokenError::Unavailable(_)),
        "{error}"
    );
    let fresh_process = world
        .replica()
        .token()
        .await
        .expect_err("the shared copy has expired as well");
    assert!(
        matches!(fresh_process, ServiceTokenError::Unavailable(_)),
        "{fresh_process}"
    );
    world.stub.set(Mood::Good);
    world.clock.advance(Duration::from_secs(10));
    tokens.token().await.expect("the pool is back");
}

#[tokio::test]
async fn failing_pool_is_not_called_by_every_caller() {
    let world = World::new().await;
    let tokens = world.replica();
    world.stub.set(Mood::Error(400, "NotAuthorizedException"));
    for _ in 0..20 {
        let error = tokens.token().await.expect_err("refused");
        assert_eq!(
            error,
            ServiceTokenError::Refused("NotAuthorizedException".to_owned())
        );
    }
    assert_eq!(world.sign_ins(), 1);
}

#[tokio::test]
async fn permanent_and_temporary_errors_are_distinguished() {
    let refused = |text: &str| ServiceTokenError::Refused(text.to_owned());
    for (mood, expected) in [
        (
            Mood::Error(400, "UserNotFoundException"),
            refused("UserNotFoundException"),
        ),
        (
            Mood::Error(400, "ResourceNotFoundException"),
            refused("ResourceNotFoundException"),
        ),
        (
            Mood::Challenge,
            refused("it requires the challenge NEW_PASSWORD_REQUIRED"),
        ),
        (Mood::Over, refused("its token has no exp or has expired")),
        (
            Mood::Error(400, "TooManyRequestsException"),
            ServiceTokenError::Unavailable("TooManyRequestsException".to_owned()),
        ),
    ] {
        let world = World::new().await;
        world.stub.set(mood);
        assert_eq!(world.replica().token().await, Err(expected), "{mood:?}");
    }
    let world = World::new().await;
    world.stub.set(Mood::NoClaim);
    let error = world.replica().token().await.expect_err("no claim");
    assert!(error.to_string().contains("ReadAttributes"), "{error}");
}

#[tokio::test]
async fn unresponsive_pool_is_unavailable_within_the_timeout() {
    let world = World::new().await;
    world.stub.set(Mood::Hang);
    let error = world.replica().token().await.expect_err("no answer");
    assert_eq!(
        error,
        ServiceTokenError::Unavailable("no token within 2 s".to_owned())
    );
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        format!("http://{}", listener.local_addr().expect("bound"))
    };
    let tokens = ServiceTokens::new(
        &identity(&closed, "x"),
        world.cache.clone(),
        world.clock.clone(),
    );
    let error = tokens.token().await.expect_err("no server listens");
    assert!(
        matches!(error, ServiceTokenError::Unavailable(_)),
        "{error}"
    );
}

#[tokio::test]
async fn every_replica_signs_in_without_the_cache() {
    let world = World::new().await;
    let world = World {
        cache: Cache::open("redis://127.0.0.1:1").await.expect("a URL"),
        ..world
    };
    assert_eq!(
        number(&world.replica().token().await.expect("signed in")),
        1
    );
    assert_eq!(
        number(&world.replica().token().await.expect("signed in")),
        2
    );
}

#[tokio::test]
async fn call_carries_the_service_token() {
    let world = World::new().await;
    let calls = ServiceClient::new(world.replica(), http_client());
    let url: Url = "http://127.0.0.1:8504/actors/a1".parse().expect("a URL");
    let authorization = |request: reqwest::RequestBuilder| {
        let request = request.build().expect("a request");
        request.headers()[header::AUTHORIZATION]
            .to_str()
            .expect("ASCII")
            .to_owned()
    };
    let request = calls
        .request(http::Method::GET, url.clone())
        .await
        .expect("signed in");
    let ours = world.replica().token().await.expect("shared");
    assert_eq!(authorization(request), format!("Bearer {}", ours.expose()));

    let mut config = identity(&world.stub.url, "x");
    config.service_account = None;
    let none = ServiceClient::new(
        ServiceTokens::new(&config, world.cache.clone(), world.clock.clone()),
        http_client(),
    );
    let error = none
        .request(http::Method::GET, url)
        .await
        .expect_err("no account");
    assert_eq!(error, ServiceTokenError::NotConfigured);
    assert_eq!(Problem::from(error).code(), Code::IdpMisconfigured);
}
