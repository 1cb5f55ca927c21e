//! The spans of a completed request: a server span, and a client span if it was forwarded.

use std::time::Duration;

use pingora::http::RequestHeader;
use postern_core::trace::{
    KeyValue, SpanContext, SpanData, SpanKind, Status, TraceFlags, Tracer, known_method,
};

use crate::state::request_context::{ForwardingRecord, RequestContext};
use crate::telemetry::TraceContext;
use crate::telemetry::metrics::OK_CODE;
use crate::upstream::Endpoint;

/// Records the spans. `result` is the status, the problem code and the duration of the request.
pub(super) fn record(
    tracer: &Tracer,
    head: &RequestHeader,
    ctx: &RequestContext,
    result: (u16, &'static str, Duration),
) {
    let (status, code, elapsed) = result;
    let request = &ctx.request;
    let trace = request.trace;
    let method = known_method(&head.method);
    let parent = span_context(trace, trace.parent.unwrap_or(0), true);
    let own = span_context(trace, trace.span, false);
    let mut span = tracer.span_now(&own, &parent, SpanKind::Server);
    span.start_time = span.end_time.checked_sub(elapsed).unwrap_or(span.end_time);
    let route = request
        .matched_route()
        .map(|route| &route.pattern.path.template);
    span.name = match route {
        Some(route) => format!("{method} {route}").into(),
        None => method.into(),
    };
    let scheme = if request.is_tls { "https" } else { "http" };
    span.attributes = vec![
        KeyValue::new("http.request.method", method),
        KeyValue::new("http.response.status_code", i64::from(status)),
        KeyValue::new("url.scheme", scheme),
        KeyValue::new("postern.code", code),
        KeyValue::new("postern.request_id", request.id.to_string()),
    ];
    let path = head.raw_path().split(|byte| *byte == b'?').next();
    let path = path.and_then(|path| std::str::from_utf8(path).ok());
    if let Some(path) = path.filter(|_| request.has_canonical_target) {
        let path = KeyValue::new("url.path", path.to_owned());
        span.attributes.push(path);
    }
    if let Some(route) = route {
        let route = KeyValue::new("http.route", route.clone());
        span.attributes.push(route);
    }
    if status >= 500 {
        fail(&mut span, code);
    }
    if let (Some(forwarding), Some((_, endpoint, started))) = (&ctx.forwarding, ctx.last_attempt())
    {
        let attempt = (endpoint, started.elapsed());
        let client = client_span(tracer, trace, forwarding, attempt, method);
        tracer.record(with_result(client, status, code));
    }
    tracer.record(span);
}

/// Returns the client span, which ends with the response.
fn client_span(
    tracer: &Tracer,
    trace: TraceContext,
    forwarding: &ForwardingRecord,
    (endpoint, elapsed): (&Endpoint, Duration),
    method: &'static str,
) -> SpanData {
    let own = span_context(trace, trace.client_span(), false);
    let parent = span_context(trace, trace.span, false);
    let mut span = tracer.span_now(&own, &parent, SpanKind::Client);
    span.start_time = span.end_time.checked_sub(elapsed).unwrap_or(span.end_time);
    let address = &endpoint.address;
    span.name = if method == "_OTHER" { "HTTP" } else { method }.into();
    span.attributes = vec![
        KeyValue::new("http.request.method", method),
        KeyValue::new("postern.upstream", forwarding.pool.config.name.clone()),
    ];
    span.attributes.extend(match address.as_inet() {
        Some(address) => vec![
            KeyValue::new("server.address", address.ip().to_string()),
            KeyValue::new("server.port", i64::from(address.port())),
        ],
        None => vec![KeyValue::new("server.address", address.to_string())],
    });
    if forwarding.attempts > 1 {
        let resends = i64::from(forwarding.attempts - 1);
        span.attributes
            .push(KeyValue::new("http.request.resend_count", resends));
    }
    span
}

fn with_result(mut span: SpanData, status: u16, code: &'static str) -> SpanData {
    let status_code = KeyValue::new("http.response.status_code", i64::from(status));
    span.attributes.push(status_code);
    if status >= 400 {
        let kind = if code == OK_CODE { "_OTHER" } else { code };
        fail(&mut span, kind);
    }
    span
}

fn fail(span: &mut SpanData, kind: &'static str) {
    span.status = Status::error("");
    span.attributes.push(KeyValue::new("error.type", kind));
}

/// Returns the context of a span of the trace; an invalid one if `span` is 0.
fn span_context(trace: TraceContext, span: u64, is_remote: bool) -> SpanContext {
    SpanContext::new(
        trace.id.into(),
        span.into(),
        TraceFlags::new(trace.flags),
        is_remote,
        Default::default(),
    )
}
