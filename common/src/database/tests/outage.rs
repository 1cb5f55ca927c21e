//! PostgreSQL that is unresponsive, read-only or gone: every statement ends, and no failure
//! outlives its cause.

use std::time::Instant;

use sqlx::Executor;

use super::super::testing::{Relay, TestDatabase, postgres};
use super::*;

/// Upper bound for a statement on a busy machine; without a deadline it would take minutes.
const MAX_STATEMENT_TIME: Duration = Duration::from_secs(20);

/// Opens a store through a relay, with short timeouts.
async fn behind_a_relay(test: &TestDatabase) -> (Relay, PostgresPool) {
    let (relay, url) = Relay::start(&test.url).await;
    let options = DatabaseOptions {
        max_connections: 3,
        acquire_timeout: Duration::from_secs(1),
        statement_timeout: Duration::from_secs(1),
        ..DatabaseOptions::new("outage")
    };
    let Ok(Database::Postgres(pool)) = Database::open(&url, options).await else {
        panic!("PostgreSQL")
    };
    (relay, pool)
}

async fn one(pool: &PostgresPool) -> Result<i32, sqlx::Error> {
    let asked = Instant::now();
    let answer = sqlx::query_scalar("SELECT 1").fetch_one(pool).await;
    assert!(
        asked.elapsed() < MAX_STATEMENT_TIME,
        "{:?}",
        asked.elapsed()
    );
    answer
}

#[tokio::test]
async fn silent_connections_are_discarded_and_replaced() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    // Three connections that are used concurrently are idle afterwards.
    let sleep = || pool.execute("SELECT pg_sleep(0.2)");
    let (a, b, c) = tokio::join!(sleep(), sleep(), sleep());
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(pool.idle_connections(), 3);
    relay.stop_forwarding();
    for _ in 0..2 {
        let error = one(&pool).await.expect_err("no answer");
        assert!(is_unavailable(&error), "{error}");
    }
    relay.recover();
    one(&pool)
        .await
        .expect("a new connection; existing ones stay silent");
    let answers = tokio::join!(one(&pool), one(&pool), one(&pool));
    assert!(
        answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok(),
        "{answers:?}"
    );
}

#[tokio::test]
async fn unanswered_transaction_times_out_and_is_closed() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    pool.execute("CREATE TABLE t (id int)")
        .await
        .expect("created");
    let insert = async {
        let mut transaction = pool.begin().await?;
        transaction.execute("INSERT INTO t VALUES (1)").await?;
        relay.stop_forwarding();
        transaction.execute("INSERT INTO t VALUES (2)").await?;
        transaction.commit().await
    };
    let asked = Instant::now();
    let error = pool.within_deadline(insert).await.expect_err("no answer");
    assert!(
        asked.elapsed() < MAX_STATEMENT_TIME && is_unavailable(&error),
        "{error}"
    );
    relay.recover();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(&pool)
        .await
        .expect("answers");
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn cancelled_request_does_not_leave_its_answer_to_the_next() {
    let test = postgres().await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let slow = sqlx::query_scalar::<_, i32>("SELECT 7 FROM pg_sleep(5)").fetch_one(pool);
    tokio::time::timeout(Duration::from_millis(200), slow)
        .await
        .expect_err("it is cut off");
    assert_eq!(pool.idle_connections(), 0, "its connection is closed");
    assert_eq!(one(pool).await.expect("answers"), 1);
}

#[tokio::test]
async fn read_only_session_is_discarded_at_its_first_rejection() {
    let test = postgres().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    test.database
        .verify_writable(&FIRST)
        .await
        .expect("accepts writes");
    // Like a session of a demoted server, which still answers reads.
    pool.execute("SET default_transaction_read_only = on")
        .await
        .expect("set");
    one(pool).await.expect("reads succeed");
    let exit = test
        .database
        .verify_writable(&FIRST)
        .await
        .expect_err("readiness proves a write");
    assert!(
        exit.is_temporary() && exit.message().contains("read-only"),
        "{exit}"
    );
    let insert = "INSERT INTO first_note (id, text) VALUES (1, 'a')";
    sqlx::query(insert)
        .execute(pool)
        .await
        .expect("another session");
    test.database
        .verify_writable(&FIRST)
        .await
        .expect("ready again");
}

#[tokio::test]
async fn read_only_server_is_not_connected_to() {
    let test = postgres().await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let name = test.url.rsplit_once('/').expect("a path").1;
    let set = sqlx::AssertSqlSafe(format!(
        "ALTER DATABASE {name} SET default_transaction_read_only = on"
    ));
    pool.execute(set).await.expect("set");
    let exit = Database::open(&test.url, DatabaseOptions::new("test"))
        .await
        .expect_err("read-only");
    assert!(
        exit.status() == 69
            && exit
                .message()
                .contains("is read-only and accepts no writes"),
        "{exit}"
    );
    let any = format!("{}?target_session_attrs=any", test.url);
    Database::open(&any, DatabaseOptions::new("test"))
        .await
        .expect("target_session_attrs=any accepts it");
}

#[tokio::test]
async fn first_writable_host_is_connected_to() {
    let primary = postgres().await;
    let (silent, _) = Relay::start(&primary.url).await;
    silent.stop_forwarding();
    let url = url::Url::parse(&primary.url).expect("a URL");
    let port = url.port().expect("a port");
    // A closed port, an unresponsive server, and a server that answers.
    let hosts = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:{port}", silent.port());
    let several = primary.url.replace(&format!("127.0.0.1:{port}"), &hosts);
    let database = Database::open(&several, DatabaseOptions::new("test"))
        .await
        .expect("the third answers");
    database.ping().await.expect("answers");
    assert!(database.label().contains(&hosts), "{}", database.label());
}

#[tokio::test]
async fn close_does_not_wait_for_connections_in_use() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    let held = pool.acquire().await.expect("a connection");
    one(&pool).await.expect("another is idle");
    relay.stop_forwarding();
    tokio::time::timeout(MAX_STATEMENT_TIME, pool.close())
        .await
        .expect("it is closed");
    held.release();
    assert_eq!(
        pool.idle_connections(),
        0,
        "a connection released later is closed"
    );
    assert!(matches!(one(&pool).await, Err(sqlx::Error::PoolClosed)));
}

#[tokio::test]
async fn tcp_keepalive_is_set_on_both_ends() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    one(&pool).await.expect("answers");
    let shown: String = sqlx::query_scalar("SHOW tcp_keepalives_idle")
        .fetch_one(&pool)
        .await
        .expect("answers");
    assert_eq!(shown, "15", "the server's end");
    // proc_net_tcp(5): state 01 is established, timer 02 is keepalive.
    let watched = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let to_relay = fields
            .get(2)
            .is_some_and(|peer| peer.ends_with(&format!(":{:04X}", relay.port())));
        (to_relay && fields[3] == "01").then(|| fields[5].starts_with("02:"))
    };
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let connections: Vec<bool> = table.lines().filter_map(watched).collect();
    assert!(
        !connections.is_empty() && connections.iter().all(|watched| *watched),
        "{connections:?}"
    );
}
