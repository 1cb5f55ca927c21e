//! Tests of PostgreSQL only: physical row placement and locking.

use postern_common::database::{Database, PostgresPool};
use sqlx::{AssertSqlSafe, Executor};

use super::*;

#[tokio::test]
async fn claim_updates_are_heap_only() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let pages = "SELECT array_agg((ctid::text::point)[0]::int8 ORDER BY ord) FROM notify_queue";
    let pages = async || {
        sqlx::query_scalar::<_, Vec<i64>>(pages)
            .fetch_one(pool)
            .await
            .expect("no error")
    };
    store.accept(&orders(0, 1_000)).await.expect("no error");
    let before = pages().await;
    assert_eq!(claim(&store, 1_000, ME, &[]).await.len(), 1_000);
    assert_eq!(pages().await, before);
}

#[tokio::test]
async fn release_after_takeover_changes_nothing() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    store.accept(&orders(0, 1)).await.expect("no error");
    let mine = claim(&store, 1, ME, &[]).await.pop().expect("it exists");
    const WAIT: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut other = pool.begin().await.expect("a transaction begins");
    let takes = format!("UPDATE notify_queue SET worker = {OTHER}, fence = fence + 1");
    sqlx::query(AssertSqlSafe(takes))
        .execute(&mut *other)
        .await
        .expect("the row is taken over");
    let result = ended(&mine, ME, ResultKind::Sent, Next::Done);
    let (finishing, releasing) = (store.clone(), store.clone());
    let finish = tokio::spawn(async move { finishing.finish(&[result]).await });
    let release = tokio::spawn(async move {
        releasing
            .release(&[ClaimRef {
                id: mine.id,
                fence: mine.fence,
            }])
            .await
    });
    while sqlx::query_scalar::<_, i64>(WAIT)
        .fetch_one(pool)
        .await
        .expect("the request succeeds")
        < 2
    {
        tokio::task::yield_now().await;
    }
    other.commit().await.expect("the store has it");
    assert_eq!(
        finish
            .await
            .expect("no panic")
            .expect("the request is answered"),
        0
    );
    let released = release.await.expect("no panic");
    released.expect("the request is answered");
    let row = sqlx::query_as::<_, (i64, i32)>("SELECT worker, fence FROM notify_queue");
    assert_eq!(
        row.fetch_one(pool).await.expect("the row exists"),
        (OTHER, 2)
    );
}

/// Returns the plan of a statement on a connection of the queue.
async fn plan(queue: &PostgresPool, name: &str, sql: &str) -> String {
    let mut connection = queue.acquire().await.expect("a connection");
    connection
        .execute(AssertSqlSafe(format!("PREPARE {name} AS {sql}")))
        .await
        .expect("prepared");
    let parameters = (1..10)
        .take_while(|n| sql.contains(&format!("${n}")))
        .count();
    let nothing = vec!["NULL"; parameters].join(", ");
    let explain = format!("EXPLAIN EXECUTE {name} ({nothing})");
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
        .fetch_all(&mut *connection)
        .await
        .expect("the plan is returned");
    lines.join("\n")
}

#[tokio::test]
async fn stale_statistics_do_not_cause_table_scans() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4)
        .await
        .expect("the store opens");
    let Database::Postgres(queue) = &store.connections.queue else {
        panic!("PostgreSQL")
    };
    for sql in [
        "INSERT INTO notify_queue SELECT gen_random_uuid(), 1, n, 0, 0 FROM generate_series(1, 1000) n",
        "INSERT INTO notify_delayed SELECT gen_random_uuid(), n, 1, 0, 0 FROM generate_series(1, 1000) n",
        "DELETE FROM notify_queue",
        "DELETE FROM notify_delayed",
        "ANALYZE notify_queue, notify_delayed",
    ] {
        queue.execute(sql).await.expect("the statement succeeds");
    }
    let sizes = "SELECT relpages > 0 AND reltuples = 0 FROM pg_class WHERE relname = ANY($1)";
    let sizes = sqlx::query_scalar::<_, bool>(sizes).bind(vec!["notify_queue", "notify_delayed"]);
    let sizes = sizes.fetch_all(queue).await.expect("two tables");
    assert_eq!(sizes, [true, true]);
    for (name, sql) in queue::hot_statements(store.syntax) {
        let plan = plan(queue, name, &sql).await;
        let count = |what: &str| plan.matches(what).count();
        assert_eq!(
            count("Join Filter") + count("Seq Scan"),
            0,
            "{name}: {plan}"
        );
        assert_eq!(
            count("Scan using") + count("Scan Backward using"),
            count("Index Cond"),
            "{name}: {plan}"
        );
        assert_eq!(count("Sort Key: notify_"), 0, "{name}: {plan}");
    }
}
