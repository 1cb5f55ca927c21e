//! Telemetry: access log, live tail, metrics, trace spans and request ids.
//!
//! - **Enters:** records of requests and events.
//! - **Leaves:** JSON lines, server-sent events, Prometheus metrics, OTLP spans.
//! - **May depend on:** [`crate::config`]. Requests never wait for a sink: events that do not fit
//!   are dropped and counted.

pub(crate) mod access_log;
pub(crate) mod certificate_metrics;
pub(crate) mod failure_cause;
pub(crate) mod ids;
pub(crate) mod live_tail;
pub(crate) mod metrics;
pub(crate) mod trace_context;

pub use access_log::AccessEvent;
pub use trace_context::TraceContext;
