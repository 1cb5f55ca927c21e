//! The outermost layer: request id, panics, problems, one event a request.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{self, Join, Map, Ready};
use http::header::{ALLOW, CONTENT_LENGTH, HeaderValue};
use http::{Method, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use super::room::Room;
use super::{CODE, Limits, Peer, REQUEST_ID, RequestId};
use crate::problem::{Code, Problem};

/// The router with the rim around it. Unknown paths and methods become problems here.
#[derive(Clone)]
pub(super) struct Rim {
    router: Router,
    limits: Limits,
    room: Room,
}

/// Notes on an answer the route that gave it. A type of its own, for a middleware that is a function costs boxes.
#[derive(Clone)]
struct NoteRoute<S>(S);

impl IntoResponse for Code {
    fn into_response(self) -> Response {
        Problem::new(self).into_response()
    }
}

/// The route that answered, for the event: the template, never the path as it was sent.
#[derive(Clone)]
struct Route(MatchedPath);

// === impl Rim ===

impl Rim {
    pub(super) fn new(router: Router, limits: Limits) -> Self {
        let noted = router.layer(tower::layer::layer_fn(NoteRoute));
        let router = noted.fallback(|| async { Code::NotFound.into_response() });
        Self { router, limits, room: Room::new(limits.bodies) }
    }

    pub(super) async fn answer(mut self, peer: Peer, mut request: http::Request<Incoming>) -> Response {
        let began = Instant::now();
        let id = RequestId::of(request.headers());
        let method = request.method().clone();
        let extensions = request.extensions_mut();
        extensions.insert(peer);
        extensions.insert(id.clone());
        extensions.insert(self.limits);
        extensions.insert(self.room);
        let answered = AssertUnwindSafe(self.router.call(request)).catch_unwind().await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => from_panic(&id, panic.as_ref()),
        };
        let response = finish(response, &id);
        log(&method, &response, &id, began);
        response
    }
}

// === impl NoteRoute ===

type Answered = Result<Response, Infallible>;

impl<S: Service<Request, Response = Response, Error = Infallible>> Service<Request> for NoteRoute<S> {
    type Response = Response;
    type Error = Infallible;
    type Future =
        Map<Join<S::Future, Ready<Option<MatchedPath>>>, fn((Answered, Option<MatchedPath>)) -> Answered>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let route = future::ready(request.extensions().get::<MatchedPath>().cloned());
        future::join(self.0.call(request), route).map(|(answered, route)| {
            let mut response = answered?;
            if let Some(route) = route {
                response.extensions_mut().insert(Route(route));
            }
            Ok(response)
        })
    }
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
        let allow = response.headers_mut().remove(ALLOW);
        response = Code::MethodNotAllowed.into_response();
        response.headers_mut().extend(allow.map(|allow| (ALLOW, allow)));
    }
    if let Some(problem) = response.extensions().get::<Problem>().cloned() {
        let rendered = problem.render(&id.0);
        *response.status_mut() = rendered.status;
        // The router's, of the empty body that the problem came with.
        response.headers_mut().remove(CONTENT_LENGTH);
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
