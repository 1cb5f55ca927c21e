//! Request ids, trace contexts (W3C Trace Context) and OpenTelemetry spans.
//!
//! A [`Scope`] holds the ids of the work in progress. The HTTP server enters one for each request;
//! log lines that are written within it carry its ids, and calls made by [`send`] carry them on. A
//! [`Tracer`] records spans, if the table `[tracing]` of the configuration asks for them.
//!
//! Input: header fields of requests. Output: header fields of calls, and a queue of spans, which
//! `postern-service` exports.

mod client;
mod context;
mod scope;
mod span;

#[cfg(test)]
mod tests;

pub use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId};
pub use opentelemetry::{KeyValue, Value};
pub use opentelemetry_sdk::trace::SpanData;

pub use client::{client_span, send, set_server};
pub use context::{TRACEPARENT, TRACESTATE, parse_traceparent};
pub use scope::{Scope, spawn};
pub use span::{ActiveSpan, Tracer, known_method};
