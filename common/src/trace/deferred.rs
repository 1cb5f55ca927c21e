//! Spans of work whose trace is known only from its result, such as a statement that claims rows.

use opentelemetry::trace::{SpanContext, TraceFlags};

use super::context;
use super::scope::{self, Scope};
use super::span::{SpanBuffer, Tracer};

/// Spans that are recorded once their traces are known, or never.
#[derive(Debug)]
pub struct DeferredSpans {
    tracer: Tracer,
    buffer: SpanBuffer,
}

// === impl DeferredSpans ===

impl DeferredSpans {
    /// Creates an empty collection.
    #[must_use]
    pub fn new(tracer: &Tracer) -> Self {
        Self {
            tracer: tracer.clone(),
            buffer: SpanBuffer::default(),
        }
    }

    /// Returns a scope whose spans are kept here.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope::buffered(&self.tracer, &self.buffer)
    }

    /// Records the spans as children of the first sampled context, with links to all sampled ones.
    /// Drops them if no context is sampled.
    pub fn record<'a>(self, traceparents: impl IntoIterator<Item = &'a str>) {
        let contexts = traceparents.into_iter().filter_map(context::parse);
        let sampled: Vec<SpanContext> = contexts.filter(SpanContext::is_sampled).collect();
        let Some(parent) = sampled.first() else {
            return;
        };
        for mut span in std::mem::take(&mut *self.buffer.lock()) {
            span.span_context = SpanContext::new(
                parent.trace_id(),
                self.tracer.new_span_id(),
                TraceFlags::SAMPLED,
                false,
                parent.trace_state().clone(),
            );
            span.parent_span_id = parent.span_id();
            span.parent_span_is_remote = true;
            span.links.links = scope::links(sampled.iter());
            self.tracer.record(span);
        }
    }
}
