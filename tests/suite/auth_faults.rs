//! Redis and the pool killed or suspended: operations that need them return 503 within a second,
//! and the others succeed.

use std::time::{Duration, Instant};

use postern_harness::json;
use postern_harness::public_api::{credentials, text};
use postern_harness::wait::until;
use postern_harness::{Answer, Person};

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

impl Calls<'_> {
    /// Sends a request of this name; `token` is that of an exchange.
    async fn send(&self, name: &str, token: &str) -> Answer {
        let new = format!("{}@example.com", uuid::Uuid::new_v4().simple());
        let (path, body) = match name {
            "me" => return self.ada.client.get("/auth/me").send().await,
            "social sign-in" => {
                let begun = self.replica.surface.client().get("/auth/social/login");
                return begun.send().await;
            }
            "refresh" => return self.replica.refresh(&self.ada.tokens).await,
            "login" => ("/auth/login", credentials(&self.ada.email)),
            "register" => ("/auth/register", credentials(&new)),
            _ => ("/auth/tokens/exchange", json!({"temporaryToken": token})),
        };
        self.replica.post(path, &body).await
    }

    /// Sends requests until the response has this status: an open circuit breaker admits a call from
    /// time to time.
    async fn until_status(&self, status: u16, name: &str, token: &str) {
        let recovered = async || self.send(name, token).await.status == status;
        until(&format!("{name} is {status}"), recovered).await;
    }

    /// Asserts that requests of these names are answered with 503.
    async fn assert_unavailable(&self, names: [&str; 3], token: &str, fault: &str) {
        for name in names {
            let what = format!("{name} with {fault}");
            assert_unavailable(&what, async || self.send(name, token).await).await;
        }
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
            let ms = began.elapsed().as_millis();
            postern_harness::note(&format!("{what}: 503 after {ms} ms"));
            return;
        }
    }
    panic!("{what}: 503 after {took:?}");
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
        let needing = ["exchange", "social sign-in", "register"];
        let what = format!("Redis {fault:?}");
        calls.assert_unavailable(needing, &token, &what).await;
        // The process counts attempts in memory meanwhile.
        let _ = calls.send("login", "").await.expect(200);
        let _ = calls.send("me", "").await.expect(200);
        // Refreshing and signing out are calls to the pool only.
        let refreshed = replica.refresh(&calls.ada.tokens).await.expect(200).json();
        let body = json!({"refreshToken": text(&refreshed, "refreshToken")});
        let _ = replica.post("/auth/logout", &body).await.expect(204);
        let again = replica.refresh(&refreshed).await;
        let _ = again.problem(401, "invalid_refresh_token");
        match fault {
            Fault::Suspended => cluster.redis.signal("CONT").await,
            Fault::Killed => cluster.redis.restart().await,
        }
        let unknown = "A".repeat(43);
        calls.until_status(401, "exchange", &unknown).await;
        let exchanged = calls.send("exchange", &token).await;
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
        let _ = calls.send("me", "").await.expect(200);
        let token = match fault {
            Fault::Suspended => replica.surface.social_token("ada").await,
            Fault::Killed => String::new(),
        };
        match fault {
            Fault::Suspended => cluster.standalone.signal("STOP").await,
            Fault::Killed => cluster.standalone.signal("KILL").await,
        }
        let needing = ["login", "refresh", "register"];
        let what = format!("the pool {fault:?}");
        calls.assert_unavailable(needing, &token, &what).await;
        // The pool's keys are cached, and the exchange needs only Redis.
        let _ = calls.send("me", "").await.expect(200);
        if fault == Fault::Suspended {
            let _ = calls.send("exchange", &token).await.expect(200);
            cluster.standalone.signal("CONT").await;
            calls.until_status(200, "login", "").await;
        }
    }
    let _ = replica.running.stop("TERM").await;
}
