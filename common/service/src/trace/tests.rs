use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use postern_core::Clock;
use postern_core::config::{Env, parse};
use postern_core::trace::{Scope, Tracer, send};
use prometheus::IntCounter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{SpanExportTask, TracingConfig};

fn read(text: &str, env: &Env) -> Result<Option<TracingConfig>, String> {
    parse("x.toml", text, |root| {
        Some(TracingConfig::read_optional(root, env))
    })
    .map_err(|exit| exit.message().to_owned())
}

fn tracer(text: &str, env: &Env) -> (Tracer, SpanExportTask, IntCounter) {
    let config = read(text, env).expect("valid").expect("a table");
    assert!(!format!("{config:?}").contains("collector"));
    let dropped = IntCounter::new("dropped", "Dropped").expect("a name");
    let started = super::tracer(Some(&config), "test", &Clock::system(), &dropped);
    let (tracer, task) = started.expect("an exporter");
    (tracer.expect("a tracer"), task.expect("a task"), dropped)
}

#[tokio::test]
async fn spans_that_no_collector_takes_are_counted() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closed = silent.local_addr().expect("an address");
    drop(silent);
    let text = format!("[tracing]\nendpoint = 'http://{closed}'\nsample_ratio = 1.0\n");
    let (tracer, task, dropped) = tracer(&text, &Env::default());
    let id = Arc::from("r");
    drop(Scope::of_request(Some(&tracer), &id, &HeaderMap::new()));
    let stop = CancellationToken::new();
    stop.cancel();
    task.run(stop).await;
    assert_eq!(dropped.get(), 1);
}

#[tokio::test]
async fn export_request_has_headers_and_no_secret_of_a_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let env = Env::from([("TOKEN", "Bearer collector")]);
    let text = format!(
        "[tracing]\nendpoint = 'http://{address}'\nsample_ratio = 1.0\nheaders = {{ authorization = 'TOKEN' }}\n"
    );
    let (tracer, task, dropped) = tracer(&text, &env);
    let (scope, span) = Scope::of_request(Some(&tracer), &Arc::from("r"), &HeaderMap::new());
    let url = format!("http://{address}/call/hidden-path?token=hidden-query");
    let call = scope.run(async move {
        let call = reqwest::Client::new().get(url).bearer_auth("hidden-token");
        send(call.timeout(Duration::from_millis(300))).await
    });
    assert!(call.await.expect_err("no answer").is_timeout());
    drop(span);
    let stop = CancellationToken::new();
    stop.cancel();
    let exported = tokio::spawn(task.run(stop));
    let (mut called, _) = listener.accept().await.expect("the call");
    let mut head = vec![0; 4096];
    let length = called.read(&mut head).await.expect("a head");
    let head = String::from_utf8_lossy(&head[..length]).into_owned();
    for header in ["x-request-id: r\r\n", "traceparent: 00-"] {
        assert!(head.contains(header), "{head}");
    }
    let (mut export, _) = listener.accept().await.expect("the export");
    let mut sent = Vec::new();
    let mut chunk = [0; 4096];
    while !String::from_utf8_lossy(&sent).contains("error.type") {
        let length = export.read(&mut chunk).await.expect("bytes");
        assert!(length > 0, "{}", String::from_utf8_lossy(&sent));
        sent.extend_from_slice(&chunk[..length]);
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    export.write_all(answer).await.expect("written");
    exported.await.expect("ends");
    let sent = String::from_utf8_lossy(&sent);
    assert!(sent.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("Bearer collector"), "{sent}");
    assert!(sent.contains("timeout"), "{sent}");
    assert!(!sent.contains("hidden"), "{sent}");
    assert_eq!(dropped.get(), 0);
}

#[test]
fn invalid_tracing_table_is_reported() {
    let message = |text: &str| read(text, &Env::default()).expect_err("mistakes");
    for (text, reason) in [
        ("[tracing]\n", "tracing.endpoint: is required"),
        (
            "[tracing]\nendpoint = 'ftp://x'\n",
            "must be an absolute http or https URL",
        ),
        ("[tracing]\nendpoint = 'http://x/?a=b'\n", "without a query"),
        (
            "[tracing]\nendpoint = 'http://x'\nsample_ratio = 1.5\n",
            "tracing.sample_ratio",
        ),
        (
            "[tracing]\nendpoint = 'http://x'\nheaders = { authorization = 'UNSET' }\n",
            "the variable UNSET is not set",
        ),
    ] {
        let message = message(text);
        assert!(message.contains(reason), "{message}");
    }
}
