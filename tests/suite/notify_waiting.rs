//! What an operator and a client see while a provider fails: the cause in the log, and what the
//! notification waits for.

use std::time::Duration;

use postern_common::database::testing::postgres;
use postern_tests::Postern;
use serde_json::{Value, json};

use crate::notify_stage::{Replica, Stage};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the view of a notification once it waits for this reason.
async fn waiting(stage: &Stage, replica: &Replica, id: &str, reason: &str) -> Value {
    let asking = async {
        loop {
            let view = stage.status(&replica.url, id).await;
            if view["waitReason"] == reason {
                return view;
            }
        }
    };
    let found = tokio::time::timeout(TIMEOUT, asking).await;
    found.unwrap_or_else(|_| panic!("{id} does not wait for {reason}: {}", replica.running.log()))
}

#[tokio::test]
async fn failing_provider_is_logged_and_shown_with_its_cause() {
    let database = postgres().await;
    let stage = Stage::over(&database.url, "").await;
    let replica = stage.replica().await;
    stage.provider.refuse(Some(503));
    let ids = stage.post_batch(&replica, &["NORMAL"; 40]).await;
    let view = waiting(&stage, &replica, &ids[0], "PROVIDER_UNAVAILABLE").await;
    assert_eq!(view["status"], "QUEUED", "{view}");
    assert!(view["nextAttemptAt"].is_string(), "{view}");
    let log = replica.running.log();
    for text in ["provider call failed", "circuit breaker open"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(text)).collect();
        assert!(!lines.is_empty() && lines.len() < 10, "{text}: {log}");
        for line in lines {
            assert!(line.contains("record"), "the provider's name: {line}");
            assert!(line.contains("503"), "the cause: {line}");
        }
    }
    stage.provider.refuse(None);
    for id in &ids {
        stage.settled(&replica, id, "SENT").await;
    }
    let _ = replica.running.stop("TERM").await;
}

/// The answers are held against the schema of the document as they are read.
#[tokio::test]
async fn pointer_of_a_name_with_line_feeds_fits_its_pattern() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    for name in ["line\nfeed", "\n", "\r\n\u{2028}", "/slash~\n"] {
        let body = json!({ name: 1 });
        let answer = ada.client.post("/notifications").json(&body).send().await;
        let refusal = answer.problem(400, "invalid_request");
        let escaped = name.replace('~', "~0").replace('/', "~1");
        let pointers = refusal.pointers();
        assert!(pointers.contains(&format!("/{escaped}")), "{pointers:?}");
    }
    postern.stop().await;
}
