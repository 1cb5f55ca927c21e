//! Calls that carry the ids of the current scope.

use std::borrow::Cow;

use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use reqwest::{RequestBuilder, Response};

use super::scope::Scope;
use super::span::{ActiveSpan, known_method};

/// Sends a request with `X-Request-Id`, `traceparent` and `tracestate` of the current scope, within
/// a client span if the trace is sampled. The span has neither path nor query, because those of
/// providers contain addresses and capabilities.
pub async fn send(request: RequestBuilder) -> reqwest::Result<Response> {
    let (client, request) = request.build_split();
    let mut request = request?;
    let Some(scope) = Scope::current() else {
        return client.execute(request).await;
    };
    let method = known_method(request.method());
    let name = if method == "_OTHER" { "HTTP" } else { method };
    let Some((inner, mut span)) = scope.child(name, SpanKind::Client) else {
        scope.inject(request.headers_mut());
        return client.execute(request).await;
    };
    span.set(KeyValue::new("http.request.method", method));
    let (host, port) = (
        request.url().host_str(),
        request.url().port_or_known_default(),
    );
    set_server(&mut span, host.unwrap_or_default(), port);
    inner.inject(request.headers_mut());
    let result = client.execute(request).await;
    match &result {
        Ok(response) => {
            let status = response.status().as_u16();
            let value = i64::from(status);
            span.set(KeyValue::new("http.response.status_code", value));
            if status >= 400 {
                span.fail(status.to_string());
            }
        }
        Err(error) if error.is_timeout() => span.fail("timeout"),
        Err(error) if error.is_connect() => span.fail("connect"),
        Err(_) => span.fail("_OTHER"),
    }
    result
}

/// Makes a call within a client span, if the trace of the current scope is sampled. `describe` sets
/// the attributes; `error_type` returns the class of errors if the call failed, which must have few
/// different values. A call that is cancelled ends its span without an error.
pub async fn client_span<T>(
    name: &'static str,
    describe: impl FnOnce(&mut ActiveSpan),
    call: impl Future<Output = T>,
    error_type: impl FnOnce(&T) -> Option<Cow<'static, str>>,
) -> T {
    let child = Scope::current().and_then(|scope| scope.child(name, SpanKind::Client));
    let Some((inner, mut span)) = child else {
        return call.await;
    };
    describe(&mut span);
    let result = inner.run(call).await;
    if let Some(kind) = error_type(&result) {
        span.fail(kind);
    }
    result
}

/// Sets `server.address` and `server.port`.
pub fn set_server(span: &mut ActiveSpan, host: &str, port: Option<u16>) {
    span.set(KeyValue::new("server.address", host.to_owned()));
    if let Some(port) = port {
        span.set(KeyValue::new("server.port", i64::from(port)));
    }
}
