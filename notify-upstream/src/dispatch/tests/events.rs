//! Log events, metrics and readiness while a provider fails.

use axum::Router;
use http::StatusCode;
use postern_core::testing::CapturedLog;
use prometheus::{Encoder, TextEncoder};
use tokio::net::TcpListener;

use super::*;
use crate::delivery::provider::{ErrorCodeTable, HttpConfig, HttpProvider, Provider};
use crate::testing::unreachable_actors;

/// Words of the test's notifications and configuration that no log event may contain.
const SECRETS: [&str; 4] = ["ada@", "example.com", "Hello", "Bearer"];

/// Returns the exported metrics as text.
fn metrics(rig: &TestReplica) -> String {
    let mut text = Vec::new();
    let families = rig.metrics.registry.gather();
    TextEncoder::new()
        .encode(&families, &mut text)
        .expect("metrics");
    String::from_utf8(text).expect("UTF-8")
}

fn assert_metric(rig: &TestReplica, line: &str) {
    let text = metrics(rig);
    assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
}

fn assert_nothing_secret(log: &CapturedLog) {
    let text = log.text();
    for secret in SECRETS {
        let leak = text.lines().find(|line| line.contains(secret));
        assert_eq!(leak, None, "{secret}");
    }
}

/// Starts an HTTP API that answers every request with this status.
async fn api_answering(status: StatusCode) -> Provider {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().fallback(move || async move { (status, "to ada@example.com") });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = HttpConfig {
        url: format!("http://{address}/").parse().expect("URL"),
        authorization: Some("Bearer s3cr3t".to_owned().into()),
        body: r#"{"to": {{ to }}}"#.to_owned(),
    };
    let api = HttpProvider::new(config, ErrorCodeTable::shipped()).expect("valid");
    Provider::Http(Box::new(api))
}

#[tokio::test]
async fn outage_is_logged_from_failure_to_recovery() {
    let (log, _guard) = CapturedLog::start();
    let (store, _database) = stores().await.remove(0);
    let clock = clock();
    let mut rig = TestReplica::new(&store, &clock, 16).await;
    rig.open_breaker(Priority::High).await;
    assert_eq!(log.with(&["provider failing", "451"]), 1, "{}", log.text());
    assert_eq!(log.with(&["INFO", "circuit breaker opened"]), 1);
    let state = r#"postern_notify_circuit_breaker_state{channel="email",provider="script"}"#;
    assert_metric(&rig, &format!("{state} 2"));
    rig.advance(2).await;
    rig.accept(Priority::High).await;
    for _ in 0..3 {
        rig.step().await;
    }
    for event in [
        &["INFO", "circuit breaker half-open"][..],
        &["INFO", "circuit breaker closed"],
        &["INFO", "provider recovered", "failures=10"],
    ] {
        assert_eq!(log.with(event), 1, "{event:?} in {}", log.text());
    }
    assert_metric(&rig, &format!("{state} 0"));
    assert!(rig.metrics.health.degraded().is_empty());
    assert_nothing_secret(&log);
}

#[tokio::test]
async fn dead_letter_is_logged_and_counted() {
    let (log, _guard) = CapturedLog::start();
    let (store, _database) = stores().await.remove(0);
    let mut rig = TestReplica::new(&store, &clock(), 8).await;
    rig.script.refuse(&["550 5.1.1"]);
    let id = rig.accept(Priority::Normal).await.to_string();
    rig.step().await;
    let event = ["WARN", "notification failed, dead letter stored", &id];
    let fields = ["provider=\"script\"", "template=\"welcome\"", "550 5.1.1"];
    let words = [&event[..], &fields].concat();
    assert_eq!(log.with(&words), 1, "{}", log.text());
    let line = r#"postern_notify_attempts_total{channel="email",code="mailbox_unknown",outcome="failed",provider="script"} 1"#;
    assert_metric(&rig, line);
    assert_eq!(log.with(&["INFO", "address suppressed"]), 1);
    // A refused recipient says nothing about the provider.
    assert!(rig.metrics.health.degraded().is_empty());
    assert_nothing_secret(&log);
}

#[tokio::test]
async fn refusing_http_api_is_logged_with_its_status() {
    // A token and a rate are those of the account; a refused message shows that the API works.
    let rows = [
        (StatusCode::UNAUTHORIZED, "provider failing", true),
        (StatusCode::TOO_MANY_REQUESTS, "provider failing", true),
        (
            StatusCode::BAD_REQUEST,
            "message refused by provider",
            false,
        ),
    ];
    for (status, event, is_degraded) in rows {
        let (log, _guard) = CapturedLog::start();
        let (store, _database) = stores().await.remove(0);
        let (clock, provider) = (clock(), api_answering(status).await);
        let actors = unreachable_actors(&clock);
        let mut rig = TestReplica::delivering(&store, &clock, provider, actors).await;
        rig.accept(Priority::Normal).await;
        rig.step().await;
        let cause = format!("http {}", status.as_u16());
        assert_eq!(log.with(&[event, &cause]), 1, "{}", log.text());
        let degraded = rig.metrics.health.degraded();
        assert_eq!(degraded.contains_key("script"), is_degraded, "{degraded:?}");
        assert_nothing_secret(&log);
        assert!(!log.text().contains("s3cr3t"));
    }
}

#[tokio::test]
async fn throttling_of_low_is_logged_in_both_directions() {
    let (log, _guard) = CapturedLog::start();
    let (store, _database) = stores().await.remove(0);
    let clock = clock();
    let mut rig = TestReplica::new(&store, &clock, 40).await;
    rig.open_breaker(Priority::Low).await;
    let waiting = rig.accept(Priority::Low).await;
    for _ in 0..20 {
        rig.advance(1).await;
        rig.step().await;
    }
    assert_eq!(rig.status(waiting).await, "SENT");
    for event in [
        &[
            "INFO",
            "LOW notifications paused",
            "is_provider_available=false",
        ][..],
        &["INFO", "LOW notifications resumed"],
    ] {
        assert_eq!(log.with(event), 1, "{event:?} in {}", log.text());
    }
}
