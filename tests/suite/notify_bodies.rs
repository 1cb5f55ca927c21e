//! A flood of the largest bodies while the store stands still: how much memory it takes is a setting.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use postern_common::database::testing::postgres;
use postern_tests::note;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};

use crate::notify_stage::{SOON, Stage};

/// How many send at once.
const CLIENTS: usize = 24;

/// A batch of nearly a mebibyte, as large as may be: fifteen times almost all the variables that one may have.
fn batch(blob: &Value) -> Value {
    let one = json!({"channel": "sms", "recipient": {"phone": "+491701234567"}, "template": "welcome",
        "variables": {"name": "Ada", "blob": blob}});
    json!({"notifications": vec![one; 15]})
}

/// What a flood did.
struct Flood {
    /// How many kibibytes the process grew at its peak.
    grown: u64,
    /// How many heard that they should come back.
    told: usize,
    accepted: usize,
}

/// Sends them all while nothing can be stored, until so many were refused and the process has grown by so many kibibytes;
/// then everything else is stored. A refusal may close the connection before its client has read it.
async fn flood(bodies: &str, blob: &Value, refused: usize, grown: u64) -> Flood {
    let database = postgres().await;
    let stage = Stage::over(&database.url, &format!("[queue]\nbodies = '{bodies}'\nsms_permits = 16")).await;
    let replica = stage.replica().await;
    let mut lock = PgConnection::connect(&database.url).await.expect("connects");
    lock.execute("BEGIN; LOCK TABLE notify_record IN EXCLUSIVE MODE").await.expect("locks");
    let (body, before) = (batch(blob), replica.running.peak_memory_kib());
    let mut answers: FuturesUnordered<_> = (0..CLIENTS).map(|_| stage.post_body(&replica, &body)).collect();
    let mut told = 0;
    let stands = async {
        for _ in 0..refused {
            let answer = answers.next().await.expect("one of all");
            assert!(answer.is_none_or(|status| status == StatusCode::SERVICE_UNAVAILABLE), "{answer:?}");
            told += usize::from(answer.is_some());
        }
        while replica.running.peak_memory_kib() - before < grown {
            let _ = tokio::time::timeout(SOON, answers.next()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), stands).await.expect("they are refused, or it has grown");
    let grown = replica.running.peak_memory_kib() - before;
    lock.execute("ROLLBACK").await.expect("unlocks");
    let rest: Vec<Option<StatusCode>> = answers.collect().await;
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    let accepted = rest.iter().filter(|status| **status == Some(StatusCode::OK)).count();
    Flood { grown, told, accepted }
}

#[tokio::test]
async fn a_flood_of_large_bodies_takes_no_more_memory_than_it_is_given() {
    let words = json!("x".repeat(60_000));
    // What takes the most memory for its bytes.
    let numbers = json!(vec![1; 30_000]);
    for (what, blob) in [("words", words), ("numbers", numbers)] {
        // Room for four: whoever waits has one, or is refused.
        let bounded = flood("4MiB", &blob, CLIENTS - 4, 0).await;
        let wide = flood("1GiB", &blob, 0, 2 * bounded.grown).await;
        note(&format!(
            "notify: {CLIENTS} bodies of 0.9 MB of {what} at once while the store stands still: with room for 4 MiB the \
             process grows by {} KiB, {} are accepted and the rest is refused ({} read the 503); with room for all it grows \
             by more than {} KiB",
            bounded.grown, bounded.accepted, bounded.told, wide.grown
        ));
        assert!(
            (1..=4).contains(&bounded.accepted) && bounded.told > 0,
            "{} {}",
            bounded.accepted,
            bounded.told
        );
    }
}
