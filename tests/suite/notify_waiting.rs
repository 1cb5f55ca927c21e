//! A failing provider in the log, with its cause, and in the status of the notifications that wait
//! for it.

use std::time::Duration;

use postern_common::database::testing::postgres;
use serde_json::Value;

use crate::notify_cluster::{NotifyCluster, PROVIDER_NAME, Replica};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls a notification until it waits for `reason`, and returns its status document.
///
/// # Panics
/// If it does not within [`TIMEOUT`].
async fn wait_for_reason(
    cluster: &NotifyCluster,
    replica: &Replica,
    id: &str,
    reason: &str,
) -> Value {
    let polled = async {
        loop {
            let view = cluster.status(&replica.url, id).await;
            if view["waitReason"] == reason {
                return view;
            }
        }
    };
    let found = tokio::time::timeout(TIMEOUT, polled).await;
    found.unwrap_or_else(|_| panic!("{id} does not wait for {reason}: {}", replica.running.log()))
}

#[tokio::test]
async fn failing_provider_is_logged_and_shown_with_its_cause() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, "").await;
    let replica = cluster.replica().await;
    cluster.provider.respond_with(Some(503));
    let ids = cluster.post_batch(&replica, &["NORMAL"; 40]).await;
    let view = wait_for_reason(&cluster, &replica, &ids[0], "PROVIDER_UNAVAILABLE").await;
    assert_eq!(view["status"], "QUEUED", "{view}");
    assert!(view["nextAttemptAt"].is_string(), "{view}");
    let log = replica.running.log();
    for text in ["provider failing", "circuit breaker open"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(text)).collect();
        assert!(!lines.is_empty() && lines.len() < 10, "{text}: {log}");
        for line in lines {
            assert!(line.contains(PROVIDER_NAME), "{line}");
            assert!(line.contains("503"), "the cause is missing: {line}");
        }
    }
    cluster.provider.respond_with(None);
    for id in &ids {
        cluster.settled(&replica, id, "SENT").await;
    }
    let _ = replica.running.stop("TERM").await;
}
