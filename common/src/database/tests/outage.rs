//! PostgreSQL that is silent, read-only or gone: every statement ends, and nothing of it outlives
//! the cause.

use std::time::Instant;

use sqlx::Executor;

use super::super::testing::{Relay, TestDatabase, postgres};
use super::*;

/// A machine may be busy; what has no deadline takes minutes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store behind a relay, with short times.
async fn behind_a_relay(test: &TestDatabase) -> (Relay, PostgresPool) {
    let (relay, url) = Relay::start(&test.url).await;
    let options = Options {
        max_connections: 3,
        acquire_timeout: Duration::from_secs(1),
        deadline: Duration::from_secs(1),
        ..Options::new("outage")
    };
    let Ok(Database::Postgres(pool)) = Database::open(&url, options).await else {
        panic!("PostgreSQL")
    };
    (relay, pool)
}

async fn one(pool: &PostgresPool) -> Result<i32, sqlx::Error> {
    let asked = Instant::now();
    let answer = sqlx::query_scalar("SELECT 1").fetch_one(pool).await;
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
    answer
}

#[tokio::test]
async fn silent_connections_are_discarded_and_replaced() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    // Three connections that are used at once are idle together.
    let sleep = || pool.execute("SELECT pg_sleep(0.2)");
    let (a, b, c) = tokio::join!(sleep(), sleep(), sleep());
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(pool.idle_connections(), 3);
    relay.fall_silent();
    for _ in 0..2 {
        let error = one(&pool).await.expect_err("nobody answers");
        assert!(is_unavailable(&error), "{error}");
    }
    relay.recover();
    one(&pool)
        .await
        .expect("a new connection; those from before are silent for good");
    let answers = tokio::join!(one(&pool), one(&pool), one(&pool));
    assert!(
        answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok(),
        "{answers:?}"
    );
}

#[tokio::test]
async fn a_transaction_without_an_answer_ends_and_is_closed() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    pool.execute("CREATE TABLE t (id int)")
        .await
        .expect("created");
    let insert = async {
        let mut transaction = pool.begin().await?;
        transaction.execute("INSERT INTO t VALUES (1)").await?;
        relay.fall_silent();
        transaction.execute("INSERT INTO t VALUES (2)").await?;
        transaction.commit().await
    };
    let asked = Instant::now();
    let error = pool
        .within_deadline(insert)
        .await
        .expect_err("nobody answers");
    assert!(
        asked.elapsed() < PATIENCE && is_unavailable(&error),
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
async fn a_request_that_is_cut_off_does_not_leave_its_answer_to_the_next() {
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
async fn a_read_only_session_is_discarded_with_its_first_refusal() {
    let test = postgres().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    test.database
        .still_fits(&FIRST)
        .await
        .expect("takes writes");
    // As a demoted server's session: it goes on answering what only reads.
    pool.execute("SET default_transaction_read_only = on")
        .await
        .expect("set");
    one(pool).await.expect("reads go on");
    let exit = test
        .database
        .still_fits(&FIRST)
        .await
        .expect_err("readiness proves a write");
    assert!(
        exit.is_for_now() && exit.message().contains("read-only"),
        "{exit}"
    );
    let insert = "INSERT INTO first_note (id, text) VALUES (1, 'a')";
    sqlx::query(insert)
        .execute(pool)
        .await
        .expect("another session");
    test.database.still_fits(&FIRST).await.expect("ready again");
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_not_connected_to() {
    let test = postgres().await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let name = test.url.rsplit_once('/').expect("a path").1;
    let set = sqlx::AssertSqlSafe(format!(
        "ALTER DATABASE {name} SET default_transaction_read_only = on"
    ));
    pool.execute(set).await.expect("set");
    let exit = Database::open(&test.url, Options::new("test"))
        .await
        .expect_err("read-only");
    assert!(
        exit.status() == 69 && exit.message().contains("is read-only and takes no writes"),
        "{exit}"
    );
    let any = format!("{}?target_session_attrs=any", test.url);
    Database::open(&any, Options::new("test"))
        .await
        .expect("whoever wants that");
}

#[tokio::test]
async fn the_first_host_that_takes_writes_is_connected_to() {
    let primary = postgres().await;
    let (silent, _) = Relay::start(&primary.url).await;
    silent.fall_silent();
    let url = url::Url::parse(&primary.url).expect("a URL");
    let port = url.port().expect("a port");
    // A port that nobody listens on, a silent server, and at last one that answers.
    let hosts = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:{port}", silent.port());
    let several = primary.url.replace(&format!("127.0.0.1:{port}"), &hosts);
    let database = Database::open(&several, Options::new("test"))
        .await
        .expect("the third answers");
    database.ping().await.expect("answers");
    assert!(database.label().contains(&hosts), "{}", database.label());
}

#[tokio::test]
async fn closing_does_not_wait_for_what_is_in_use() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    let held = pool.acquire().await.expect("a connection");
    one(&pool).await.expect("another is idle");
    relay.fall_silent();
    tokio::time::timeout(PATIENCE, pool.close())
        .await
        .expect("it is closed");
    held.release();
    assert_eq!(
        pool.idle_connections(),
        0,
        "what comes back later is closed"
    );
    assert!(matches!(one(&pool).await, Err(sqlx::Error::PoolClosed)));
}

#[tokio::test]
async fn the_kernel_watches_connections_from_both_ends() {
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
