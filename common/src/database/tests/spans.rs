//! Spans of statements, of both databases.

use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::mpsc::Receiver;

use super::FIRST;
use crate::database::{Database, testing};
use crate::trace::{Scope, SpanData, SpanId, Tracer};

/// The ended spans, as name, sorted attributes without those of the server, and parent.
fn ended(spans: &mut Receiver<SpanData>) -> Vec<(String, String, SpanId)> {
    std::iter::from_fn(|| spans.try_recv().ok())
        .map(|span| {
            let attributes = span
                .attributes
                .iter()
                .map(|it| format!("{}={}", it.key, it.value));
            let is_common =
                |it: &String| !it.starts_with("server.") && !it.starts_with("db.namespace");
            let mut attributes: Vec<String> = attributes.filter(is_common).collect();
            attributes.sort();
            (
                span.name.into_owned(),
                attributes.join(" "),
                span.parent_span_id,
            )
        })
        .collect()
}

/// Runs statements within the scope of a sampled request. Returns their spans.
async fn spans_of(work: impl Future<Output = ()>) -> Vec<(String, String)> {
    let (tracer, mut spans) = Tracer::for_test(1.0);
    let (scope, request) = Scope::of_request(Some(&tracer), &Arc::from("r"), &HeaderMap::new());
    let parent = request.as_ref().expect("sampled").context().span_id();
    scope.run(work).await;
    let found = ended(&mut spans).into_iter().map(|(name, attributes, of)| {
        assert_eq!(of, parent, "{name}");
        (name, attributes)
    });
    found.collect()
}

fn system(database: &Database) -> &'static str {
    match database {
        Database::Postgres(_) => "postgresql",
        Database::Sqlite(_) => "sqlite",
    }
}

#[tokio::test]
async fn statements_of_a_sampled_request_have_spans() {
    for test in testing::both().await {
        let database = test.database.clone();
        database.migrate(&FIRST).await.expect("migrated");
        let spans = spans_of(async {
            for outcome in ["written", "rejected"] {
                let written = with_dialect!(database.writer(), pool => {
                    let insert = sqlx::query("INSERT INTO first_note (id, text) VALUES ($1, $2)");
                    insert.bind(1_i64).bind("hidden").execute(pool).await.map(drop)
                });
                assert_eq!(written.is_ok(), outcome == "written");
            }
            let read = with_dialect!(database.readers(), pool => {
                let select = sqlx::query("SELECT id FROM first_note WHERE text = $1");
                select.bind("other").fetch_optional(pool).await.map(|row| row.is_some())
            });
            assert!(!read.expect("read"));
        });
        let system = system(&test.database);
        let code = match test.database {
            Database::Postgres(_) => "23505",
            // SQLITE_CONSTRAINT_PRIMARYKEY
            Database::Sqlite(_) => "1555",
        };
        let insert = format!(
            "db.collection.name=first_note db.operation.name=INSERT db.query.summary=INSERT first_note \
             db.system.name={system}"
        );
        let rejected = insert.replace(
            "db.system.name",
            &format!("db.response.status_code={code} db.system.name"),
        );
        let select = insert.replace("INSERT", "SELECT");
        let expected = [
            ("INSERT first_note", insert),
            ("INSERT first_note", format!("{rejected} error.type={code}")),
            ("SELECT first_note", select),
        ];
        let expected = expected.map(|(name, attributes)| (name.to_owned(), attributes));
        assert_eq!(spans.await, expected);
    }
}

#[tokio::test]
async fn statements_of_a_sqlite_transaction_have_spans() {
    let test = testing::sqlite().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let Database::Sqlite(sqlite) = &test.database else {
        panic!("SQLite")
    };
    let spans = spans_of(async {
        let mut transaction = sqlite.begin().await.expect("begun");
        let insert = sqlx::query("INSERT INTO first_note (id, text) VALUES (1, 'a')");
        insert.execute(&mut *transaction).await.expect("inserted");
        transaction.commit().await.expect("committed");
    });
    let spans = spans.await;
    let names: Vec<&str> = spans.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["BEGIN", "INSERT first_note", "COMMIT"]);
    let stored = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM first_note");
    assert_eq!(stored.fetch_one(&sqlite.readers).await.expect("read"), 1);
}

#[tokio::test]
async fn cancelled_statement_has_failed() {
    let test = testing::postgres().await;
    let spans = spans_of(async {
        let Database::Postgres(pool) = &test.database else {
            panic!("PostgreSQL")
        };
        let mut sleep = Box::pin(sqlx::query("SELECT pg_sleep(60)").execute(pool));
        // The statement is in progress when a second connection sees it.
        let is_running = async {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(%' AND state = 'active'";
            let mut connection = pool.acquire().await.expect("a connection");
            while sqlx::query_scalar::<_, i64>(sql)
                .fetch_one(&mut *connection)
                .await
                .expect("read")
                == 0
            {}
            connection.release();
        };
        tokio::select! {
            _ = &mut sleep => panic!("the statement has ended"),
            () = is_running => {}
        }
    });
    let [(name, attributes)] = &spans.await[..] else {
        panic!("one span")
    };
    assert_eq!(name, "SELECT");
    assert!(attributes.ends_with("error.type=cancelled"), "{attributes}");
}

#[tokio::test]
async fn statement_of_no_sampled_trace_has_no_span() {
    let (tracer, mut spans) = Tracer::for_test(0.0);
    let (scope, request) = Scope::of_request(Some(&tracer), &Arc::from("r"), &HeaderMap::new());
    assert!(request.is_none(), "not sampled");
    for test in testing::both().await {
        test.database.ping().await.expect("no scope");
        let ping = scope.clone().run(test.database.ping());
        ping.await.expect("a scope that is not sampled");
    }
    assert!(spans.try_recv().is_err());
}
