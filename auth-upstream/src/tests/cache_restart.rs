//! A temporary token is exchanged at most once, even if Redis is killed and restarted meanwhile.
//! `POSTERN_TEST_TOKENS` is the number of tokens (default 20000); larger numbers make a long run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use postern_common::Code;
use postern_common::cache::Cache;
use postern_common::cache::testing::RedisServer;
use postern_common::config::Env;
use serde_json::json;
use tokio::sync::watch;

use crate::assembly::AuthService;
use crate::crypto::TokenVault;
use crate::flows::{ExchangedIdentity, UserInfo};
use crate::testing::browser::{callback, follow, sign_in as sign_in_at_provider, start};
use crate::testing::{Fixture, FixtureOptions, client};

const SNAPSHOTS: &[&str] = &["--save", "3600 1", "--appendonly", "no"];
const APPEND_ONLY: &[&str] = &[
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
];
const NO_PERSISTENCE: &[&str] = &["--save", "", "--appendonly", "no"];

/// Concurrent callers for each token.
const CALLERS_PER_TOKEN: usize = 16;
/// Tokens between two kills of Redis.
const TOKENS_PER_KILL: usize = 2_500;
/// Tokens that are exchanged concurrently.
const LANES: usize = 8;

fn token_count() -> usize {
    Env::of_process()
        .get("POSTERN_TEST_TOKENS")
        .map_or(20_000, |tokens| tokens.parse().expect("a number"))
}

async fn fixture_with(redis: &RedisServer) -> Fixture {
    // A long deadline, for loaded machines.
    let url = format!("{}?deadline=2000ms", redis.url());
    Fixture::with(FixtureOptions {
        cache_url: Some(url),
        ..FixtureOptions::default()
    })
    .await
}

fn ada() -> ExchangedIdentity {
    let user = UserInfo {
        user_id: "ada".to_owned(),
        email: "ada@example.com".to_owned(),
        email_verified: true,
        name: None,
        picture: None,
        provider: "stub".to_owned(),
    };
    ExchangedIdentity {
        user,
        tokens: None,
        tokens_unavailable: None,
    }
}

#[tokio::test]
async fn token_restored_from_a_snapshot_is_rejected() {
    let mut redis = RedisServer::start(SNAPSHOTS).await;
    let fixture = fixture_with(&redis).await;
    let (used, unused) = (
        sign_in_at_provider(&fixture, json!({})).await.value,
        sign_in_at_provider(&fixture, json!({})).await.value,
    );
    let url = start(&fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({})));
    redis.command("SAVE").await;
    fixture.exchange(&used).await;
    assert_eq!(follow(&fixture, back.clone()).await.name, "temporaryToken");
    redis.kill().await;
    redis.restart().await;
    wait_until_available(&fixture.service.cache).await;
    for token in [&used, &unused] {
        // The snapshot contains both; the service cannot know which one was exchanged.
        assert!(
            is_stored(&fixture.service.cache, token).await,
            "restored by the restart"
        );
        let rejected = fixture
            .service
            .flows
            .exchange
            .exchange(&client(), token, None)
            .await
            .expect_err("a token of another epoch");
        assert_eq!(rejected.code(), Code::InvalidTemporaryToken);
    }
    assert_eq!(
        follow(&fixture, back).await.value,
        "invalid_state",
        "its mark is lost"
    );
    let token = sign_in_at_provider(&fixture, json!({})).await.value;
    fixture.exchange(&token).await;
}

#[tokio::test]
async fn token_is_exchanged_once_while_redis_is_killed() {
    for options in [SNAPSHOTS, APPEND_ONLY, NO_PERSISTENCE] {
        let mut redis = RedisServer::start(options).await;
        let fixture = fixture_with(&redis).await;
        let replicas = [Arc::clone(&fixture.service), fixture.replica().await];
        let (mut exchanged, mut issued) = (0, 0);
        // A third of the tokens for each kind of persistence.
        while issued < token_count().div_ceil(3) {
            let (up, is_up) = watch::channel(true);
            let done = Arc::new(AtomicUsize::new(0));
            let tasks = (0..LANES).map(|_| {
                let (replicas, is_up, done) = (replicas.clone(), is_up.clone(), Arc::clone(&done));
                tokio::spawn(async move { run_lane(&replicas, is_up, &done).await })
            });
            let tasks: Vec<_> = tasks.collect();
            // Kill Redis when half of the tokens are issued.
            while done.load(Ordering::SeqCst) < TOKENS_PER_KILL / 2 {
                tokio::task::yield_now().await;
            }
            if options == SNAPSHOTS {
                redis.command("SAVE").await;
            }
            up.send_replace(false);
            redis.kill().await;
            redis.restart().await;
            up.send_replace(true);
            for task in tasks {
                exchanged += task.await.expect("no token was exchanged twice");
            }
            issued += done.load(Ordering::SeqCst);
        }
        assert!(
            exchanged > issued / 2,
            "{exchanged} of {issued} with {options:?}: most exchanges see no restart"
        );
    }
}

/// Issues tokens, exchanges each concurrently and returns how many were exchanged.
async fn run_lane(
    replicas: &[Arc<AuthService>; 2],
    mut is_up: watch::Receiver<bool>,
    done: &AtomicUsize,
) -> usize {
    let mut exchanged = 0;
    while done.fetch_add(1, Ordering::SeqCst) < TOKENS_PER_KILL {
        let token = loop {
            match replicas[0]
                .flows
                .exchange
                .temporary_tokens
                .issue(ada(), None)
                .await
            {
                Ok(token) => break token,
                Err(_) => wait_until_up(&mut is_up).await,
            }
        };
        let callers = (0..CALLERS_PER_TOKEN)
            .map(|caller| exchange(&replicas[caller % 2], &token, is_up.clone()));
        let won = join_all(callers)
            .await
            .into_iter()
            .filter(|won| *won)
            .count();
        assert!(won <= 1, "{won} callers got one token");
        exchanged += won;
    }
    exchanged
}

/// Repeats an exchange until the response is not 503, and returns whether it succeeded.
async fn exchange(service: &AuthService, token: &str, mut is_up: watch::Receiver<bool>) -> bool {
    loop {
        match service
            .flows
            .exchange
            .exchange(&client(), token, None)
            .await
            .map_err(|problem| problem.code())
        {
            Ok(_) => return true,
            Err(Code::InvalidTemporaryToken) => return false,
            Err(Code::Unavailable) => wait_until_up(&mut is_up).await,
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn wait_until_up(is_up: &mut watch::Receiver<bool>) {
    is_up
        .wait_for(|is_up| *is_up)
        .await
        .expect("the sender exists");
    tokio::task::yield_now().await;
}

/// Waits until the circuit breaker of the cache is closed.
async fn wait_until_available(cache: &Cache) {
    while cache.ping().await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// Returns whether the cache has an entry for a temporary token.
async fn is_stored(cache: &Cache, token: &str) -> bool {
    let key = TokenVault::cache_key(token);
    cache.get(&key).await.expect("the cache answers").is_some()
}
