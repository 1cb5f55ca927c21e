mod stub;

use axum::http::header;
use serde_json::json;

use self::stub::{Mood, Stub};
use super::*;
use postern_core::Secret;
use postern_core::clock::{Clock, Timestamp};
use postern_core::config::{Env, parse};
use postern_core::identity::{IdentityConfig, secret_hash};

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
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(START);
        Self {
            stub: Stub::start(&clock).await,
            clock,
        }
    }

    /// Creates the tokens of a process.
    fn tokens(&self) -> ServiceTokens {
        ServiceTokens::new(&identity(&self.stub.url, "hunter2"), self.clock.clone())
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
    let tokens = world.tokens();
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
    let token = world.tokens().token().await.expect("signed in");
    assert!(token::has_service_id(token.expose()));
}

#[tokio::test]
async fn concurrent_callers_sign_in_once() {
    let world = World::new().await;
    let tokens = world.tokens();
    let call = |_| {
        let tokens = tokens.clone();
        tokio::spawn(async move { tokens.token().await.expect("signed in") })
    };
    let all = futures_util::future::join_all((0..50).map(call)).await;
    let is_first = |token| number(&token) == 1;
    assert!(all.into_iter().all(|token| token.is_ok_and(is_first)));
    assert_eq!(world.sign_ins(), 1);
}

#[tokio::test]
async fn token_is_refreshed_ahead_while_the_old_one_is_used() {
    let world = World::new().await;
    let tokens = world.tokens();
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
    assert_eq!(world.sign_ins(), 2);
}

#[tokio::test]
async fn token_is_refreshed_without_callers() {
    let world = World::new().await;
    let tokens = world.tokens();
    tokens.check_once().await;
    assert_eq!(world.sign_ins(), 1);
    for minute in 0..180 {
        world.clock.advance(minutes(1));
        tokens.check_once().await;
        let held = tokens.token().await.expect("fresh");
        let left = exp(&held) - world.clock.now().unix_seconds();
        assert!(left > 8 * 60, "{left} s left after {minute} minutes");
    }
    // Each token is valid for an hour and renewed 9 to 18 minutes ahead.
    assert!((4..=5).contains(&world.sign_ins()), "{}", world.sign_ins());
}

#[tokio::test]
async fn background_task_renews_and_ends_at_shutdown() {
    let world = World::new().await;
    let tokens = world.tokens();
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
async fn old_token_is_used_in_an_outage_until_it_expires() {
    let world = World::new().await;
    let tokens = world.tokens();
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
    world.stub.set(Mood::Good);
    world.clock.advance(Duration::from_secs(10));
    tokens.token().await.expect("the pool is back");
}

#[tokio::test]
async fn failing_pool_is_not_called_by_every_caller() {
    let world = World::new().await;
    let tokens = world.tokens();
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
async fn token_is_obtained_as_soon_as_a_clock_that_was_ahead_is_right() {
    let world = World::new().await;
    let tokens = world.tokens();
    world.stub.set(Mood::Over);
    world.clock.advance(minutes(100 * 24 * 60));
    tokens.token().await.expect_err("expired for this clock");
    world.stub.set(Mood::Good);
    world.clock.set(START);
    tokens.token().await.expect("without waiting for 100 days");
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
            Mood::Error(400, "com.amazonaws#ResourceNotFoundException"),
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
        assert_eq!(world.tokens().token().await, Err(expected), "{mood:?}");
    }
    let world = World::new().await;
    world.stub.set(Mood::NoClaim);
    let error = world.tokens().token().await.expect_err("no claim");
    assert!(error.to_string().contains("ReadAttributes"), "{error}");
}

#[tokio::test]
async fn unresponsive_pool_is_unavailable_within_the_timeout() {
    let world = World::new().await;
    world.stub.set(Mood::Hang);
    let error = world.tokens().token().await.expect_err("no answer");
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
    let tokens = ServiceTokens::new(&identity(&closed, "x"), world.clock.clone());
    let error = tokens.token().await.expect_err("no server listens");
    assert!(
        matches!(error, ServiceTokenError::Unavailable(_)),
        "{error}"
    );
}

#[tokio::test]
async fn call_carries_the_service_token() {
    let world = World::new().await;
    let tokens = world.tokens();
    let calls = ServiceClient::new(tokens.clone(), http_client());
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
    let ours = tokens.token().await.expect("signed in");
    assert_eq!(authorization(request), format!("Bearer {}", ours.expose()));

    let mut config = identity(&world.stub.url, "x");
    config.service_account = None;
    let none = ServiceClient::new(
        ServiceTokens::new(&config, world.clock.clone()),
        http_client(),
    );
    let error = none
        .request(http::Method::GET, url)
        .await
        .expect_err("no account");
    assert_eq!(error, ServiceTokenError::NotConfigured);
    assert_eq!(Problem::from(error).code(), Code::IdpMisconfigured);
}
