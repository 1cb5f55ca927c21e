//! The outermost layer: request ids, panics, problems, and one log event per request.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{ALLOW, CONTENT_LENGTH, HeaderValue};
use http::{Extensions, Method, StatusCode};
use hyper::body::Incoming;
use tower::Service;
use tower::util::MapRequestLayer;

use super::budget::{BodyMemoryBudget, BodyOwner};
use super::metrics::HttpMetrics;
use super::on_behalf;
use super::server::RequestTelemetry;
use super::{Limits, PROBLEM_CODE, Peer, REQUEST_ID, RequestId};
use postern_core::decode::NO_NUL;
use postern_core::problem::{Code, Problem};
use postern_core::trace::{ActiveSpan, KeyValue, Scope, known_method};

/// A router with request handling around it. Unknown paths and methods become problems.
#[derive(Clone)]
pub(super) struct RequestLayer {
    router: Router,
    limits: Limits,
    budget: BodyMemoryBudget,
    telemetry: RequestTelemetry,
}

/// Per-request data of this layer. One extension serves all extractors, because each extension
/// costs one or two allocations.
#[derive(Debug)]
pub(super) struct RequestInfo {
    pub(super) peer: Peer,
    pub(super) id: RequestId,
    pub(super) limits: Limits,
    pub(super) budget: BodyMemoryBudget,
    /// `Anonymous` until the handler sets it.
    pub(super) owner: OnceLock<BodyOwner>,
    /// Path template of the matched route, for the log event. The actual path is never logged.
    route: OnceLock<MatchedPath>,
}

// === impl RequestInfo ===

impl RequestInfo {
    pub(super) fn new(
        peer: Peer,
        id: RequestId,
        limits: Limits,
        budget: BodyMemoryBudget,
    ) -> Arc<Self> {
        Arc::new(Self {
            peer,
            id,
            limits,
            budget,
            owner: OnceLock::new(),
            route: OnceLock::new(),
        })
    }

    /// Returns the caller that the body is charged to.
    pub(super) fn owner(&self) -> BodyOwner {
        let owner = self.owner.get().copied();
        owner.unwrap_or(BodyOwner::Anonymous(None))
    }

    /// Returns the path template of the matched route, or `none`.
    fn route(&self) -> &str {
        self.route.get().map_or("none", MatchedPath::as_str)
    }

    /// Returns `None` outside a server, as in a unit test.
    pub(super) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get::<Arc<Self>>().map(Arc::as_ref)
    }
}

// === impl RequestLayer ===

impl RequestLayer {
    pub(super) fn new(router: Router, limits: Limits, telemetry: RequestTelemetry) -> Self {
        // Not a middleware function of axum, which allocates boxed futures.
        let routed = router.layer(MapRequestLayer::new(record_route));
        let router = routed.fallback(|| async { Code::NotFound.into_response() });
        Self {
            router,
            limits,
            budget: BodyMemoryBudget::new(limits.bodies, limits.body),
            telemetry,
        }
    }

    pub(super) async fn handle(
        mut self,
        peer: Peer,
        mut request: http::Request<Incoming>,
    ) -> Response {
        let started = Instant::now();
        let metrics = self.telemetry.metrics.take();
        let metrics = metrics.as_ref();
        let _in_flight = metrics.map(HttpMetrics::start);
        let id = RequestId::of(request.headers());
        let method = request.method().clone();
        let tracer = self.telemetry.tracer.as_ref();
        let (scope, span) = Scope::of_request(tracer, &id.0, request.headers());
        let info = RequestInfo::new(peer, id, self.limits, self.budget);
        request.extensions_mut().insert(Arc::clone(&info));
        let handled = scope.run(on_behalf::handling(async move {
            let called = async {
                // Parameters of a path reach statements, as those of queries and bodies do.
                if request.uri().path().contains("%00") {
                    let problem = Problem::new(Code::InvalidRequest);
                    let problem = problem.error("path", "invalid_format", NO_NUL);
                    return Ok(problem.into_response());
                }
                self.router.call(request).await
            };
            let result = AssertUnwindSafe(called).catch_unwind().await;
            let response = match result {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(panic) => panic_response(&info.id, panic.as_ref()),
            };
            let response = finish_response(response, &info.id);
            let elapsed = started.elapsed();
            if let Some(metrics) = metrics {
                metrics.record(&method, info.route(), response.status(), elapsed);
            }
            log_request(&method, &response, &info, elapsed);
            if let Some(span) = span {
                finish_span(span, &method, &response, &info);
            }
            response
        }));
        handled.await
    }
}

/// Records the matched route, which only layers within the router know.
fn record_route(request: Request) -> Request {
    let extensions = request.extensions();
    if let Some(info) = RequestInfo::of(extensions)
        && let Some(route) = extensions.get::<MatchedPath>()
    {
        let _only_once = info.route.set(route.clone());
    }
    request
}

fn panic_response(id: &RequestId, panic: &(dyn Any + Send)) -> Response {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(request_id = %id.0, panic = message.unwrap_or("unknown"), "request panicked");
    Code::Internal.into_response()
}

/// Renders the problem, if there is one, and sets the request id.
fn finish_response(mut response: Response, id: &RequestId) -> Response {
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && response.extensions().get::<Problem>().is_none()
    {
        let allow = response.headers_mut().remove(ALLOW);
        response = Code::MethodNotAllowed.into_response();
        let allow = allow.map(|allow| (ALLOW, allow));
        response.headers_mut().extend(allow);
    }
    if let Some(problem) = response.extensions().get::<Problem>().cloned() {
        let rendered = problem.render(&id.0);
        *response.status_mut() = rendered.status;
        // Set by the router for the empty body that the problem replaces.
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().extend(rendered.headers);
        *response.body_mut() = Body::from(rendered.body);
        let code = HeaderValue::from_static(problem.code().as_str());
        response.headers_mut().insert(PROBLEM_CODE, code);
    }
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Records the server span. Its attributes have neither path nor query, which can contain ids and
/// codes.
fn finish_span(mut span: ActiveSpan, method: &Method, response: &Response, info: &RequestInfo) {
    let method = known_method(method);
    let status = response.status();
    match info.route.get() {
        Some(route) => {
            span.rename(format!("{method} {}", route.as_str()));
            span.set(KeyValue::new("http.route", route.as_str().to_owned()));
        }
        None => span.rename(method),
    }
    span.set(KeyValue::new("http.request.method", method));
    let number = i64::from(status.as_u16());
    span.set(KeyValue::new("http.response.status_code", number));
    span.set(KeyValue::new("postern.request_id", Arc::clone(&info.id.0)));
    let code = response.extensions().get::<Problem>().map(Problem::code);
    if let Some(code) = code {
        span.set(KeyValue::new("postern.code", code.as_str()));
    }
    if status.is_server_error() {
        span.fail(code.map_or("500", Code::as_str));
    }
}

fn log_request(method: &Method, response: &Response, info: &RequestInfo, elapsed: Duration) {
    let route = info.route();
    let problem = response.extensions().get::<Problem>();
    let code = problem.map_or("ok", |problem| problem.code().as_str());
    let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    let status = response.status().as_u16();
    let request_id = &*info.id.0;
    // A readiness check that fails has no problem: its reasons are logged where they occur.
    match status {
        502..=504 if code != "ok" => {
            postern_core::log_consequence!(%method, route, status, code, request_id, elapsed_us, "request");
        }
        // The failure of no dependency, which no other event has to tell.
        500.. if code != "ok" => {
            postern_core::log_outage!(code, %method, route, status, code, request_id, elapsed_us, "request");
        }
        _ => tracing::debug!(%method, route, status, code, request_id, elapsed_us, "request"),
    }
}

#[cfg(test)]
mod tests {
    use postern_core::testing::CapturedLog;

    use super::super::budget::BodyBudgets;
    use super::*;

    #[test]
    fn internal_error_is_a_warning_also_in_an_outage() {
        let (log, _guard) = CapturedLog::start();
        let budget = BodyMemoryBudget::new(BodyBudgets::anonymous(1), 1);
        let id = RequestId("r".into());
        let info = RequestInfo::new(Peer::default(), id, Limits::default(), budget);
        postern_core::log_outage!("database", "query failed");
        for code in [
            Code::Unavailable,
            Code::UpstreamTimeout,
            Code::Internal,
            Code::Internal,
            Code::NotFound,
        ] {
            log_request(&Method::GET, &code.into_response(), &info, Duration::ZERO);
        }
        for (status, level) in [
            (503, "DEBUG"),
            (504, "DEBUG"),
            (500, "WARN"),
            (500, "DEBUG"),
            (404, "DEBUG"),
        ] {
            let parts = [format!(" {level} "), format!("status={status} ")];
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            assert_eq!(log.with(&parts), 1, "{parts:?} in {}", log.text());
        }
    }
}
