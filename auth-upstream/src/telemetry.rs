//! Audit events, metrics and rate-limited log events.

mod audit;
mod audit_queue;
mod metrics;
mod pool_operation;

pub(crate) use self::audit::{Audited, AuditedResult, Completed, Operation};
pub(crate) use self::audit_queue::{AuditDropReason, AuditEvent, AuditLog};
pub(crate) use self::metrics::{Metrics, PoolCallOutcome};
pub(crate) use self::pool_operation::PoolOperation;
pub(crate) use postern_core::{log_consequence, log_limited, log_outage};
