//! Redis and the pool killed or suspended: operations that need them return 503 within a second,
//! and the others succeed.

use std::time::{Duration, Instant};

use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, text};
use postern_tests::{Answer, Person};
use serde_json::Value;

use crate::auth_cluster::{AuthCluster, Changes, Replica};

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Suspended,
    Killed,
}

/// Requests to a replica during a fault, by the dependency that they need.
struct Calls<'a> {
    replica: &'a Replica,
    ada: Person,
}

// === impl Calls ===

impl Calls<'_> {
    async fn login(&self) -> Answer {
        self.replica
            .post(
                "/auth/login",
                &json!({"email": self.ada.email, "password": PASSWORD}),
            )
            .await
    }

    async fn me(&self) -> Answer {
        self.ada.client.get("/auth/me").send().await
    }

    async fn register(&self) -> Answer {
        let email = format!("{}@example.com", uuid::Uuid::new_v4().simple());
        self.replica
            .post(
                "/auth/register",
                &json!({"email": email, "password": PASSWORD}),
            )
            .await
    }

    async fn exchange(&self, token: &str) -> Answer {
        self.replica
            .post("/auth/tokens/exchange", &json!({"temporaryToken": token}))
            .await
    }

    async fn begin_social(&self) -> Answer {
        self.replica
            .surface
            .client()
            .get("/auth/social/login")
            .send()
            .await
    }
}

/// Sends a request until the response is 503, at most three times within a second each: a busy
/// machine may delay one response, but a call that waits for its own longer timeout would be late
/// each time.
async fn assert_unavailable(what: &str, send: impl AsyncFn() -> Answer) {
    let mut took = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let answer = send().await;
        took.push(began.elapsed());
        let refusal = answer.problem(503, "unavailable");
        assert!(refusal.headers.contains_key("retry-after"), "{what}");
        if began.elapsed() < Duration::from_secs(1) {
            postern_tests::note(&format!(
                "{what}: 503 after {} ms",
                took[took.len() - 1].as_millis()
            ));
            return;
        }
    }
    panic!("{what}: 503 after {took:?}");
}

/// Sends requests until the response has this status, because an open circuit breaker admits a call
/// from time to time.
async fn wait_for_status(status: u16, send: impl AsyncFn() -> Answer) -> Value {
    let polled = async {
        loop {
            let answer = send().await;
            if answer.status == status {
                return answer.json();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polled)
        .await
        .expect("the dependency recovers")
}

#[tokio::test]
async fn redis_outage_fails_only_operations_that_need_it() {
    let mut cluster = AuthCluster::start().await;
    let replica = cluster.replica(&Changes::default()).await;
    for fault in [Fault::Suspended, Fault::Killed] {
        let calls = Calls {
            replica: &replica,
            ada: replica.surface.register().await,
        };
        let token = replica.surface.social_token("ada").await;
        match fault {
            Fault::Suspended => cluster.redis.signal("STOP").await,
            Fault::Killed => cluster.redis.kill().await,
        }
        let name = |what: &str| format!("{what} with Redis {fault:?}");
        assert_unavailable(&name("exchange"), async || calls.exchange(&token).await).await;
        assert_unavailable(&name("social sign-in"), async || calls.begin_social().await).await;
        assert_unavailable(&name("register"), async || calls.register().await).await;
        // The process counts attempts in memory meanwhile.
        let _ = calls.login().await.expect(200);
        let _ = calls.me().await.expect(200);
        // Refreshing and signing out are calls to the pool only.
        let refreshed = replica.refresh(&calls.ada.tokens).await.expect(200).json();
        let body = json!({"refreshToken": text(&refreshed, "refreshToken")});
        let _ = replica.post("/auth/logout", &body).await.expect(204);
        let _ = replica
            .refresh(&refreshed)
            .await
            .problem(401, "invalid_refresh_token");
        match fault {
            Fault::Suspended => cluster.redis.signal("CONT").await,
            Fault::Killed => cluster.redis.restart().await,
        }
        let unknown = "A".repeat(43);
        wait_for_status(401, async || calls.exchange(&unknown).await).await;
        let exchanged = calls.exchange(&token).await;
        if fault == Fault::Killed {
            // Redis has lost the token, so it cannot be exchanged.
            let _ = exchanged.problem(401, "invalid_temporary_token");
        }
    }
    let _ = replica.running.stop("TERM").await;
}

#[tokio::test]
async fn pool_outage_fails_only_operations_that_need_it() {
    let cluster = AuthCluster::start().await;
    let replica = cluster.replica(&Changes::default()).await;
    let calls = Calls {
        replica: &replica,
        ada: replica.surface.register().await,
    };
    for fault in [Fault::Suspended, Fault::Killed] {
        let _ = calls.me().await.expect(200);
        let token = match fault {
            Fault::Suspended => replica.surface.social_token("ada").await,
            Fault::Killed => String::new(),
        };
        let name = |what: &str| format!("{what} with the pool {fault:?}");
        match fault {
            Fault::Suspended => cluster.standalone.signal("STOP").await,
            Fault::Killed => cluster.standalone.signal("KILL").await,
        }
        assert_unavailable(&name("login"), async || calls.login().await).await;
        assert_unavailable(&name("refresh"), async || {
            replica.refresh(&calls.ada.tokens).await
        })
        .await;
        assert_unavailable(&name("register"), async || calls.register().await).await;
        // The pool's keys are cached, and the exchange needs only Redis.
        let _ = calls.me().await.expect(200);
        if fault == Fault::Suspended {
            let _ = calls.exchange(&token).await.expect(200);
            cluster.standalone.signal("CONT").await;
            wait_for_status(200, async || calls.login().await).await;
        }
    }
    let _ = replica.running.stop("TERM").await;
}

#[tokio::test]
async fn five_tabs_that_refresh_one_token_all_get_tokens() {
    let cluster = AuthCluster::start().await;
    let (first, second) = (
        cluster.replica(&Changes::default()).await,
        cluster.replica(&Changes::default()).await,
    );
    let ada = first.surface.register().await;
    let tabs = [&first, &second, &first, &second, &first];
    let calls = tabs.map(|replica| replica.refresh(&ada.tokens));
    let answers = futures_util::future::join_all(calls).await;
    let sets: Vec<Value> = answers
        .into_iter()
        .map(|answer| answer.expect(200).json())
        .collect();
    assert_eq!(rotations(&cluster).await, 1, "the used token");
    for set in &sets {
        let _ = second.refresh(set).await.expect(200);
    }
    assert_eq!(rotations(&cluster).await, 6, "each tab has its own token");
    for replica in [first, second] {
        let _ = replica.running.stop("TERM").await;
    }
}

/// Returns the number of tokens in the pool's store that were replaced.
async fn rotations(cluster: &AuthCluster) -> i64 {
    let path = cluster.folder().join("var/identity-pool.db");
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display()))
        .await
        .expect("the pool's database is readable");
    let count = sqlx::query_scalar(
        "SELECT count(*) FROM pool_entity, json_each(pool_entity.value, '$.tokens') AS token
            WHERE kind = 'session' AND json_extract(token.value, '$.rotated_at') IS NOT NULL",
    );
    count.fetch_one(&pool).await.expect("the rows are counted")
}
