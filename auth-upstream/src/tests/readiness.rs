//! Readiness of a replica.

use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use postern_core::health::Health;
use postern_core::testing::CapturedLog;
use postern_service::startup::{ConfigOrigin, Listeners};
use postern_store::database::{Database, testing};
use serde_json::Value;
use sqlx::Executor;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::testing::{Fault, Fixture, PASSWORD};

const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until the readiness begins with this text.
async fn until(health: &Health, wanted: &str) {
    let mut changes = health.watch();
    let waiting = async {
        while !health.to_string().starts_with(wanted) {
            changes.changed().await.expect("the service runs");
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| panic!("{health}, not {wanted}"));
}

fn origin() -> ConfigOrigin {
    ConfigOrigin::built_in("auth.toml", "")
}

#[tokio::test]
async fn replica_is_not_ready_while_writes_fail() {
    let fixture = Fixture::with_database(testing::postgres().await).await;
    fixture.database.set_full(true).await;
    let app = App::build(fixture.settings.read(), fixture.clock.clone())
        .await
        .expect("the service starts");
    let (health, shutdown) = (app.health(), CancellationToken::new());
    let listeners = Listeners {
        public: TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        admin: None,
    };
    let running = tokio::spawn(app.run(listeners, origin(), shutdown.clone()));
    let no_writes = "not ready; database: the database accepts no writes";
    until(&health, no_writes).await;
    fixture.database.set_full(false).await;
    until(&health, "ready").await;

    let Database::Postgres(pool) = &fixture.database.database else {
        panic!("PostgreSQL")
    };
    let mut operator = pool.begin().await.expect("a transaction begins");
    // Reads continue, and writes wait.
    operator
        .execute("LOCK TABLE postern_auth_migrations IN EXCLUSIVE MODE")
        .await
        .expect("locked");
    until(&health, no_writes).await;
    assert_eq!(fixture.pending_registrations().await, 0, "reads succeed");
    operator.commit().await.expect("rolled back");
    until(&health, "ready").await;
    shutdown.cancel();
    running.await.expect("no panic");
}

#[tokio::test]
async fn failing_actor_service_degrades_and_recovers() {
    let (log, _guard) = CapturedLog::start();
    let fixture = Fixture::new().await;
    let health = &fixture.service.metrics.health;
    fixture.add_ada().await;
    fixture.inject("/actors/", 1, Fault::status(503));
    let tokens = fixture.sign_in(PASSWORD).await.expect("signed in");
    let mut headers = HeaderMap::new();
    let bearer = format!("Bearer {}", tokens.access_token);
    headers.insert(AUTHORIZATION, bearer.parse().expect("a value"));
    let me = fixture.flows().describe_caller(&headers).await;
    assert_eq!(me.expect("described").get("profile"), None, "not known");
    assert_eq!(health.degraded()["actor_service"], "status 503");
    let event = ["WARN", "dependency unavailable", "actor_service", "503"];
    assert_eq!(log.with(&event), 1, "{}", log.text());
    let me = fixture.flows().describe_caller(&headers).await;
    let me = me.expect("described");
    assert_eq!(me.get("profile"), Some(&Value::Null), "there is none");
    assert!(health.degraded().is_empty());
    assert_eq!(log.with(&["INFO", "dependency available again"]), 1);
}
