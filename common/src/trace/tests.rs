use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{SpanKind, TraceId};
use prometheus::IntCounter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    DeliveryOrigin, Scope, SpanContext, SpanData, SpanExportTask, Tracer, TracingConfig, context,
    scope,
};
use crate::clock::Clock;
use crate::config::{Env, parse};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn read(text: &str, env: &Env) -> Result<Option<TracingConfig>, String> {
    parse("x.toml", text, |root| {
        Some(TracingConfig::read_optional(root, env))
    })
    .map_err(|exit| exit.message().to_owned())
}

fn tracer(endpoint: &str, ratio: f64) -> (Tracer, SpanExportTask, IntCounter) {
    let text = format!("[tracing]\nendpoint = '{endpoint}'\nsample_ratio = {ratio:?}\n");
    let config = read(&text, &Env::default())
        .expect("valid")
        .expect("a table");
    let dropped = IntCounter::new("dropped", "Dropped").expect("a name");
    let (tracer, task) =
        Tracer::new(&config, "test", &Clock::system(), dropped.clone()).expect("an exporter");
    (tracer, task, dropped)
}

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn is_sampled(tracer: &Tracer, fields: &[(&'static str, &'static str)]) -> bool {
    let (scope, span) = Scope::of_request(Some(tracer), &Arc::from("r"), &headers(fields));
    let flag = scope.traceparent().expect("a trace").ends_with("-01");
    assert_eq!(flag, span.is_some());
    flag
}

#[tokio::test]
async fn sampling_decision_of_the_caller_is_kept() {
    let (never, ..) = tracer("http://127.0.0.1:9", 0.0);
    let (always, ..) = tracer("http://127.0.0.1:9", 1.0);
    assert!(is_sampled(&never, &[("traceparent", PARENT)]));
    assert!(!is_sampled(&always, &[("traceparent", UNSAMPLED)]));
    assert!(!is_sampled(&never, &[]));
    assert!(is_sampled(&always, &[]));
    let half = tracer("http://127.0.0.1:9", 0.5).0;
    let sampled = (1..=1000_u64)
        .map(|n| TraceId::from(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
        .filter(|trace_id| half.samples(*trace_id))
        .count();
    assert!((300..700).contains(&sampled), "{sampled}");
}

#[tokio::test]
async fn malformed_traceparent_is_replaced() {
    let (tracer, ..) = tracer("http://127.0.0.1:9", 1.0);
    let long = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x";
    for bad in [
        "",
        "00",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        long,
    ] {
        let given = headers(&[("traceparent", bad), ("tracestate", "a=1")]);
        let (scope, _) = Scope::of_request(Some(&tracer), &Arc::from("r"), &given);
        let mut sent = given.clone();
        scope.inject(&mut sent);
        let parent = sent["traceparent"].to_str().expect("text");
        assert!(!parent.contains("0af7651916cd"), "{bad}: {parent}");
        assert!(!sent.contains_key("tracestate"), "{bad}");
        // Without a tracer nothing is invented.
        let (scope, _) = Scope::of_request(None, &Arc::from("r"), &given);
        scope.inject(&mut sent);
        assert!(!sent.contains_key("traceparent"), "{bad}");
        assert_eq!(sent["x-request-id"], "r");
    }
    let twice = headers(&[("traceparent", PARENT), ("traceparent", UNSAMPLED)]);
    assert!(!context::extract(&twice).is_valid());
}

#[tokio::test]
async fn trace_context_is_passed_on() {
    let given = headers(&[
        ("traceparent", PARENT),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
    ]);
    let (scope, _) = Scope::of_request(None, &Arc::from("r"), &given);
    let mut sent = HeaderMap::new();
    scope.inject(&mut sent);
    assert_eq!(sent["traceparent"], PARENT);
    assert_eq!(sent["tracestate"], "a=1,b=2");
    let (tracer, ..) = tracer("http://127.0.0.1:9", 0.0);
    let (scope, _) = Scope::of_request(Some(&tracer), &Arc::from("r"), &given);
    scope.inject(&mut sent);
    let parent = sent["traceparent"].to_str().expect("text");
    assert!(
        parent.starts_with(&PARENT[..36]) && parent != PARENT,
        "{parent}"
    );
    assert_eq!(sent["tracestate"], "a=1,b=2");
}

#[tokio::test]
async fn spawned_task_keeps_the_scope() {
    let (scope, _) = Scope::of_request(None, &Arc::from("r-7"), &HeaderMap::new());
    let id = || Scope::current().and_then(|scope| scope.request_id().map(str::to_owned));
    let inner = scope.run(async { super::spawn(async move { id() }).await.expect("ends") });
    assert_eq!(inner.await.as_deref(), Some("r-7"));
    assert!(id().is_none());
}

#[tokio::test]
async fn delivery_is_linked_to_its_acceptance() {
    let (tracer, ..) = tracer("http://127.0.0.1:9", 0.0);
    let origin = DeliveryOrigin {
        notification_id: "n-1",
        request_id: Some("r-1"),
        traceparent: Some(PARENT),
    };
    let (scope, span) = Scope::of_delivery(Some(&tracer), &origin);
    let mut fields = String::new();
    let write = |name: &'static str, value: &dyn std::fmt::Display| {
        fields += &format!("{name}={value} ");
        Ok(())
    };
    scope.log_fields(write).expect("written");
    assert_eq!(
        fields,
        "request_id=r-1 notification_id=n-1 trace_id=0af7651916cd43dd8448eb211c80319c "
    );
    let span = format!("{:?}", span.expect("sampled"));
    assert!(span.contains("Link") && span.contains("Consumer"), "{span}");
    let without = DeliveryOrigin {
        traceparent: Some("nonsense"),
        ..origin
    };
    assert!(Scope::of_delivery(Some(&tracer), &without).1.is_none());
}

/// Starts requests, and returns their scopes and the contexts of their spans.
fn requests(tracer: &Tracer, count: usize) -> Vec<(Scope, SpanContext)> {
    let requests = (0..count).map(|_| {
        let (scope, span) = Scope::of_request(Some(tracer), &Arc::from("r"), &HeaderMap::new());
        let context = span.map_or(SpanContext::NONE, |span| span.context().clone());
        (scope, context)
    });
    requests.collect()
}

fn linked(span: &SpanData) -> Vec<SpanContext> {
    span.links
        .iter()
        .map(|link| link.span_context.clone())
        .collect()
}

#[test]
fn span_of_a_batch_is_linked_to_all_its_requests() {
    let (tracer, mut spans) = Tracer::for_test(1.0);
    let (never, _) = Tracer::for_test(0.0);
    let unsampled = requests(&never, 1).remove(0).0;
    let three = requests(&tracer, 3);
    let contexts: Vec<SpanContext> = three.iter().map(|(_, context)| context.clone()).collect();
    while spans.try_recv().is_ok() {}
    assert!(Scope::of_batch([&unsampled]).is_none());
    let all = std::iter::once(&unsampled).chain(three.iter().map(|(scope, _)| scope));
    let batch = Scope::of_batch(all).expect("three are sampled");
    batch
        .log_fields(|name, _| panic!("{name} of one of the requests"))
        .expect("nothing is written");
    drop(batch.child("batch", SpanKind::Client));
    let span = spans.try_recv().expect("a span");
    assert_eq!(span.parent_span_id, contexts[0].span_id());
    assert_eq!(span.span_context.trace_id(), contexts[0].trace_id());
    assert_eq!(linked(&span), contexts);

    let only = Scope::of_batch([&unsampled, &three[1].0]).expect("one is sampled");
    assert_eq!(only.request_id(), Some("r"));
    drop(only.child("single", SpanKind::Client));
    let span = spans.try_recv().expect("a span");
    assert_eq!(span.parent_span_id, contexts[1].span_id());
    assert_eq!(linked(&span), []);

    let many = requests(&tracer, scope::MAX_LINKS + 1);
    while spans.try_recv().is_ok() {}
    let batch = Scope::of_batch(many.iter().map(|(scope, _)| scope)).expect("sampled");
    drop(batch.child("large", SpanKind::Client));
    assert_eq!(
        linked(&spans.try_recv().expect("a span")).len(),
        scope::MAX_LINKS
    );
}

#[tokio::test]
async fn queue_overflow_is_counted() {
    let (tracer, _task, dropped) = tracer("http://127.0.0.1:9", 1.0);
    for _ in 0..super::export::QUEUE_CAPACITY + 10 {
        drop(Scope::of_request(
            Some(&tracer),
            &Arc::from("r"),
            &HeaderMap::new(),
        ));
    }
    assert_eq!(dropped.get(), 10);
}

#[tokio::test]
async fn spans_that_no_collector_takes_are_counted() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closed = silent.local_addr().expect("an address");
    drop(silent);
    let (tracer, task, dropped) = tracer(&format!("http://{closed}"), 1.0);
    drop(Scope::of_request(
        Some(&tracer),
        &Arc::from("r"),
        &HeaderMap::new(),
    ));
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
        "[tracing]\nendpoint = 'http://{address}'\nsample_ratio = 1.0\nheaders = {{ authorization = 'TOKEN' }}\nservice_instance = 'node-7'\n"
    );
    let config = read(&text, &env).expect("valid").expect("a table");
    assert!(!format!("{config:?}").contains("collector"));
    let dropped = IntCounter::new("dropped", "Dropped").expect("a name");
    let (tracer, task) =
        Tracer::new(&config, "test", &Clock::system(), dropped.clone()).expect("an exporter");
    let (scope, span) = Scope::of_request(Some(&tracer), &Arc::from("r"), &HeaderMap::new());
    let url = format!("http://{address}/call/hidden-path?token=hidden-query");
    let call = scope.run(async move {
        let call = reqwest::Client::new().get(url).bearer_auth("hidden-token");
        super::send(call.timeout(Duration::from_millis(300))).await
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
    assert!(
        head.contains("x-request-id: r\r\n") && head.contains("traceparent: 00-"),
        "{head}"
    );
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
    assert!(
        sent.contains("Bearer collector") && sent.contains("node-7"),
        "{sent}"
    );
    assert!(
        sent.contains("timeout") && !sent.contains("hidden"),
        "{sent}"
    );
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
            "[tracing]\nendpoint = 'http://x'\nprotocol = 'http/json'\n",
            "tracing.protocol",
        ),
        (
            "[tracing]\nendpoint = 'http://x'\nsample_ratio = 1.5\n",
            "tracing.sample_ratio",
        ),
        (
            "[tracing]\nendpoint = 'http://x'\nheaders = { authorization = 'UNSET' }\n",
            "the environment variable UNSET is not set",
        ),
    ] {
        let message = message(text);
        assert!(message.contains(reason), "{message}");
    }
    if cfg!(feature = "otlp-grpc") {
        let text = "[tracing]\nendpoint = 'https://x'\nprotocol = 'grpc'\n";
        assert!(message(text).contains("must be an http URL"));
    }
}

#[test]
fn kinds_of_spans_are_those_of_the_convention() {
    assert_eq!(super::known_method(&http::Method::PATCH), "PATCH");
    let odd = http::Method::from_bytes(b"SECRET-TOKEN").expect("a token");
    assert_eq!(super::known_method(&odd), "_OTHER");
    assert_ne!(SpanKind::Client, SpanKind::Server);
}
