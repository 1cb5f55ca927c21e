//! Spans of statements.

use std::sync::Arc;

use http::HeaderMap;
use prometheus::IntCounter;
use tokio::sync::mpsc::Receiver;

use super::FIRST;
use crate::database::{Database, testing};
use postern_core::Clock;
use postern_core::trace::{Scope, SpanData, SpanId, Tracer};

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

fn traced(sample_ratio: f64) -> (Tracer, Receiver<SpanData>) {
    let dropped = IntCounter::new("dropped", "Dropped").expect("a name");
    Tracer::new(sample_ratio, &Clock::system(), dropped)
}

/// Runs statements within the scope of a sampled request. Returns their spans.
async fn spans_of(work: impl Future<Output = ()>) -> Vec<(String, String)> {
    let (tracer, mut spans) = traced(1.0);
    let (scope, request) = Scope::of_request(Some(&tracer), &Arc::from("r"), &HeaderMap::new());
    let parent = request.as_ref().expect("sampled").context().span_id();
    scope.run(work).await;
    let found = ended(&mut spans).into_iter().map(|(name, attributes, of)| {
        assert_eq!(of, parent, "{name}");
        (name, attributes)
    });
    found.collect()
}

#[tokio::test]
async fn statements_of_a_sampled_request_have_spans() {
    let test = testing::postgres().await;
    test.database.migrate(&FIRST).await.expect("migrated");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let spans = spans_of(async {
        for outcome in ["written", "rejected"] {
            let insert = sqlx::query("INSERT INTO first_note (id, text) VALUES ($1, $2)");
            let written = insert.bind(1_i64).bind("hidden").execute(pool).await;
            assert_eq!(written.is_ok(), outcome == "written");
        }
        let select = sqlx::query("SELECT id FROM first_note WHERE text = $1");
        let read = select.bind("other").fetch_optional(pool).await;
        assert!(read.expect("read").is_none());
    });
    let expected = [
        (
            "INSERT first_note",
            "db.query.summary=INSERT first_note db.system.name=postgresql",
        ),
        (
            "INSERT first_note",
            "db.query.summary=INSERT first_note db.response.status_code=23505 db.system.name=postgresql \
             error.type=23505",
        ),
        (
            "SELECT first_note",
            "db.query.summary=SELECT first_note db.system.name=postgresql",
        ),
    ];
    let expected = expected.map(|(name, attributes)| (name.to_owned(), attributes.to_owned()));
    assert_eq!(spans.await, expected);
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
    let (tracer, mut spans) = traced(0.0);
    let (scope, request) = Scope::of_request(Some(&tracer), &Arc::from("r"), &HeaderMap::new());
    assert!(request.is_none(), "not sampled");
    let test = testing::postgres().await;
    test.database.ping().await.expect("no scope");
    let ping = scope.run(test.database.ping());
    ping.await.expect("a scope that is not sampled");
    assert!(spans.try_recv().is_err());
}
