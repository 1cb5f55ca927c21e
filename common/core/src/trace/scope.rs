//! The ids of the work in progress, as a task-local value.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{Link, SpanContext, SpanKind};
use tokio::task::JoinHandle;

use super::context;
use super::span::{ActiveSpan, Tracer};

tokio::task_local! {
    static CURRENT: Scope;
}

/// The ids of a request or of a delivery. Log lines and calls within the scope carry them.
#[derive(Clone, Debug)]
pub struct Scope(Arc<Ids>);

#[derive(Debug)]
struct Ids {
    request_id: Option<Arc<str>>,
    notification_id: Option<Box<str>>,
    /// The context for calls: of the own span, or of the caller if spans are not recorded here.
    context: SpanContext,
    /// The tracer, if the trace is sampled.
    tracer: Option<Tracer>,
}

impl Scope {
    /// Creates the scope of an incoming request, and its server span if the trace is sampled. A
    /// valid `traceparent` continues the trace of the caller, whose sampling decision is kept.
    #[must_use]
    pub fn of_request(
        tracer: Option<&Tracer>,
        request_id: &Arc<str>,
        headers: &HeaderMap,
    ) -> (Self, Option<ActiveSpan>) {
        let parent = context::extract(headers);
        let id = Some(Arc::clone(request_id));
        Self::begin(tracer, &parent, SpanKind::Server, Vec::new(), id, None)
    }

    /// Creates the scope of a delivery attempt, and its consumer span if the trace is sampled. The
    /// span is a child of `accepted`, the `traceparent` of the span that accepted the notification,
    /// and is linked to it, because the acceptance may be days old and of another process.
    #[must_use]
    pub fn of_delivery(
        tracer: Option<&Tracer>,
        notification_id: &str,
        request_id: Option<&str>,
        accepted: Option<&str>,
    ) -> (Self, Option<ActiveSpan>) {
        let accepted = accepted.and_then(context::parse_traceparent);
        let parent = accepted.unwrap_or(SpanContext::NONE);
        let links = vec![Link::with_context(parent.clone())];
        let (id, notification) = (request_id.map(Arc::from), Some(notification_id.into()));
        Self::begin(tracer, &parent, SpanKind::Consumer, links, id, notification)
    }

    /// Continues the trace of a valid parent, or starts one. The span exists if it is sampled.
    /// Without a tracer the context is the parent's.
    fn begin(
        tracer: Option<&Tracer>,
        parent: &SpanContext,
        kind: SpanKind,
        links: Vec<Link>,
        request_id: Option<Arc<str>>,
        notification_id: Option<Box<str>>,
    ) -> (Self, Option<ActiveSpan>) {
        let (context, span) = match tracer {
            Some(tracer) => tracer.start(parent, kind, links),
            None => (parent.clone(), None),
        };
        let ids = Ids {
            request_id,
            notification_id,
            context,
            tracer: tracer.filter(|_| span.is_some()).cloned(),
        };
        (Self(Arc::new(ids)), span)
    }

    /// Returns the scope of the current task.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Runs a future within this scope.
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, future)
    }

    /// Starts a span within this scope, if the trace is sampled. Returns the scope for the calls
    /// that belong to the span.
    #[must_use]
    pub fn child(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
    ) -> Option<(Self, ActiveSpan)> {
        let ids = &*self.0;
        let tracer = Some(ids.tracer.as_ref()?);
        let (id, notification) = (ids.request_id.clone(), ids.notification_id.clone());
        let (scope, span) = Self::begin(tracer, &ids.context, kind, Vec::new(), id, notification);
        let mut span = span?;
        span.rename(name);
        Some((scope, span))
    }

    /// Returns the id of the request.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// Returns the `traceparent` for calls, if there is a trace.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        let context = &self.0.context;
        context.is_valid().then(|| context::format(context))
    }

    /// Sets `X-Request-Id`, `traceparent` and `tracestate` of a call.
    pub(super) fn inject(&self, headers: &mut HeaderMap) {
        context::inject(&self.0.context, headers);
        let id = self.request_id().map(HeaderValue::from_str);
        if let Some(Ok(id)) = id {
            headers.insert("x-request-id", id);
        }
    }

    /// Calls `write` with the name and value of each id, for a log line. The values need no quotes.
    pub fn log_fields(
        &self,
        mut write: impl FnMut(&'static str, &dyn fmt::Display) -> fmt::Result,
    ) -> fmt::Result {
        if let Some(id) = &self.0.request_id {
            write("request_id", id)?;
        }
        if let Some(id) = &self.0.notification_id {
            write("notification_id", id)?;
        }
        if self.0.context.is_valid() {
            write("trace_id", &self.0.context.trace_id())?;
        }
        Ok(())
    }
}

/// Spawns a task within the scope of the current one.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Scope::current() {
        Some(scope) => tokio::spawn(CURRENT.scope(scope, future)),
        None => tokio::spawn(future),
    }
}
