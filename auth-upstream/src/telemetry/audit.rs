//! The audit log: one event for each completed operation.
//!
//! Events have the target `postern_auth::audit` and the fields `operation`, `subject`, `outcome`
//! and `request_id`. They contain no token, password or address. Each event is counted in
//! `postern_auth_operations_total` as well, and submitted to the audit trail, which stores it with
//! more fields.
//!
//! Flows return [`Audited`] values, which only [`AuditLog::complete`] creates, and the HTTP layer
//! accepts nothing else as the result of a flow. A flow without an audit event does not compile.

use std::ops::Deref;

use postern_core::Problem;

use super::AuditLog;
use crate::client::ClientContext;

named! {
    Operation {
        /// A sign-in with a password, or a further step of it.
        SignIn = "sign_in",
        Register = "register",
        Refresh = "refresh",
        /// The rejection of a refresh token that was used again after the pool's grace period.
        RefreshReuse = "refresh_reuse",
        Logout = "sign_out",
        PasswordReset = "password_reset",
        RequestResetCode = "password_reset_code",
        SocialSignIn = "social_sign_in",
        /// The link of a social identity to a pool user, and the deletion of an unverified account
        /// before it.
        SocialLink = "social_link",
        Exchange = "exchange",
        /// The completion or reversal of an interrupted registration.
        Compensate = "compensate",
        // By an operator.
        EnableAccount = "account_enable",
        DisableAccount = "account_disable",
        SignOutEverywhere = "sign_out_everywhere",
        SetPassword = "password_set",
        ChangeGroups = "group_change",
    }
}

/// The successful outcome of an operation, before it is audited.
#[derive(Debug)]
pub(crate) struct Completed<T> {
    /// The pool's subject of the user; empty if unknown.
    pub(crate) subject: String,
    pub(crate) value: T,
}

/// A result or an error of an operation for which an audit event was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Audited<T>(T);

pub(crate) type AuditedResult<T, E = Problem> = Result<Audited<T>, Audited<E>>;

// === impl Operation ===

impl Operation {
    /// Returns the kind of the identity provider that decides, if the operation has one: `password`
    /// for the user pool, `social` for the social provider.
    pub(crate) fn provider(self) -> Option<&'static str> {
        use Operation as Op;
        let password = [
            Op::SignIn,
            Op::Register,
            Op::PasswordReset,
            Op::RequestResetCode,
        ];
        let social = [Op::SocialSignIn, Op::SocialLink, Op::Exchange];
        if password.contains(&self) {
            return Some("password");
        }
        social.contains(&self).then_some("social")
    }
}

// === impl Completed ===

impl<T> Completed<T> {
    pub(crate) fn new(subject: impl Into<String>, value: T) -> Self {
        let subject = subject.into();
        Self { subject, value }
    }
}

// === impl AuditLog ===

impl AuditLog {
    /// Records the outcome of an operation and returns it as audited.
    pub(crate) fn complete<T>(
        &self,
        client: &ClientContext,
        operation: Operation,
        outcome: Result<Completed<T>, Problem>,
    ) -> AuditedResult<T> {
        let name_of = |problem: &Problem| problem.code().as_str();
        self.complete_named(client, operation, outcome, name_of)
    }

    /// As [`AuditLog::complete`], with the name of an error.
    pub(crate) fn complete_named<T, E>(
        &self,
        client: &ClientContext,
        operation: Operation,
        outcome: Result<Completed<T>, E>,
        name_of: impl FnOnce(&E) -> &'static str,
    ) -> AuditedResult<T, E> {
        let (subject, name) = match &outcome {
            Ok(completed) => (completed.subject.as_str(), "ok"),
            Err(error) => ("", name_of(error)),
        };
        self.record(client, operation, subject, name);
        outcome
            .map(|completed| Audited(completed.value))
            .map_err(Audited)
    }

    /// Records an operation that is part of another one, or that no client asked for.
    pub(crate) fn record(
        &self,
        client: &ClientContext,
        operation: Operation,
        subject: &str,
        outcome: &str,
    ) {
        self.log(client, operation, subject, outcome);
        let labels = [operation.name(), outcome];
        self.metrics.own.operations.with_label_values(&labels).inc();
    }

    /// Writes an event without counting it.
    pub(crate) fn log(
        &self,
        client: &ClientContext,
        operation: Operation,
        subject: &str,
        outcome: &str,
    ) {
        self.submit(client, operation, subject, outcome);
        let request_id = &*client.request_id;
        let operation = operation.name();
        tracing::info!(target: "postern_auth::audit", operation, subject, outcome, request_id, "audit");
    }
}

// === impl Audited ===

impl<T> Audited<T> {
    #[cfg(test)]
    pub(crate) fn into_inner(self) -> T {
        self.0
    }

    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Audited<U> {
        Audited(convert(self.0))
    }
}

impl<T> Deref for Audited<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl From<Audited<Problem>> for Problem {
    fn from(audited: Audited<Self>) -> Self {
        audited.0
    }
}
