//! Tests of PostgreSQL only: physical row placement and locking.

use postern_store::database::{Database, PostgresPool};
use sqlx::{AssertSqlSafe, Executor};

use super::*;
use crate::dispatch::ChannelFlow;
use crate::principal::Principal;
use crate::status::list::{ListAccess, ListFilter, ListReader};
use crate::status::view::{NotificationStatus, StatusView};
use crate::testing::postgres_store;

#[tokio::test]
async fn claim_updates_are_heap_only() {
    let (store, test) = postgres_store(4).await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let pages = "SELECT array_agg((ctid::text::point)[0]::int8 ORDER BY ord) FROM notify_queue";
    let pages = async || ok(sqlx::query_scalar::<_, Vec<i64>>(pages).fetch_one(pool)).await;
    ok(store.accept(&orders(0, 1_000))).await;
    let before = pages().await;
    assert_eq!(claim(&store, 1_000, ME, &[]).await.len(), 1_000);
    assert_eq!(pages().await, before);
}

#[tokio::test]
async fn release_after_takeover_changes_nothing() {
    let (store, test) = postgres_store(4).await;
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    ok(store.accept(&orders(0, 1))).await;
    let mine = claim(&store, 1, ME, &[]).await.pop().expect("it exists");
    const WAIT: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut other = pool.begin().await.expect("a transaction begins");
    let takes = format!("UPDATE notify_queue SET worker = {OTHER}, fence = fence + 1");
    ok(other.execute(AssertSqlSafe(takes))).await;
    let result = ended(&mine, ME, ResultKind::Sent, Next::Done);
    let (finishing, releasing) = (store.clone(), store.clone());
    let finish = tokio::spawn(async move { finishing.finish(&[result]).await });
    let release = tokio::spawn(async move { releasing.release(&[(mine.id, mine.fence)]).await });
    while ok(sqlx::query_scalar::<_, i64>(WAIT).fetch_one(pool)).await < 2 {
        tokio::task::yield_now().await;
    }
    other.commit().await.expect("the store has it");
    assert_eq!(ok(finish).await.expect("answered"), 0);
    ok(release).await.expect("answered");
    let row = sqlx::query_as::<_, (i64, i32)>("SELECT worker, fence FROM notify_queue");
    assert_eq!(ok(row.fetch_one(pool)).await, (OTHER, 2));
}

/// Returns the plan of a statement on a connection of the queue.
async fn plan(queue: &PostgresPool, name: &str, sql: &str) -> String {
    let mut connection = queue.acquire().await.expect("a connection");
    let prepare = AssertSqlSafe(format!("PREPARE {name} AS {sql}"));
    ok(connection.execute(prepare)).await;
    let parameters = (1..10).take_while(|n| sql.contains(&format!("${n}")));
    let parameters = parameters.count();
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
    let (store, _test) = postgres_store(4).await;
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
        let all_rows = count("Join Filter") + count("Seq Scan");
        assert_eq!(all_rows, 0, "{name}: {plan}");
        let scans = count("Scan using") + count("Scan Backward using");
        assert_eq!(scans, count("Index Cond"), "{name}: {plan}");
        assert_eq!(count("Sort Key: notify_"), 0, "{name}: {plan}");
    }
}

#[tokio::test]
async fn page_of_a_caller_does_not_depend_on_others_rows() {
    let (store, _test) = postgres_store(1).await;
    let Database::Postgres(pool) = &store.connections.urgent else {
        panic!("PostgreSQL")
    };
    let executed = async || {
        let sql = "SELECT coalesce(sum(generic_plans + custom_plans), 0)::int8 FROM pg_prepared_statements
            WHERE statement NOT LIKE '%pg_prepared%'";
        let executed = sqlx::query_scalar::<_, i64>(sql).fetch_one(pool);
        executed.await.expect("a number")
    };
    let caller = |creator: &str, actor: Option<&str>| Principal {
        creator: creator.into(),
        actor: actor.map(str::to_owned),
    };
    let service = caller("service:other", None);
    let user = caller("user:i|eve", Some("eve"));
    let mut own = orders(9_000, 2);
    own[0].record.creator = service.creator.to_string();
    own[1].record.creator = user.creator.to_string();
    ok(store.accept(&own)).await;
    for foreign in [0, 100, 1_500] {
        let rows = orders(foreign, foreign);
        ok(store.accept(&rows)).await;
        pool.execute("ANALYZE").await.expect("analyzed");
        for (principal, recipient, status, count) in [
            (&service, None, None, 1),
            (&service, Some("ada@example.com"), None, 1),
            (&service, None, Some(NotificationStatus::Sent), 0),
            (&user, None, None, 1),
            (&user, Some("ada@example.com"), None, 1),
            (&user, Some("eve"), None, 0),
        ] {
            let reader = ListReader {
                store: &store,
                access: ListAccess::Own(principal.clone()),
                filter: ListFilter {
                    recipient: recipient.map(str::to_owned),
                    status,
                    ..ListFilter::default()
                },
            };
            let before = executed().await;
            let view = |snapshot: &NotificationSnapshot| {
                StatusView::of(snapshot, NOW, |_| ChannelFlow::default())
            };
            let page = reader.page(None, 1, view).await.expect("a page");
            let case = format!("{foreign} {principal:?} {recipient:?}");
            let found = (page.notifications.len(), page.next);
            assert_eq!(found, (count, None), "{case}");
            let statements = executed().await - before;
            assert!((1..=2).contains(&statements), "{statements} {case}");
        }
    }
    // The primary key would contain the rows of others.
    for (name, recipient) in [("own", None), ("own_to", Some(1))] {
        let query = ListQuery {
            creator: Some("service:other".to_owned()),
            recipient,
            ..ListQuery::default()
        };
        let plan = plan(pool, name, &read::list_sql(&query)).await;
        assert!(plan.contains("creator") && !plan.contains("pkey"), "{plan}");
    }
}
