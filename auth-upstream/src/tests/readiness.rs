//! Readiness of a replica.

use std::time::Duration;

use postern_common::admin::Health;
use postern_common::database::{Database, testing};
use sqlx::Executor;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use postern_common::startup::Listeners;

use crate::app::App;
use crate::testing::{Fixture, FixtureOptions};

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

#[tokio::test]
async fn replica_is_not_ready_while_writes_fail() {
    let fixture = Fixture::with(FixtureOptions {
        database: Some(testing::postgres().await),
        ..FixtureOptions::default()
    })
    .await;
    let app = App::build(fixture.settings.read(), fixture.clock.clone())
        .await
        .expect("the service starts");
    let (health, shutdown) = (app.health(), CancellationToken::new());
    let listeners = Listeners {
        public: TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        admin: None,
    };
    let running = tokio::spawn(app.run(listeners, shutdown.clone()));
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
    until(
        &health,
        "not ready; database: the database accepts no writes",
    )
    .await;
    assert_eq!(fixture.pending_registrations().await, 0, "reads succeed");
    operator.rollback().await.expect("rolled back");
    until(&health, "ready").await;
    shutdown.cancel();
    running.await.expect("no panic");
}
