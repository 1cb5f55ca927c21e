//! A temporary token is exchanged at most once, whatever races and whatever becomes of Redis
//! meanwhile. `POSTERN_TEST_TOKENS` says how many are raced for (default 20000): the same test is
//! the long run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use postern_common::Code;
use postern_common::cache::Cache;
use postern_common::cache::testing::RedisServer;
use postern_common::config::Env;
use serde_json::json;
use tokio::sync::watch;

use crate::auth::Auth;
use crate::temporary_token::{Exchanged, UserInfo};
use crate::testing::social::{begin, callback, finish, land};
use crate::testing::{Fixture, Wish, visitor};

const SNAPSHOTS: &[&str] = &["--save", "3600 1", "--appendonly", "no"];
const APPEND_ONLY: &[&str] = &[
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
];
const NOTHING_KEPT: &[&str] = &["--save", "", "--appendonly", "no"];

/// Callers that race for each token, and tokens between two kills of Redis.
const CALLERS: usize = 16;
const BETWEEN_KILLS: usize = 2_500;
/// Tokens that are raced for at the same time.
const LANES: usize = 8;

fn tokens() -> usize {
    Env::of_process()
        .get("POSTERN_TEST_TOKENS")
        .map_or(20_000, |tokens| tokens.parse().expect("a number"))
}

async fn over(redis: &RedisServer) -> Fixture {
    // The deadline is for a machine that does other things, too.
    let url = format!("{}?deadline=2000ms", redis.url());
    Fixture::with(Wish {
        cache_url: Some(url),
        ..Wish::default()
    })
    .await
}

fn ada() -> Exchanged {
    let user = UserInfo {
        user_id: "ada".to_owned(),
        email: "ada@example.com".to_owned(),
        email_verified: true,
        name: None,
        picture: None,
        provider: "stub".to_owned(),
    };
    Exchanged {
        user,
        tokens: None,
        tokens_unavailable: None,
    }
}

#[tokio::test]
async fn what_a_snapshot_brings_back_is_not_exchanged_again() {
    let mut redis = RedisServer::start(SNAPSHOTS).await;
    let fixture = over(&redis).await;
    let (used, unused) = (
        land(&fixture, json!({})).await.value,
        land(&fixture, json!({})).await.value,
    );
    let begun = begin(&fixture, None).await;
    let back = callback(fixture.provider.consent(&begun, json!({})));
    redis.command("SAVE").await;
    fixture
        .auth
        .exchange(&visitor(), &used, None)
        .await
        .expect("once");
    assert_eq!(finish(&fixture, back.clone()).await.name, "temporaryToken");
    redis.kill().await;
    redis.restart().await;
    until_it_answers(&fixture.auth.cache).await;
    for token in [&used, &unused] {
        // The snapshot has it again; nobody can know whether it was taken.
        assert!(
            fixture.auth.vault.holds(token).await,
            "the restart brings it back"
        );
        let refused = fixture
            .auth
            .exchange(&visitor(), token, None)
            .await
            .expect_err("of an earlier run");
        assert_eq!(refused.code(), Code::InvalidTemporaryToken);
    }
    assert_eq!(
        finish(&fixture, back).await.value,
        "invalid_state",
        "its mark is lost, and it with it"
    );
    let token = land(&fixture, json!({})).await.value;
    fixture
        .auth
        .exchange(&visitor(), &token, None)
        .await
        .expect("one of this run");
}

#[tokio::test]
async fn sixteen_race_for_each_token_while_redis_is_killed() {
    for options in [SNAPSHOTS, APPEND_ONLY, NOTHING_KEPT] {
        let mut redis = RedisServer::start(options).await;
        let fixture = over(&redis).await;
        let replicas = [Arc::clone(&fixture.auth), fixture.replica().await];
        let (mut exchanged, mut raced) = (0, 0);
        // A third of the tokens over each way of keeping.
        while raced < tokens().div_ceil(3) {
            let (up, is_up) = watch::channel(true);
            let done = Arc::new(AtomicUsize::new(0));
            let lanes = (0..LANES).map(|_| {
                let (replicas, is_up, done) = (replicas.clone(), is_up.clone(), Arc::clone(&done));
                tokio::spawn(async move { lane(&replicas, is_up, &done).await })
            });
            let lanes: Vec<_> = lanes.collect();
            // In the middle of it, wherever the callers are.
            while done.load(Ordering::SeqCst) < BETWEEN_KILLS / 2 {
                tokio::task::yield_now().await;
            }
            if options == SNAPSHOTS {
                redis.command("SAVE").await;
            }
            up.send_replace(false);
            redis.kill().await;
            redis.restart().await;
            up.send_replace(true);
            for lane in lanes {
                exchanged += lane.await.expect("no token twice");
            }
            raced += done.load(Ordering::SeqCst);
        }
        assert!(
            exchanged > raced / 2,
            "{exchanged} of {raced} over {options:?}: most meet no restart"
        );
    }
}

/// Issues tokens and races for each until its share is done; returns how many were exchanged, once
/// each.
async fn lane(
    replicas: &[Arc<Auth>; 2],
    mut is_up: watch::Receiver<bool>,
    done: &AtomicUsize,
) -> usize {
    let mut exchanged = 0;
    while done.fetch_add(1, Ordering::SeqCst) < BETWEEN_KILLS {
        let token = loop {
            match replicas[0].issue_temporary_token(ada(), None).await {
                Ok(token) => break token,
                Err(_) => until(&mut is_up).await,
            }
        };
        let callers = (0..CALLERS).map(|caller| call(&replicas[caller % 2], &token, is_up.clone()));
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

/// Asks until there is an answer that is not 503, as a client does.
async fn call(auth: &Auth, token: &str, mut is_up: watch::Receiver<bool>) -> bool {
    loop {
        match auth
            .exchange(&visitor(), token, None)
            .await
            .map_err(|problem| problem.code())
        {
            Ok(_) => return true,
            Err(Code::InvalidTemporaryToken) => return false,
            Err(Code::Unavailable) => until(&mut is_up).await,
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn until(is_up: &mut watch::Receiver<bool>) {
    is_up
        .wait_for(|is_up| *is_up)
        .await
        .expect("the test goes on");
    tokio::task::yield_now().await;
}

/// A breaker that has seen the outage lets a call through after a while.
async fn until_it_answers(cache: &Cache) {
    while cache.ping().await.is_err() {
        tokio::task::yield_now().await;
    }
}
