mod stub;

use axum::http::header;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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
    tokens: ServiceTokens,
}

impl World {
    async fn new(mood: Mood) -> Self {
        let clock = Clock::manual(START);
        let stub = Stub::start(&clock, mood).await;
        let tokens = ServiceTokens::new(&identity(&stub.url, "hunter2"), clock.clone());
        Self {
            clock,
            stub,
            tokens,
        }
    }

    fn sign_ins(&self) -> usize {
        self.stub.calls().len()
    }

    async fn token(&self) -> Secret {
        self.tokens.token().await.expect("signed in")
    }

    async fn error(&self) -> ServiceTokenError {
        self.tokens.token().await.expect_err("no token")
    }
}

/// Returns the number of the stub's sign-in that issued a token.
fn number(token: &Secret) -> u64 {
    claims(token)["n"].as_u64().expect("a number")
}

fn claims(token: &Secret) -> serde_json::Value {
    let payload = token.expose().split('.').nth(1).expect("a JWT");
    let payload = URL_SAFE_NO_PAD.decode(payload).expect("base64url");
    serde_json::from_slice(&payload).expect("JSON")
}

async fn until(is_done: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_done().await {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(minutes(1), waiting).await;
    waited.expect("done in time");
}

#[tokio::test]
async fn token_is_obtained_once_with_the_secret_hash() {
    let world = World::new(Mood::Good).await;
    let first = world.token().await;
    world.clock.advance(minutes(41));
    assert_eq!(world.token().await, first, "from memory");
    let hash = secret_hash("auth", "service-client", "client-secret");
    let expected = json!({"AuthFlow": "USER_PASSWORD_AUTH", "ClientId": "service-client",
        "AuthParameters": {"USERNAME": "auth", "PASSWORD": "hunter2", "SECRET_HASH": hash}});
    assert_eq!(world.stub.calls(), [expected]);
}

#[tokio::test]
async fn token_with_service_id_is_used_id_or_access() {
    for mood in [Mood::Good, Mood::ClaimInAccessToken] {
        let token = World::new(mood).await.token().await;
        assert!(token::has_service_id(token.expose()), "{mood:?}");
    }
}

#[tokio::test]
async fn concurrent_callers_sign_in_once() {
    let world = World::new(Mood::Good).await;
    let all = futures_util::future::join_all((0..50).map(|_| world.token())).await;
    assert!(all.iter().all(|token| number(token) == 1));
    assert_eq!(world.sign_ins(), 1);
}

#[tokio::test]
async fn token_is_refreshed_ahead_while_the_old_one_is_used() {
    let world = World::new(Mood::Good).await;
    world.token().await;
    world.clock.advance(minutes(52));
    assert_eq!(number(&world.token().await), 1, "the old one, at once");
    until(async || number(&world.token().await) == 2).await;
    assert_eq!(world.sign_ins(), 2);
}

#[tokio::test]
async fn token_is_refreshed_without_callers() {
    let world = World::new(Mood::Good).await;
    world.tokens.check_once().await;
    assert_eq!(world.sign_ins(), 1);
    for minute in 0..180 {
        world.clock.advance(minutes(1));
        world.tokens.check_once().await;
        let exp = claims(&world.token().await)["exp"].as_i64();
        let left = exp.expect("a number") - world.clock.now().unix_seconds();
        assert!(left > 8 * 60, "{left} s left after {minute} minutes");
    }
    // Each token is valid for an hour and renewed 9 to 18 minutes ahead.
    assert!((4..=5).contains(&world.sign_ins()), "{}", world.sign_ins());
}

#[tokio::test]
async fn background_task_renews_and_ends_at_shutdown() {
    let world = World::new(Mood::Good).await;
    let (tokens, shutdown) = (world.tokens.clone(), CancellationToken::new());
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { tokens.run(stop).await });
    until(async || world.sign_ins() > 0).await;
    shutdown.cancel();
    until(async || running.is_finished()).await;
}

#[test]
fn replicas_refresh_at_different_times() {
    let claims =
        json!({"iat": START.unix_seconds(), "exp": START.unix_seconds() + 3600}).to_string();
    let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
    let fresh_until = |chance: u32| {
        let held = token::ServiceToken::read(&token, START, chance).expect("a token");
        let is_over = |minute: &u64| !held.is_fresh(START.plus(minutes(*minute)));
        (0..60).find(is_over).expect("it ends")
    };
    let all: std::collections::BTreeSet<u64> = (0..100).map(fresh_until).collect();
    assert_eq!((all.first(), all.last()), (Some(&43), Some(&51)), "{all:?}");
    assert!(all.len() >= 8, "{all:?}");
}

#[tokio::test]
async fn old_token_is_used_in_an_outage_until_it_expires() {
    let world = World::new(Mood::Good).await;
    world.token().await;
    world.stub.set(Mood::Error(503, "InternalErrorException"));
    world.clock.advance(minutes(52));
    for _ in 0..7 {
        assert_eq!(number(&world.token().await), 1, "still valid");
        world.clock.advance(minutes(1));
    }
    world.clock.advance(Duration::from_secs(49));
    assert_eq!(number(&world.token().await), 1, "for eleven seconds");
    world.clock.advance(Duration::from_secs(1));
    let error = world.error().await;
    let too_few = matches!(error, ServiceTokenError::Unavailable(_));
    assert!(too_few, "ten seconds left: {error}");
    world.stub.set(Mood::Good);
    world.clock.advance(Duration::from_secs(10));
    world.token().await;
}

#[tokio::test]
async fn failing_pool_is_not_called_by_every_caller() {
    let world = World::new(Mood::Error(400, "NotAuthorizedException")).await;
    for _ in 0..20 {
        let refused = ServiceTokenError::Refused("NotAuthorizedException".to_owned());
        assert_eq!(world.error().await, refused);
    }
    assert_eq!(world.sign_ins(), 1);
}

#[tokio::test]
async fn token_is_obtained_as_soon_as_a_clock_that_was_ahead_is_right() {
    let world = World::new(Mood::Over).await;
    world.clock.advance(minutes(100 * 24 * 60));
    world.error().await;
    world.stub.set(Mood::Good);
    world.clock.set(START);
    world.token().await;
}

#[tokio::test]
async fn permanent_and_temporary_errors_are_distinguished() {
    let error = |name| Mood::Error(400, name);
    let prefixed = error("com.amazonaws#ResourceNotFoundException");
    for (mood, is_refused, reason) in [
        (
            error("UserNotFoundException"),
            true,
            "UserNotFoundException",
        ),
        (prefixed, true, "ResourceNotFoundException"),
        (Mood::Challenge, true, "the challenge NEW_PASSWORD_REQUIRED"),
        (Mood::Over, true, "its token has no exp or has expired"),
        (Mood::NoClaim, true, "able to read it (ReadAttributes)"),
        (
            error("TooManyRequestsException"),
            false,
            "TooManyRequestsException",
        ),
        (Mood::Hang, false, "no token within 2 s"),
    ] {
        let error = World::new(mood).await.error().await;
        assert!(error.to_string().ends_with(reason), "{mood:?}: {error}");
        let found = matches!(error, ServiceTokenError::Refused(_));
        assert_eq!(found, is_refused, "{mood:?}: {error}");
    }
    let closed = "http://127.0.0.1:1";
    let tokens = ServiceTokens::new(&identity(closed, "x"), Clock::manual(START));
    let error = tokens.token().await.expect_err("no server listens");
    let is_temporary = matches!(error, ServiceTokenError::Unavailable(_));
    assert!(is_temporary, "{error}");
}

#[tokio::test]
async fn call_carries_the_service_token() {
    let world = World::new(Mood::Good).await;
    let url: Url = "http://127.0.0.1:8504/actors/a1".parse().expect("a URL");
    let request = async |tokens: ServiceTokens| {
        let calls = ServiceClient::new(tokens, http_client());
        calls.request(http::Method::GET, url.clone()).await
    };
    let call = request(world.tokens.clone()).await.expect("signed in");
    let call = call.build().expect("a request");
    let expected = format!("Bearer {}", world.token().await.expose());
    assert_eq!(call.headers()[header::AUTHORIZATION], expected);

    let mut config = identity(&world.stub.url, "x");
    config.service_account = None;
    let none = ServiceTokens::new(&config, world.clock.clone());
    let error = request(none).await.expect_err("no account");
    assert_eq!(error, ServiceTokenError::NotConfigured);
    assert_eq!(Problem::from(error).code(), Code::IdpMisconfigured);
}
