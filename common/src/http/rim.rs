//! The outermost layer: request id, panics, problems, one event a request.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{ALLOW, CONTENT_LENGTH, HeaderValue};
use http::{Extensions, Method, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use super::budget::{BodyMemoryBudget, BodyOwner};
use super::{CODE, Limits, Peer, REQUEST_ID, RequestId};
use crate::problem::{Code, Problem};

/// The router with the rim around it. Unknown paths and methods become problems here.
#[derive(Clone)]
pub(super) struct Rim {
    router: Router,
    limits: Limits,
    budget: BodyMemoryBudget,
}

/// What the rim knows of a request: one extension for all its extractors, for each is an allocation
/// or two.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) peer: Peer,
    pub(super) id: RequestId,
    pub(super) limits: Limits,
    pub(super) budget: BodyMemoryBudget,
    /// Anonymous until the handler knows better.
    owner: OnceLock<BodyOwner>,
    /// The route that answers, for the event: the template, never the path as it was sent.
    route: OnceLock<MatchedPath>,
}

/// Notes the route that a request has found. A type of its own, for a middleware that is a function
/// costs boxes.
#[derive(Clone)]
struct NoteRoute<S>(S);

impl IntoResponse for Code {
    fn into_response(self) -> Response {
        Problem::new(self).into_response()
    }
}

// === impl Known ===

impl Known {
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

    /// The caller to whom the body is charged.
    pub(super) fn owner(&self) -> BodyOwner {
        self.owner
            .get()
            .copied()
            .unwrap_or(BodyOwner::Anonymous(None))
    }

    pub(super) fn set_owner(&self, owner: BodyOwner) {
        let _first_one_counts = self.owner.set(owner);
    }

    /// `None` where no server stands around it, as in a unit test.
    pub(super) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get::<Arc<Self>>().map(Arc::as_ref)
    }
}

// === impl Rim ===

impl Rim {
    pub(super) fn new(router: Router, limits: Limits) -> Self {
        let noted = router.layer(tower::layer::layer_fn(NoteRoute));
        let router = noted.fallback(|| async { Code::NotFound.into_response() });
        Self {
            router,
            limits,
            budget: BodyMemoryBudget::new(limits.bodies, limits.body),
        }
    }

    pub(super) async fn answer(
        mut self,
        peer: Peer,
        mut request: http::Request<Incoming>,
    ) -> Response {
        let began = Instant::now();
        let id = RequestId::of(request.headers());
        let method = request.method().clone();
        let known = Known::new(peer, id, self.limits, self.budget);
        request.extensions_mut().insert(Arc::clone(&known));
        let answered = AssertUnwindSafe(self.router.call(request))
            .catch_unwind()
            .await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => from_panic(&known.id, panic.as_ref()),
        };
        let response = finish(response, &known.id);
        log(&method, &response, &known, began);
        response
    }
}

// === impl NoteRoute ===

impl<S: Service<Request>> Service<Request> for NoteRoute<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> S::Future {
        let extensions = request.extensions();
        if let (Some(known), Some(route)) = (Known::of(extensions), extensions.get::<MatchedPath>())
        {
            let _only_once = known.route.set(route.clone());
        }
        self.0.call(request)
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
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && response.extensions().get::<Problem>().is_none()
    {
        let allow = response.headers_mut().remove(ALLOW);
        response = Code::MethodNotAllowed.into_response();
        response
            .headers_mut()
            .extend(allow.map(|allow| (ALLOW, allow)));
    }
    if let Some(problem) = response.extensions().get::<Problem>().cloned() {
        let rendered = problem.render(&id.0);
        *response.status_mut() = rendered.status;
        // The router's, of the empty body that the problem came with.
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().extend(rendered.headers);
        *response.body_mut() = Body::from(rendered.body);
        response
            .headers_mut()
            .insert(CODE, HeaderValue::from_static(problem.code().as_str()));
    }
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn log(method: &Method, response: &Response, known: &Known, began: Instant) {
    let route = known.route.get().map_or("none", MatchedPath::as_str);
    let code = response
        .extensions()
        .get::<Problem>()
        .map_or("ok", |problem| problem.code().as_str());
    let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let status = response.status().as_u16();
    let request_id = &*known.id.0;
    if status >= 500 {
        tracing::warn!(%method, route, status, code, request_id, elapsed_us, "request");
    } else {
        tracing::debug!(%method, route, status, code, request_id, elapsed_us, "request");
    }
}
