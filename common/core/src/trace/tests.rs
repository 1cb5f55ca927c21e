use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::TraceId;
use prometheus::IntCounter;
use tokio::sync::mpsc;

use super::{Scope, SpanData, Tracer, context, span};
use crate::clock::Clock;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn tracer(ratio: f64) -> (Tracer, mpsc::Receiver<SpanData>, IntCounter) {
    let dropped = IntCounter::new("dropped", "Dropped").expect("a name");
    let (tracer, spans) = Tracer::new(ratio, &Clock::system(), dropped.clone());
    (tracer, spans, dropped)
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
    let (never, ..) = tracer(0.0);
    let (always, ..) = tracer(1.0);
    assert!(is_sampled(&never, &[("traceparent", PARENT)]));
    assert!(!is_sampled(&always, &[("traceparent", UNSAMPLED)]));
    assert!(!is_sampled(&never, &[]));
    assert!(is_sampled(&always, &[]));
    let half = tracer(0.5).0;
    let sampled = (1..=1000_u64)
        .map(|n| TraceId::from(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
        .filter(|trace_id| half.samples(*trace_id))
        .count();
    assert!((300..700).contains(&sampled), "{sampled}");
}

#[tokio::test]
async fn malformed_traceparent_is_replaced() {
    let (tracer, ..) = tracer(1.0);
    let long = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x";
    for bad in [
        "",
        "00",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
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
    let states = [("tracestate", "a=1"), ("tracestate", "b=2")];
    let given = headers(&[("traceparent", PARENT), states[0], states[1]]);
    let (scope, _) = Scope::of_request(None, &Arc::from("r"), &given);
    let mut sent = HeaderMap::new();
    scope.inject(&mut sent);
    assert_eq!(sent["traceparent"], PARENT);
    assert_eq!(sent["tracestate"], "a=1,b=2");
    let (tracer, ..) = tracer(0.0);
    let (scope, _) = Scope::of_request(Some(&tracer), &Arc::from("r"), &given);
    scope.inject(&mut sent);
    let parent = sent["traceparent"].to_str().expect("text");
    assert!(parent.starts_with(&PARENT[..36]), "{parent}");
    assert_ne!(parent, PARENT);
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
    let (tracer, ..) = tracer(0.0);
    let of = |accepted| Scope::of_delivery(Some(&tracer), "n-1", Some("r-1"), accepted);
    let (scope, span) = of(Some(PARENT));
    let mut fields = String::new();
    let write = |name: &'static str, value: &dyn std::fmt::Display| {
        fields += &format!("{name}={value} ");
        Ok(())
    };
    scope.log_fields(write).expect("written");
    let expected = "request_id=r-1 notification_id=n-1 trace_id=0af7651916cd43dd8448eb211c80319c ";
    assert_eq!(fields, expected);
    let span = format!("{:?}", span.expect("sampled"));
    assert!(span.contains("Link") && span.contains("Consumer"), "{span}");
    assert!(of(Some("nonsense")).1.is_none());
}

#[test]
fn unknown_method_of_a_client_is_no_label() {
    let odd = http::Method::from_bytes(b"SECRET-TOKEN").expect("a token");
    let methods = [http::Method::PATCH, odd].map(|method| super::known_method(&method));
    assert_eq!(methods, ["PATCH", "_OTHER"]);
}

#[tokio::test]
async fn queue_overflow_is_counted() {
    let (tracer, _spans, dropped) = tracer(1.0);
    for _ in 0..span::QUEUE_CAPACITY + 10 {
        let id = Arc::from("r");
        drop(Scope::of_request(Some(&tracer), &id, &HeaderMap::new()));
    }
    assert_eq!(dropped.get(), 10);
}
