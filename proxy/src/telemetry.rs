//! Telemetry.

pub(crate) mod access_log;
pub(crate) mod ids;
pub(crate) mod metrics;
pub(crate) mod spans;
pub(crate) mod trace_context;

pub use access_log::AccessEvent;
pub use trace_context::TraceContext;
