//! The outermost layer: request id, panics, problems, one event a request.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::HeaderValue;
use http::{Method, StatusCode};

use super::{CODE, Limits, REQUEST_ID, RequestId};
use crate::problem::{Code, Problem};

/// The router with the rim around it. Unknown paths and methods become problems here.
pub(super) fn wrap(router: Router, limits: Limits) -> Router {
    let noted =
        router.layer(middleware::from_fn(note_route)).fallback(|| async { Code::NotFound.into_response() });
    noted.layer(middleware::from_fn(move |request, next| handle(limits, request, next)))
}

impl IntoResponse for Code {
    fn into_response(self) -> Response {
        Problem::new(self).into_response()
    }
}

/// The route that answered, for the event: the template, never the path as it was sent.
#[derive(Clone)]
struct Route(MatchedPath);

async fn note_route(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(Route(route));
    }
    response
}

async fn handle(limits: Limits, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(limits);
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let response = answered.unwrap_or_else(|panic| from_panic(&id, panic.as_ref()));
    let response = finish(response, &id);
    log(&method, &response, &id, began);
    response
}

fn from_panic(id: &RequestId, panic: &(dyn Any + Send)) -> Response {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(request_id = %id.0, panic = words.unwrap_or("unknown"), "request panicked");
    Code::Internal.into_response()
}

/// Writes the problem out if there is one, and repeats the request id.
fn finish(mut response: Response, id: &RequestId) -> Response {
    if response.status() == StatusCode::METHOD_NOT_ALLOWED && response.extensions().get::<Problem>().is_none()
    {
        // The router adds `Allow` behind us, where it is missing.
        response = Code::MethodNotAllowed.into_response();
    }
    if let Some(problem) = response.extensions().get::<Problem>().cloned() {
        let rendered = problem.render(&id.0);
        *response.status_mut() = rendered.status;
        response.headers_mut().extend(rendered.headers);
        *response.body_mut() = Body::from(rendered.body);
        response.headers_mut().insert(CODE, HeaderValue::from_static(problem.code().as_str()));
    }
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn log(method: &Method, response: &Response, id: &RequestId, began: Instant) {
    let route = response.extensions().get::<Route>();
    let route = route.map_or("none", |Route(path)| path.as_str());
    let code = response.extensions().get::<Problem>().map_or("ok", |problem| problem.code().as_str());
    let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let status = response.status().as_u16();
    let request_id = &*id.0;
    if status >= 500 {
        tracing::warn!(%method, route, status, code, request_id, elapsed_us, "request");
    } else {
        tracing::debug!(%method, route, status, code, request_id, elapsed_us, "request");
    }
}
