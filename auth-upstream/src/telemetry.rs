//! Audit events, metrics and rate-limited log events.
//!
//! Enters: outcomes of operations, calls and attempts. Leaves: audit events, the metrics registry
//! and diagnostic log events. Depends on `client` and on the attempt kinds of `protection`.

mod audit;
pub(crate) mod log_limit;
mod metrics;

pub(crate) use self::audit::{AuditLog, Audited, AuditedResult, Completed, Operation, OutcomeName};
pub(crate) use self::log_limit::log_limited;
pub(crate) use self::metrics::{HealthMetric, Metrics, PoolCallOutcome};
