//! The load of idle replicas on PostgreSQL, and the delay of rows that another process has queued.
//! `POSTERN_TEST_REPLICAS` sets the number of replicas (default 3); with 50 the server needs
//! `POSTERN_TEST_MAX_CONNECTIONS=500`.

use std::time::{Duration, Instant};

use postern_harness::note;
use postern_harness::wait::until;
use sqlx::{Connection, Executor, PgConnection};

use crate::auth_cluster::{AuthCluster, Changes};
use crate::notify_cluster::{Call, NotifyCluster};
use crate::notify_order::env_number;
use postern_harness::stores::OwnPostgres;

/// Small pools, so that fifty replicas fit one server.
const SETTINGS: &str = "database_connections = 4\n[queue]\nconnections = 3\nsms_permits = 16";
/// Maximum transactions per second of an idle replica of the notification service: three polls of
/// channels, two queries for due rows, and the rest.
const MAX_IDLE_NOTIFY_TRANSACTIONS: f64 = 8.0;
/// Maximum transactions per second of an idle replica of the authentication service.
const MAX_IDLE_AUTH_TRANSACTIONS: f64 = 2.0;
/// Time over which transactions are counted: the longest regular intervals are 10 s and 60 s.
const WINDOW: Duration = Duration::from_secs(20);
/// Windows after the start of the replicas, in which they still have work.
const MAX_WINDOWS: usize = 5;
/// Maximum delay of a row of another process: the interval of polls, and a claim.
const MAX_POLL_DELAY: Duration = Duration::from_secs(2);

/// Starts a server without autovacuum, of which the transactions would be counted.
async fn quiet_server() -> OwnPostgres {
    let server = OwnPostgres::start().await;
    let mut operator = operator(server.url()).await;
    let off = "ALTER SYSTEM SET autovacuum = off";
    for statement in [off, "SELECT pg_reload_conf()"] {
        operator.execute(statement).await.expect("set");
    }
    server
}

async fn operator(url: &str) -> PgConnection {
    let operator = PgConnection::connect(url).await;
    operator.expect("PostgreSQL accepts connections")
}

/// Returns the result of a query.
async fn number(operator: &mut PgConnection, query: &'static str) -> i64 {
    let number = sqlx::query_scalar(query).fetch_one(operator).await;
    number.expect("a number")
}

/// Returns the committed transactions of the database.
async fn transactions(operator: &mut PgConnection) -> i64 {
    let query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    number(operator, query).await
}

/// Measures windows until the replicas are idle, and returns the transactions per second of the
/// last window. Waits for time to pass, because that is what is measured.
async fn idle_rate(url: &str, budget: f64) -> f64 {
    let mut operator = operator(url).await;
    let mut rate = f64::MAX;
    for _ in 0..MAX_WINDOWS {
        let (began, before) = (Instant::now(), transactions(&mut operator).await);
        let _ = tokio::time::timeout(WINDOW, std::future::pending::<()>()).await;
        let counted = u32::try_from(transactions(&mut operator).await - before);
        rate = f64::from(counted.expect("a count")) / began.elapsed().as_secs_f64();
        if rate <= budget {
            break;
        }
    }
    rate
}

#[tokio::test]
async fn idle_notify_replicas_stay_within_their_budget() {
    let database = quiet_server().await;
    let cluster = NotifyCluster::over(database.url(), SETTINGS).await;
    let count = env_number("POSTERN_TEST_REPLICAS", 3);
    let mut running = Vec::new();
    for _ in 0..count {
        running.push(cluster.replica().await);
    }
    let replicas = f64::from(u32::try_from(count).expect("a count"));
    let rate = idle_rate(database.url(), replicas * MAX_IDLE_NOTIFY_TRANSACTIONS).await / replicas;
    let mut operator = operator(database.url()).await;
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
    let connections = number(&mut operator, connections).await;
    note(&format!(
        "notify: {count} idle replicas: {rate:.2} transactions per second each, {connections} connections in total"
    ));
    assert!(rate <= MAX_IDLE_NOTIFY_TRANSACTIONS, "{rate:.2}");
    let mut delays = Vec::new();
    for (number, replica) in running.iter().cycle().take(20).enumerate() {
        let began = Instant::now();
        let key = format!("k{number}");
        let id = cluster.accept(replica, &key, "NORMAL").await;
        let is_called = |calls: &[Call]| calls.iter().any(|call| call.id == id);
        let calls = cluster.provider.until(Duration::from_secs(30), is_called);
        let calls = calls.await;
        let called = calls.iter().find(|call| call.id == id).expect("a call");
        delays.push(called.at.duration_since(began));
    }
    delays.sort_unstable();
    let (median, maximum) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    note(&format!(
        "notify: request to provider over {count} idle replicas: median {median:.1?}, maximum {maximum:.1?}"
    ));
    assert!(median < Duration::from_secs(1), "at once: {delays:?}");
    row_of_another_process_is_found(&cluster, &mut operator).await;
}

#[tokio::test]
async fn idle_auth_replica_stays_within_its_budget() {
    let database = quiet_server().await;
    let cluster = AuthCluster::start().await;
    let changes = Changes {
        database: Some(database.url().to_owned()),
        ..Changes::default()
    };
    let _replica = cluster.replica(&changes).await;
    let rate = idle_rate(database.url(), MAX_IDLE_AUTH_TRANSACTIONS).await;
    note(&format!(
        "auth: an idle replica: {rate:.2} transactions per second"
    ));
    assert!(rate <= MAX_IDLE_AUTH_TRANSACTIONS, "{rate:.2}");
}

/// Puts the first notification into the queue again.
const REQUEUE: &str = "INSERT INTO notify_queue (id, lane, ord, fence, attempt)
    SELECT id, lane, (extract(epoch FROM clock_timestamp()) * 1000)::int8 << 12, 0, 0
    FROM notify_record ORDER BY id LIMIT 1";

/// The next poll of any replica finds a row that no process was told of.
async fn row_of_another_process_is_found(cluster: &NotifyCluster, operator: &mut PgConnection) {
    // The result of the call is stored after the call.
    let queued = "SELECT count(*) FROM notify_queue";
    let is_empty = async || number(&mut *operator, queued).await == 0;
    until("the queue is empty", is_empty).await;
    let (began, before) = (Instant::now(), cluster.provider.calls().len());
    operator.execute(REQUEUE).await.expect("queued");
    let wait = Duration::from_secs(60);
    let called = cluster.provider.until(wait, |all| all.len() > before).await;
    let delay = called[before].at.duration_since(began);
    note(&format!(
        "notify: a row of another process waits for {delay:.1?}"
    ));
    assert!(delay < MAX_POLL_DELAY, "{delay:?}");
}
