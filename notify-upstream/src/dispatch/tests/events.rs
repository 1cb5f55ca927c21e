//! Log events, metrics and readiness while a provider fails.

use postern_core::testing::CapturedLog;

use super::*;
use crate::delivery::provider::{HttpConfig, HttpProvider, Provider};
use crate::testing::actor_service::unreachable_actors;
use crate::testing::assert_metric;
use crate::testing::recorded_api::RecordedApi;

/// Words of the test's notifications and configuration that no log event may contain.
const SECRETS: [&str; 4] = ["ada@", "example.com", "Hello", "Bearer"];

fn assert_nothing_secret(log: &CapturedLog) {
    let text = log.text();
    for secret in SECRETS {
        let leak = text.lines().find(|line| line.contains(secret));
        assert_eq!(leak, None, "{secret}");
    }
}

/// Starts an HTTP API that answers every request with this status.
async fn api_answering(status: u16) -> Provider {
    let api = RecordedApi::start(move |_| (status, "to ada@example.com".to_owned())).await;
    let config = HttpConfig {
        url: api.base,
        authorization: Some("Bearer s3cr3t".to_owned().into()),
        body: r#"{"to": {{ to }}}"#.to_owned(),
    };
    let api = HttpProvider::new(config).expect("valid");
    Provider::Http(Box::new(api))
}

#[tokio::test]
async fn outage_is_logged_from_failure_to_recovery() {
    let (log, _guard) = CapturedLog::start();
    let (mut rig, _database) = replicas(16).await.remove(0);
    rig.open_breaker(Priority::High).await;
    assert_eq!(log.with(&["provider failing", "451"]), 1, "{}", log.text());
    assert_eq!(log.with(&["INFO", "circuit breaker opened"]), 1);
    let state = r#"postern_notify_circuit_breaker_state{channel="email",provider="script"}"#;
    assert_metric(&rig.metrics, &format!("{state} 2"));
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
    assert_metric(&rig.metrics, &format!("{state} 0"));
    assert!(rig.metrics.health.degraded().is_empty());
    assert_nothing_secret(&log);
}

#[tokio::test]
async fn dead_letter_is_logged_and_counted() {
    let (log, _guard) = CapturedLog::start();
    let (mut rig, _database) = replicas(8).await.remove(0);
    rig.script.refuse(&["550 5.1.1"]);
    let id = rig.accept(Priority::Normal).await.to_string();
    rig.step().await;
    let event = ["WARN", "notification failed, dead letter stored", &id];
    let fields = ["provider=\"script\"", "template=\"welcome\"", "550 5.1.1"];
    let words = [&event[..], &fields].concat();
    assert_eq!(log.with(&words), 1, "{}", log.text());
    let line = r#"postern_notify_attempts_total{channel="email",code="mailbox_unknown",outcome="failed",provider="script"} 1"#;
    assert_metric(&rig.metrics, line);
    assert_eq!(log.with(&["INFO", "address suppressed"]), 1);
    // A refused recipient says nothing about the provider.
    assert!(rig.metrics.health.degraded().is_empty());
    assert_nothing_secret(&log);
}

#[tokio::test]
async fn refusing_http_api_is_logged_with_its_status() {
    // A token and a rate are those of the account; a refused message shows that the API works.
    let rows = [
        (401, "provider failing", true),
        (429, "provider failing", true),
        (400, "message refused by provider", false),
    ];
    for (status, event, is_degraded) in rows {
        let (log, _guard) = CapturedLog::start();
        let (store, _database) = stores().await.remove(0);
        let (clock, provider) = (clock(), api_answering(status).await);
        let actors = unreachable_actors(&clock);
        let mut rig = TestReplica::delivering(&store, &clock, provider, actors).await;
        rig.accept(Priority::Normal).await;
        rig.step().await;
        let cause = format!("http {status}");
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
    let (mut rig, _database) = replicas(40).await.remove(0);
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
