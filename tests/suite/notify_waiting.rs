//! A failing provider in the log, with its cause, and in the status of the notifications that wait
//! for it; and a paused provider.

use std::time::{Duration, Instant};

use postern_core::testing::assert_members;
use postern_harness::wait::{answer, until};
use postern_store::database::Database;
use postern_store::database::testing::postgres;
use serde_json::{Value, json};
use sqlx::Executor;

use crate::notify_cluster::{NotifyCluster, PROVIDER_NAME, Replica};

/// Maximum time until readiness names a lock.
const LOCK_LIMIT: Duration = Duration::from_secs(15);
/// Maximum time until the other replica knows a pause: it asks every two seconds.
const PAUSE_LIMIT: Duration = Duration::from_secs(4);

/// Polls a notification until it waits for `reason`, and returns its status document.
async fn wait_for_reason(
    cluster: &NotifyCluster,
    replica: &Replica,
    id: &str,
    reason: &str,
) -> Value {
    answer(async || {
        let view = cluster.status(replica, id).await;
        match view["waitReason"] == reason {
            true => Ok(view),
            false => Err(format!("{reason}: {view}: {}", replica.running.log())),
        }
    })
    .await
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
    let failing = log.lines().filter(|line| line.contains("provider failing"));
    let lines: Vec<&str> = failing.collect();
    assert!(!lines.is_empty() && lines.len() < 10, "{log}");
    for line in lines {
        assert!(line.contains(PROVIDER_NAME), "{line}");
        assert!(line.contains("503"), "the cause is missing: {line}");
    }
    cluster.provider.respond_with(None);
    for id in &ids {
        cluster.settled(&replica, id, "SENT").await;
    }
    let _ = replica.running.stop("TERM").await;
}

#[tokio::test]
async fn paused_provider_is_called_by_no_replica() {
    let database = postgres().await;
    let mail = tempfile::tempdir().expect("a folder");
    let settings = format!(
        "[[provider]]\nname = \"outbox\"\nchannel = \"email\"\nkind = \"file\"\nfolder = \"{}\"",
        mail.path().display()
    );
    let mut cluster = NotifyCluster::over(&database.url, &settings).await;
    cluster.has_admin_routes = true;
    let (first, second) = (cluster.replica().await, cluster.replica().await);
    let path = |action: &str| format!("providers/{PROVIDER_NAME}/{action}");
    let reason = json!({ "reason": "wrong sender" });
    let answer = cluster.change(&first, &path("pause"), &reason).await;
    assert_eq!(answer["paused"]["operator"], "ada", "{answer}");
    let since = Instant::now();
    let gauge =
        format!("postern_notify_provider_paused{{channel=\"sms\",provider=\"{PROVIDER_NAME}\"}}");
    cluster.wait_for_metric(&second, &gauge, 1).await;
    let took = since.elapsed();
    assert!(took < PAUSE_LIMIT, "{took:?}");
    // Both accept notifications of the channel; the other channel is not affected.
    let mut ids = cluster.post_batch(&second, &["NORMAL"; 20]).await;
    ids.extend(cluster.post_batch(&first, &["NORMAL"; 20]).await);
    let sent = cluster.post_mail(&second, "ada@example.com").await;
    cluster.settled(&second, &sent, "SENT").await;
    let view = wait_for_reason(&cluster, &second, &ids[39], "PROVIDER_PAUSED").await;
    assert_members(&view, &json!({"status": "QUEUED", "attempts": 0}));
    let ready = cluster.readiness(&second).await;
    let name = format!("{PROVIDER_NAME} paused");
    assert_members(&ready, &json!({"ready": true, "degraded": [name]}));
    // The pause survives all processes.
    for replica in [first, second] {
        let _ = replica.running.stop("TERM").await;
    }
    let replica = cluster.replica().await;
    let _ = wait_for_reason(&cluster, &replica, &ids[0], "PROVIDER_PAUSED").await;
    assert!(cluster.provider.calls().is_empty());
    cluster.change(&replica, &path("resume"), &json!({})).await;
    for id in &ids {
        cluster.settled(&replica, id, "SENT").await;
    }
    assert_eq!(cluster.provider.calls().len(), ids.len());
    let log = replica.running.log();
    assert_eq!(log.matches("provider paused").count(), 1, "{log}");
    let _ = replica.running.stop("TERM").await;
}

#[tokio::test]
async fn locked_queue_is_degraded_with_its_blocker() {
    let database = postgres().await;
    let cluster = NotifyCluster::over(&database.url, "").await;
    let replica = cluster.replica().await;
    let Database::Postgres(pool) = &database.database else {
        panic!("PostgreSQL")
    };
    let mut holder = pool.begin().await.expect("begun");
    let warnings = |log: &str| log.lines().filter(|line| line.contains("WARN")).count();
    let before = warnings(&replica.running.log());
    let locked = holder.execute("LOCK TABLE notify_queue").await;
    locked.expect("locked");
    let since = Instant::now();
    let mut ready = Value::Null;
    let blocked = |ready: &Value| {
        let statements = ready["parts"]["statements"].to_string();
        statements.contains("; blocked by session ")
    };
    while !blocked(&ready) {
        let log = replica.running.log();
        assert!(since.elapsed() < LOCK_LIMIT, "{ready}: {log}");
        let rejected = cluster.try_post(&replica, "locked", "HIGH").await;
        assert_eq!(rejected, None, "the table is locked");
        ready = cluster.readiness(&replica).await;
    }
    assert_eq!(ready["ready"], true, "the probe writes to another table");
    let failures = "postern_database_statement_failures_total{statement=";
    cluster.wait_for_metric(&replica, failures, 1).await;
    let text = replica.admin.fetch("/metrics", 200).await.text();
    let oldest = "postern_notify_oldest_waiting_seconds{channel=\"sms\"";
    let mut oldest = text.lines().filter(|line| line.starts_with(oldest));
    assert!(oldest.any(|line| line.ends_with(" NaN")), "not 0: {text}");
    // One line in 10 s.
    let log = replica.running.log();
    let intervals = since.elapsed().as_secs() / 10 + 1;
    let warned = warnings(&log) - before;
    assert!(u64::try_from(warned).expect("a few") <= intervals, "{log}");
    holder.commit().await.expect("released");
    let sound = async || cluster.readiness(&replica).await["degraded"] == json!([]);
    until("the queue is not locked any more", sound).await;
    let _ = replica.running.stop("TERM").await;
}
