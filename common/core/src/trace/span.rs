//! Spans and the tracer that records them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceId};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample, SpanData, SpanEvents,
    SpanLinks,
};
use prometheus::IntCounter;
use tokio::sync::mpsc;

use crate::clock::Clock;

/// Maximum spans in the queue, about 4 MiB.
pub(super) const QUEUE_CAPACITY: usize = 4096;

/// The recorder of spans. It samples new traces and queues completed spans for the export.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<TracerInner>);

#[derive(Debug)]
struct TracerInner {
    sampler: Sampler,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    queue: mpsc::Sender<SpanData>,
    dropped: IntCounter,
    clock: Clock,
}

/// A span that is recorded when it is dropped.
#[derive(Debug)]
pub struct ActiveSpan {
    tracer: Tracer,
    started: Instant,
    /// In a box, because each call that may have a span holds one.
    data: Option<Box<SpanData>>,
}

// === impl Tracer ===

impl Tracer {
    /// Creates a tracer and the queue of its completed spans. `sample_ratio` is the fraction of new
    /// traces that is sampled; `dropped` counts the spans that did not fit into the queue.
    #[must_use]
    pub fn new(
        sample_ratio: f64,
        clock: &Clock,
        dropped: IntCounter,
    ) -> (Self, mpsc::Receiver<SpanData>) {
        let (queue, spans) = mpsc::channel(QUEUE_CAPACITY);
        let inner = TracerInner {
            sampler: Sampler::TraceIdRatioBased(sample_ratio),
            ids: RandomIdGenerator::default(),
            scope: InstrumentationScope::builder("postern")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            queue,
            dropped,
            clock: clock.clone(),
        };
        (Self(Arc::new(inner)), spans)
    }

    /// Returns whether a new trace is sampled.
    #[must_use]
    pub fn samples(&self, trace_id: TraceId) -> bool {
        let result = self
            .0
            .sampler
            .should_sample(None, trace_id, "", &SpanKind::Server, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    /// Queues a completed span. It is dropped and counted if the queue is full.
    pub fn record(&self, span: SpanData) {
        if self.0.queue.try_send(span).is_err() {
            self.0.dropped.inc();
        }
    }

    /// Creates a span that starts and ends now. `parent` is invalid for the first span of a trace.
    #[must_use]
    pub fn span_now(
        &self,
        context: &SpanContext,
        parent: &SpanContext,
        kind: SpanKind,
    ) -> SpanData {
        let now = self.0.clock.system_time();
        SpanData {
            span_context: context.clone(),
            parent_span_id: parent.span_id(),
            parent_span_is_remote: parent.is_remote(),
            span_kind: kind,
            name: Cow::Borrowed("span"),
            start_time: now,
            end_time: now,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.0.scope.clone(),
        }
    }

    pub(super) fn start(
        &self,
        context: &SpanContext,
        parent: &SpanContext,
        kind: SpanKind,
        links: Vec<Link>,
    ) -> ActiveSpan {
        let mut data = self.span_now(context, parent, kind);
        data.links.links = links;
        ActiveSpan {
            tracer: self.clone(),
            started: Instant::now(),
            data: Some(Box::new(data)),
        }
    }

    pub(super) fn new_trace_id(&self) -> TraceId {
        self.0.ids.new_trace_id()
    }

    pub(super) fn new_span_id(&self) -> SpanId {
        self.0.ids.new_span_id()
    }
}

// === impl ActiveSpan ===

impl ActiveSpan {
    /// Sets the name, which must have few different values.
    pub fn rename(&mut self, name: impl Into<Cow<'static, str>>) {
        if let Some(data) = &mut self.data {
            data.name = name.into();
        }
    }

    /// Adds an attribute.
    pub fn set(&mut self, attribute: KeyValue) {
        if let Some(data) = &mut self.data {
            data.attributes.push(attribute);
        }
    }

    /// Marks the span as failed. `kind` has few different values: a status or a class of errors.
    pub fn fail(&mut self, kind: impl Into<Cow<'static, str>>) {
        let kind = kind.into();
        if let Some(data) = &mut self.data {
            data.status = Status::error("");
            data.attributes
                .push(KeyValue::new("error.type", kind.into_owned()));
        }
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        if let Some(mut data) = self.data.take() {
            data.end_time = data.start_time + self.started.elapsed();
            self.tracer.record(*data);
        }
    }
}

/// Returns the value of `http.request.method`: a method of RFC 9110 or RFC 5789, or `_OTHER`.
#[must_use]
pub fn known_method(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "CONNECT" => "CONNECT",
        "OPTIONS" => "OPTIONS",
        "TRACE" => "TRACE",
        "PATCH" => "PATCH",
        _ => "_OTHER",
    }
}

#[cfg(test)]
impl ActiveSpan {
    /// Returns the context of the span.
    pub(crate) fn context(&self) -> &SpanContext {
        let data = self.data.as_ref();
        &data.expect("taken only when dropped").span_context
    }
}
