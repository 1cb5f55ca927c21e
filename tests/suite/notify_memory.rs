//! Memory during a flood of the largest bodies while the store is blocked is bounded by a setting.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use postern_common::database::testing::postgres;
use postern_tests::note;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};

use crate::notify_stage::Stage;

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
struct Flood {
    /// Growth of the peak memory in KiB.
    grown: u64,
    /// Number of clients asked to retry.
    told: usize,
    accepted: usize,
}

/// Sends all batches while nothing can be stored, until all but `held` have been rejected; then the
/// rest is stored. A rejection may close the connection before the client has read it.
async fn flood(bodies: &str, blob: &Value, held: usize) -> Flood {
    let database = postgres().await;
    let stage = Stage::over(
        &database.url,
        &format!("[queue]\nbodies = '{bodies}'\nsms_permits = 16"),
    )
    .await;
    let replica = stage.replica().await;
    let mut lock = PgConnection::connect(&database.url)
        .await
        .expect("connects");
    lock.execute("BEGIN; LOCK TABLE notify_record IN EXCLUSIVE MODE")
        .await
        .expect("locks");
    let (body, before) = (batch(blob), replica.running.peak_memory_kib());
    let mut answers: FuturesUnordered<_> = (0..CLIENTS)
        .map(|_| stage.post_body(&replica, &body))
        .collect();
    let mut told = 0;
    let refused = async {
        for _ in held..CLIENTS {
            let answer = answers.next().await.expect("one of all");
            assert!(
                answer.is_none_or(|status| status == StatusCode::SERVICE_UNAVAILABLE),
                "{answer:?}"
            );
            told += usize::from(answer.is_some());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused)
        .await
        .expect("they are refused");
    let grown = replica.running.peak_memory_kib() - before;
    lock.execute("ROLLBACK").await.expect("unlocks");
    let rest: Vec<Option<StatusCode>> = answers.collect().await;
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    let accepted = rest
        .iter()
        .filter(|status| **status == Some(StatusCode::OK))
        .count();
    Flood {
        grown,
        told,
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
            "notify: {CLIENTS} bodies of 0.9 MB of {what} at once while the store stands still: with room for 4 MiB the \
             process grows by {} KiB, {} are accepted and the rest is refused ({} read the 503)",
            bounded.grown, bounded.accepted, bounded.told
        ));
        assert!((1..=4).contains(&bounded.accepted), "{}", bounded.accepted);
        assert!(
            bounded.told > 0 && bounded.grown < MAX_GROWTH_KIB,
            "{} {}",
            bounded.told,
            bounded.grown
        );
    }
}
