//! Spans and the tracer that records them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceId,
    Tracer as _, TracerProvider,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    ParentBasedSampler, Sampler, SamplingDecision, SdkTracer, SdkTracerProvider, ShouldSample,
    Span, SpanData, SpanEvents, SpanLimits, SpanLinks, SpanProcessor,
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
    sdk: SdkTracer,
    sampler: Sampler,
    scope: InstrumentationScope,
    queue: SpanQueue,
    clock: Clock,
}

/// The queue of completed spans. A span that does not fit is dropped and counted: nothing waits for
/// the collector.
#[derive(Clone, Debug)]
struct SpanQueue {
    spans: mpsc::Sender<SpanData>,
    dropped: IntCounter,
}

/// A span that is recorded when it is dropped. In a box, because each call that may have a span
/// holds one.
#[derive(Debug)]
pub struct ActiveSpan(Box<Timed>);

/// A span that ends after the time that has passed, whatever happens to the clock meanwhile.
#[derive(Debug)]
struct Timed {
    span: Span,
    began: SystemTime,
    started: Instant,
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
        let (spans, received) = mpsc::channel(QUEUE_CAPACITY);
        let queue = SpanQueue { spans, dropped };
        let sampler = Sampler::TraceIdRatioBased(sample_ratio);
        let scope = InstrumentationScope::builder("postern");
        let scope = scope.with_version(env!("CARGO_PKG_VERSION")).build();
        let provider = SdkTracerProvider::builder()
            .with_sampler(ParentBasedSampler::new(sampler.clone()))
            .with_span_processor(queue.clone())
            // Not those of the environment.
            .with_span_limits(SpanLimits::default())
            .build();
        let inner = TracerInner {
            sdk: provider.tracer_with_scope(scope.clone()),
            sampler,
            scope,
            queue,
            clock: clock.clone(),
        };
        (Self(Arc::new(inner)), received)
    }

    /// Returns whether a new trace is sampled.
    #[must_use]
    pub fn samples(&self, trace_id: TraceId) -> bool {
        let (sampler, kind) = (&self.0.sampler, SpanKind::Server);
        let result = sampler.should_sample(None, trace_id, "", &kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    /// Queues a completed span. It is dropped and counted if the queue is full.
    pub fn record(&self, span: SpanData) {
        self.0.queue.on_end(span);
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

    /// Starts a span. It continues the trace of a valid parent, whose sampling decision is kept;
    /// otherwise it is the first one of a trace.
    pub(super) fn start(
        &self,
        parent: &SpanContext,
        kind: SpanKind,
        links: Vec<Link>,
    ) -> (SpanContext, Option<ActiveSpan>) {
        let began = self.0.clock.system_time();
        let builder = SpanBuilder::from_name("span")
            .with_kind(kind)
            .with_start_time(began)
            .with_links(links);
        let parent = Context::new().with_remote_span_context(parent.clone());
        let span = self.0.sdk.build_with_context(builder, &parent);
        let context = span.span_context().clone();
        let (is_recording, started) = (span.is_recording(), Instant::now());
        let timed = Timed {
            span,
            began,
            started,
        };
        (context, is_recording.then(|| ActiveSpan(Box::new(timed))))
    }
}

// === impl SpanQueue ===

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

// === impl ActiveSpan ===

impl ActiveSpan {
    /// Returns the context of the span.
    #[must_use]
    pub fn context(&self) -> &SpanContext {
        self.0.span.span_context()
    }

    /// Renames the span; few different names.
    pub fn rename(&mut self, name: impl Into<Cow<'static, str>>) {
        self.0.span.update_name(name);
    }

    /// Adds an attribute.
    pub fn set(&mut self, attribute: KeyValue) {
        self.0.span.set_attribute(attribute);
    }

    /// Marks the span as failed. `kind` has few different values: a status or a class of errors.
    pub fn fail(&mut self, kind: impl Into<Cow<'static, str>>) {
        self.0.span.set_status(Status::error(""));
        self.set(KeyValue::new("error.type", kind.into().into_owned()));
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let ended = self.began + self.started.elapsed();
        self.span.end_with_timestamp(ended);
    }
}

/// The methods of RFC 9110 and RFC 5789, the most frequent first.
const METHODS: [&str; 9] = [
    "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE",
];

/// Returns the value of `http.request.method`: a known method, or `_OTHER`, because clients choose
/// methods freely.
#[must_use]
pub fn known_method(method: &http::Method) -> &'static str {
    let known = METHODS.into_iter().find(|known| method == known);
    known.unwrap_or("_OTHER")
}
