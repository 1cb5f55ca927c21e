//! Bounds on what requests make the authentication upstream log.

use std::time::{Duration, Instant};

use postern_tests::http_body::json;

use crate::auth_cluster::{AuthCluster, Changes};

/// At most one event of a kind is logged in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const REQUESTS: usize = 200;

#[tokio::test]
async fn requests_without_redis_are_logged_at_a_bounded_rate() {
    let mut cluster = AuthCluster::start().await;
    let replica = cluster.replica(&Changes::default()).await;
    cluster.redis.kill().await;
    let body = json!({"temporaryToken": "A".repeat(43)});
    let began = Instant::now();
    for _ in 0..REQUESTS {
        let answer = replica.post("/auth/tokens/exchange", &body).await;
        let _ = answer.problem(503, "unavailable");
    }
    let log = replica.running.log();
    let lines = log.matches("shared cache unavailable").count();
    let intervals = began.elapsed().as_secs() / LOG_INTERVAL.as_secs() + 1;
    let limit = usize::try_from(intervals).expect("a few");
    assert!((1..=limit).contains(&lines), "{lines} lines: {log}");
    let _ = replica.running.stop("TERM").await;
}
