//! Memory during a flood of the largest bodies while the store is blocked is bounded by a setting.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use postern_harness::note;
use postern_store::database::testing::postgres;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};

use crate::notify_cluster::NotifyCluster;

/// Concurrent clients.
const CLIENTS: usize = 24;

/// Maximum memory growth for 4 MiB of bodies in KiB: the text, the parsed values, and the stored
/// form.
const MAX_GROWTH_KIB: u64 = 128 << 10;

/// Returns a batch of almost one mebibyte, the maximum: fifteen notifications with nearly the
/// maximum of variables.
fn batch(blob: &Value) -> Value {
    let one = json!({"channel": "sms", "recipient": {"phone": "+491701234567"}, "template": "welcome",
        "variables": {"name": "Ada", "blob": blob}});
    json!({"notifications": vec![one; 15]})
}

/// The result of a flood.
#[derive(Debug)]
struct Flood {
    /// Growth of the peak memory in KiB.
    grown: u64,
    /// Number of clients that read the response 503.
    read_rejections: usize,
    accepted: usize,
}

/// Sends all batches while nothing can be stored, until all but `held` have been rejected; then the
/// rest is stored. A rejection may close the connection before the client has read it.
async fn flood(bodies: &str, blob: &Value, held: usize) -> Flood {
    let database = postgres().await;
    let settings = format!("[queue]\nbodies = '{bodies}'\nsms_permits = 16");
    let cluster = NotifyCluster::over(&database.url, &settings).await;
    let replica = cluster.replica().await;
    let lock = PgConnection::connect(&database.url).await;
    let mut lock = lock.expect("PostgreSQL accepts connections");
    let locked = lock.execute("BEGIN; LOCK TABLE notify_record IN EXCLUSIVE MODE");
    locked.await.expect("the table is locked");
    let (body, before) = (batch(blob), replica.running.peak_memory_kib());
    let mut answers: FuturesUnordered<_> = (0..CLIENTS)
        .map(|_| cluster.post_body(&replica, &body))
        .collect();
    let mut read_rejections = 0;
    let refused = async {
        for _ in held..CLIENTS {
            let answer = answers.next().await.expect("a response of each client");
            let is_rejected = answer.is_none_or(|it| it == StatusCode::SERVICE_UNAVAILABLE);
            assert!(is_rejected, "{answer:?}");
            read_rejections += usize::from(answer.is_some());
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(60), refused).await;
    refused.expect("the batches beyond the budget are rejected in time");
    let grown = replica.running.peak_memory_kib() - before;
    let unlocked = lock.execute("ROLLBACK").await;
    unlocked.expect("the table is unlocked");
    let rest: Vec<Option<StatusCode>> = answers.collect().await;
    replica.stop().await;
    let is_accepted = |status: &&Option<StatusCode>| **status == Some(StatusCode::OK);
    let accepted = rest.iter().filter(is_accepted).count();
    Flood {
        grown,
        read_rejections,
        accepted,
    }
}

#[tokio::test]
async fn flood_of_large_bodies_stays_within_its_memory_budget() {
    let words = json!("x".repeat(60_000));
    // Numbers use the most memory relative to their text.
    let numbers = json!(vec![1; 30_000]);
    for (what, blob) in [("words", words), ("numbers", numbers)] {
        // The budget admits four; the others are rejected.
        let bounded = flood("4MiB", &blob, 4).await;
        note(&format!(
            "notify: {CLIENTS} bodies of 0.9 MB of {what} at once while the database is locked: with a budget of 4 MiB the \
             process grows by {} KiB, {} are accepted and the others rejected ({} read the 503)",
            bounded.grown, bounded.accepted, bounded.read_rejections
        ));
        assert!((1..=4).contains(&bounded.accepted), "{bounded:?}");
        let is_bounded = bounded.grown < MAX_GROWTH_KIB;
        assert!(is_bounded && bounded.read_rejections > 0, "{bounded:?}");
    }
}
