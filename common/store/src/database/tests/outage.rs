//! PostgreSQL that is unresponsive, read-only or gone: every statement ends, and no failure
//! outlives its cause.

use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};
use tokio::time::timeout;

use super::super::testing::{Relay, TestDatabase, postgres};
use super::*;
use postern_core::dependency::Dependencies;
use postern_core::health::Health;

/// Upper bound for a statement on a busy machine; without a deadline it would take minutes.
const MAX_STATEMENT_TIME: Duration = Duration::from_secs(20);

pub(super) async fn opened(url: &str, options: DatabaseOptions) -> PostgresPool {
    match Database::open(url, options).await {
        Ok(Database::Postgres(pool)) => pool,
        other => panic!("{other:?}"),
    }
}

/// Opens a store through a relay, with short timeouts.
async fn behind_a_relay(test: &TestDatabase) -> (Relay, PostgresPool) {
    let (relay, url) = Relay::start(&test.url).await;
    let options = DatabaseOptions {
        max_connections: 3,
        acquire_timeout: Duration::from_secs(1),
        statement_timeout: Duration::from_secs(1),
        ..DatabaseOptions::new("outage")
    };
    (relay, opened(&url, options).await)
}

async fn one(pool: &PostgresPool) -> Result<i32, sqlx::Error> {
    let statement = sqlx::query_scalar("SELECT 1").fetch_one(pool);
    timeout(MAX_STATEMENT_TIME, statement)
        .await
        .expect("a statement ends by itself")
}

/// The ways to run a statement. Each has a deadline of its own in the pool.
const STATEMENT_KINDS: [&str; 5] = ["execute", "fetch", "prepare", "begin", "commit"];

/// Runs a statement on a connection that has just become silent. Returns what is wrong with its
/// end.
async fn silent_statement(test: &TestDatabase, kind: &str) -> Option<String> {
    let (relay, pool) = behind_a_relay(test).await;
    let statement = async {
        let transaction = if kind == "commit" {
            Some(pool.begin().await?)
        } else {
            pool.execute("SELECT 1").await?;
            None
        };
        relay.stop_forwarding();
        match (kind, transaction) {
            (_, Some(transaction)) => transaction.commit().await,
            ("execute", None) => pool.execute("SELECT 1").await.map(drop),
            ("fetch", None) => pool.fetch_optional("SELECT 1").await.map(drop),
            ("prepare", None) => pool.prepare("SELECT 1".into_sql_str()).await.map(drop),
            (_, None) => pool.begin().await.map(drop),
        }
    };
    match timeout(MAX_STATEMENT_TIME, statement).await {
        Err(_) => Some(format!("{kind}: no deadline")),
        Ok(Ok(())) => Some(format!("{kind}: succeeded")),
        Ok(Err(error)) if !is_unavailable(&error) => Some(format!("{kind}: {error}")),
        Ok(Err(_)) if pool.idle_connections() > 0 => Some(format!("{kind}: connection kept")),
        Ok(Err(_)) => None,
    }
}

#[tokio::test]
async fn every_kind_of_statement_has_a_deadline() {
    let test = postgres().await;
    let ends = join_all(STATEMENT_KINDS.map(|kind| silent_statement(&test, kind))).await;
    let wrong: Vec<String> = ends.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[tokio::test]
async fn wait_for_a_connection_has_a_deadline() {
    let test = postgres().await;
    let (_relay, pool) = behind_a_relay(&test).await;
    let held = join_all((0..3).map(|_| pool.acquire())).await;
    assert!(held.iter().all(Result::is_ok));
    let error = one(&pool).await.expect_err("all connections are in use");
    assert!(
        matches!(error, sqlx::Error::PoolTimedOut) && is_unavailable(&error),
        "{error}"
    );
}

#[tokio::test]
async fn readiness_check_has_a_deadline_of_its_own() {
    let test = postgres().await;
    let (relay, url) = Relay::start(&test.url).await;
    let options = DatabaseOptions {
        statement_timeout: Duration::from_secs(600),
        ..DatabaseOptions::new("outage")
    };
    let database = Database::open(&url, options).await.expect("opens");
    database.migrate(&FIRST).await.expect("migrated");
    database.verify_writable(&FIRST).await.expect("ready");
    relay.stop_forwarding();
    let check = timeout(MAX_STATEMENT_TIME, database.verify_writable(&FIRST)).await;
    rejected(check.expect("the check ends by itself"), 75);
    let ping = timeout(MAX_STATEMENT_TIME, database.ping()).await;
    ping.expect("it ends by itself").expect_err("no answer");
}

#[tokio::test]
async fn sqlstate_decides_whether_connections_are_discarded() {
    let test = postgres().await;
    let pool = test.pool();
    let mut wrong = Vec::new();
    for (sqlstate, is_discarded, may_succeed_later) in [
        ("25006", true, true),
        ("57P01", true, true),
        ("57P02", true, true),
        ("57P03", true, true),
        ("08006", true, true),
        ("26000", true, false),
        ("42P05", true, false),
        ("0A000", true, false),
        ("40001", false, true),
        ("53100", false, true),
        ("55P03", false, true),
        ("57014", false, true),
        ("23505", false, false),
        ("22P02", false, false),
    ] {
        let sleep = || pool.execute("SELECT pg_sleep(0.05)");
        let (one, other) = tokio::join!(sleep(), sleep());
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(pool.idle_connections(), 2);
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END $$");
        let error = pool
            .execute(AssertSqlSafe(raise))
            .await
            .expect_err(sqlstate);
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some(sqlstate));
        let expected = (if is_discarded { 0 } else { 2 }, may_succeed_later);
        let found = (pool.idle_connections(), is_unavailable(&error));
        if found != expected {
            wrong.push((sqlstate, found));
        }
    }
    assert_eq!(wrong, [], "idle connections and availability");
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
    let ended = timeout(MAX_STATEMENT_TIME, pool.within_deadline(insert)).await;
    let error = ended
        .expect("a transaction ends by itself")
        .expect_err("no answer");
    assert!(is_unavailable(&error), "{error}");
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
    let pool = test.pool();
    let slow = sqlx::query_scalar::<_, i32>("SELECT 7 FROM pg_sleep(5)").fetch_one(pool);
    timeout(Duration::from_millis(200), slow)
        .await
        .expect_err("it is cut off");
    assert_eq!(pool.idle_connections(), 0, "its connection is closed");
    assert_eq!(one(pool).await.expect("answers"), 1);
}

#[tokio::test]
async fn cancelled_statement_makes_the_pool_check_other_connections() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    let sleep = || pool.execute("SELECT pg_sleep(0.2)");
    let (a, b, c) = tokio::join!(sleep(), sleep(), sleep());
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    relay.stop_forwarding();
    let statement = one(&pool);
    timeout(Duration::from_millis(50), statement)
        .await
        .expect_err("no answer");
    relay.recover();
    one(&pool)
        .await
        .expect("the silent connections are not used");
}

#[tokio::test]
async fn readiness_probe_repeats_on_a_new_session_that_accepts_writes() {
    let test = postgres().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let pool = test.pool();
    let run = async |sql: &str| {
        let ended = pool.execute(AssertSqlSafe(sql.to_owned())).await;
        ended.expect("executed");
    };
    let set = "SET default_transaction_read_only = on";
    run(set).await;
    let probe = || test.database.verify_writable(&FIRST);
    probe().await.expect("the server accepts writes");
    let name = test.url.rsplit_once('/').expect("a path").1;
    run(&format!("ALTER DATABASE {name} {set}")).await;
    run(set).await;
    let reason = rejected(probe().await, 75);
    assert!(reason.contains("read-only"), "{reason}");
    let reason = rejected(open(&test.url).await, 69);
    let is_named = reason.contains("is read-only and accepts no writes");
    assert!(is_named, "{reason}");
}

#[tokio::test]
async fn close_does_not_wait_for_connections_in_use() {
    let test = postgres().await;
    let (relay, pool) = behind_a_relay(&test).await;
    let held = pool.acquire().await.expect("a connection");
    one(&pool).await.expect("another is idle");
    relay.stop_forwarding();
    timeout(MAX_STATEMENT_TIME, pool.close())
        .await
        .expect("it is closed");
    held.release();
    let idle = pool.idle_connections();
    assert_eq!(idle, 0, "a connection released later is closed");
    assert!(matches!(one(&pool).await, Err(sqlx::Error::PoolClosed)));
}

#[tokio::test]
async fn server_ends_runaway_statements_and_lost_sessions() {
    let test = postgres().await;
    let pool = test.pool();
    for (setting, expected) in [
        ("statement_timeout", "30s"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("tcp_keepalives_idle", "15"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_keepalives_count", "3"),
        ("tcp_user_timeout", "30000"),
    ] {
        let show = AssertSqlSafe(format!("SHOW {setting}"));
        let shown: String = sqlx::query_scalar(show)
            .fetch_one(pool)
            .await
            .expect("answers");
        assert_eq!(shown, expected, "{setting}");
    }
}

#[tokio::test]
async fn slow_statement_is_named_also_if_its_caller_gives_up() {
    let test = postgres().await;
    let (health, registry) = (Health::new(), prometheus::Registry::new());
    let dependencies = Dependencies::new(&health, &registry).expect("registered");
    let statements = StatementHealth::new(&test.database, &dependencies, &registry);
    let pool = test.pool();
    let pool = pool.with_deadline(Duration::from_secs(5));
    let slow = || pool.execute("SELECT pg_sleep(2.2) FROM pg_class LIMIT 1");
    slow().await.expect("it has an answer");
    statements.check().await;
    assert!(health.degraded().is_empty(), "once may be an accident");
    let limit = Duration::from_millis(2100);
    let given_up = timeout(limit, slow()).await;
    given_up.expect_err("no answer in time");
    statements.check().await;
    let reason = health.degraded()["statements"].clone();
    assert!(reason.starts_with("SELECT pg_class fails for "), "{reason}");
    assert!(reason.contains(": it took 2."), "{reason}");
    let fast = pool.execute("SELECT pg_sleep(0) FROM pg_class LIMIT 1");
    fast.await.expect("answers");
    statements.check().await;
    assert!(health.degraded().is_empty(), "it is over");
}
