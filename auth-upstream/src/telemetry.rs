//! Audit events, metrics and rate-limited log events.
//!
//! Enters: outcomes of operations, calls and attempts. Leaves: audit events in the log and in a
//! queue, the metrics registry and diagnostic log events. Depends on `client` and on the attempt kinds of `protection`.

mod audit;
mod audit_queue;
mod metrics;
mod pool_operation;

pub(crate) use self::audit::{AuditLog, Audited, AuditedResult, Completed, Operation};
pub(crate) use self::audit_queue::{AuditDropReason, AuditEvent, AuditQueue};
pub(crate) use self::metrics::{Metrics, PoolCallOutcome};
pub(crate) use self::pool_operation::PoolOperation;
pub(crate) use postern_core::{log_consequence, log_limited, log_outage};
