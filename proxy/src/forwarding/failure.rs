//! What becomes of a request that an upstream or a client let down.

use std::fmt;
use std::io;
use std::time::Instant;

use http::Version;
use pingora_core::{Error, ErrorSource, ErrorType};
use pingora_proxy::FailToProxy;
use postern_common::{Code, Problem};

use crate::admission::rejection;
use crate::downstream::client_exchange::ClientExchange;
use crate::downstream::deadline::{AbortReason, RequestDeadline};
use crate::message::grpc;
use crate::state::request_context::{RequestContext, UpstreamAttempt};

/// No connection: nothing was sent, so that any method may be tried at another address.
pub(super) fn on_connect_error(ctx: &RequestContext, mut error: Box<Error>) -> Box<Error> {
    let Some(attempt) = &ctx.attempt else {
        return error;
    };
    record_attempt_failure(attempt, ctx, &error);
    error.set_retry(ctx.may_retry(&attempt.pool, false));
    error
}

/// A connection that broke: tried again only before a byte of an answer, for a method that may be
/// repeated (RFC 9110 section 9.2.2), with a body that is still at hand. One that had been idle
/// says nothing of its address: origins close those.
pub(super) fn on_exchange_error(
    client: &impl ClientExchange,
    mut error: Box<Error>,
    ctx: &RequestContext,
    connection_reused: bool,
) -> Box<Error> {
    let at_upstream = matches!(error.esource(), ErrorSource::Upstream);
    let was_idle = connection_reused
        || ctx
            .attempt
            .as_ref()
            .is_some_and(UpstreamAttempt::used_idle_connection);
    let can_repeat = client.request().method.is_idempotent() && client.can_replay_body();
    if can_repeat {
        // What Pingora would repeat only on a connection that was idle: nothing has been answered.
        error.retry.decide_reuse(true);
    } else {
        error.set_retry(false);
    }
    if let Some(attempt) = &ctx.attempt
        && at_upstream
    {
        if error.retry() && was_idle {
            tracing::debug!(
                request_id = %ctx.id,
                upstream = %attempt.pool.config.name,
                address = %attempt.permit.endpoint.address,
                error = %ErrorSummary(&error),
                "idle upstream connection closed"
            );
        } else {
            record_attempt_failure(attempt, ctx, &error);
        }
        if error.retry() {
            error.set_retry(ctx.may_retry(&attempt.pool, true));
        }
    }
    error
}

/// Counts the failure of an attempt for its address and logs why it failed: as a warning from time
/// to time, so that an outage does not fill the log, and otherwise at debug level.
fn record_attempt_failure(attempt: &UpstreamAttempt, ctx: &RequestContext, error: &Error) {
    let now = Instant::now();
    let (pool, endpoint) = (&attempt.pool, &attempt.permit.endpoint);
    pool.note_failure(endpoint, now);
    let (upstream, address, request_id, reason) = (
        &pool.config.name,
        endpoint.address,
        ctx.id,
        ErrorSummary(error),
    );
    match endpoint.warnings.take(pool.ms_at(now)) {
        Some(suppressed) => {
            tracing::warn!(%request_id, %upstream, %address, error = %reason, suppressed, "upstream attempt failed");
        }
        None => {
            tracing::debug!(%request_id, %upstream, %address, error = %reason, "upstream attempt failed");
        }
    }
}

/// Why an attempt failed: the type of the error and its first cause. The context in between is left
/// out, for it may hold bytes of an answer.
struct ErrorSummary<'a>(&'a Error);

impl fmt::Display for ErrorSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.etype().as_str())?;
        let cause = self.0.root_cause();
        if cause.is::<Error>() {
            Ok(())
        } else {
            write!(f, ": {cause}")
        }
    }
}

/// The kind of the system's error that is behind it.
fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    error
        .root_cause()
        .downcast_ref::<io::Error>()
        .map(io::Error::kind)
}

/// Writes the answer, where there is still someone to read it and nothing was written yet.
pub(super) async fn write_error_response(
    client: &mut impl ClientExchange,
    error: &Error,
    ctx: &mut RequestContext,
) -> FailToProxy {
    // A reset that follows the whole response takes nothing from it.
    if client
        .deadline()
        .is_some_and(RequestDeadline::is_response_complete)
    {
        return FailToProxy {
            error_code: 0,
            can_reuse_downstream: false,
        };
    }
    // In a tunnel an answer would be taken for what the other side says.
    let response_started = client.is_tunnel()
        || client
            .response_status()
            .is_some_and(|status| !status.is_informational());
    let code = ctx.error_code.or_else(|| problem_code(client, error));
    // An answer that is still streaming at the deadline of its route is no fault of its origin: a
    // stream of events may never end.
    let is_overdue = client.deadline().and_then(RequestDeadline::abort_reason)
        == Some(AbortReason::UpstreamDeadline);
    // Nor is a deadline that the client of a call has chosen.
    let is_cut = is_overdue && (response_started || grpc::has_client_timeout(client.request()));
    if let (Some(Code::UpstreamTimeout), None, Some(attempt)) = (code, ctx.error_code, &ctx.attempt)
        && !matches!(error.esource(), ErrorSource::Upstream)
        && !is_cut
    {
        record_attempt_failure(attempt, ctx, error);
    }
    // To HTTP/1.0 the end of the connection may be the end of the body: a part would pass for the
    // whole.
    if let (true, Version::HTTP_10, Some(connection)) = (
        response_started,
        client.request().version,
        client.connection(),
    ) {
        connection.reset_on_drop();
    }
    ctx.error_code = code;
    ctx.client_aborted = code.is_none();
    let status = code.map_or(0, |code| code.status().as_u16());
    if let (Some(code), false) = (code, response_started) {
        client.disable_keep_alive();
        if rejection::write_rejection(client, ctx, &Problem::new(code))
            .await
            .is_err()
        {
            ctx.client_aborted = true;
        }
    }
    if let (Some(code), true) = (code, response_started)
        && grpc::is_call(client.request())
    {
        // Without it the reset of the stream says what happened, as for every other request.
        let _gone_or_slow = rejection::end_grpc_call(client, code).await;
    }
    FailToProxy {
        error_code: status,
        can_reuse_downstream: false,
    }
}

/// `None` when the client has left. Whether the deadline of a route is the client's fault depends
/// on who is waited for at that moment.
fn problem_code(client: &impl ClientExchange, error: &Error) -> Option<Code> {
    match client.deadline().and_then(RequestDeadline::abort_reason) {
        Some(AbortReason::InvalidFraming) => return Some(Code::InvalidRequest),
        Some(AbortReason::ClientStalled | AbortReason::ClientDeadline) => {
            return Some(Code::RequestTimeout);
        }
        Some(AbortReason::UpstreamDeadline | AbortReason::UpstreamTimeout) => {
            return Some(Code::UpstreamTimeout);
        }
        Some(AbortReason::TokenExpired) => return Some(Code::TokenExpired),
        Some(AbortReason::BufferExhausted) => return Some(Code::Unavailable),
        None => {}
    }
    let kind = error.etype();
    let timed_out = matches!(
        kind,
        ErrorType::ConnectTimedout
            | ErrorType::ReadTimedout
            | ErrorType::WriteTimedout
            | ErrorType::TLSHandshakeTimedout
    ) || io_kind(error) == Some(io::ErrorKind::TimedOut);
    let unreachable = matches!(
        kind,
        ErrorType::ConnectRefused
            | ErrorType::ConnectNoRoute
            | ErrorType::ConnectError
            | ErrorType::BindError
            | ErrorType::SocketError
    );
    match error.esource() {
        ErrorSource::Upstream if timed_out => Some(Code::UpstreamTimeout),
        ErrorSource::Upstream if unreachable => Some(Code::UpstreamUnavailable),
        ErrorSource::Upstream => Some(Code::UpstreamFailed),
        ErrorSource::Downstream => {
            let client_disconnected = matches!(
                kind,
                ErrorType::ReadError
                    | ErrorType::WriteError
                    | ErrorType::ConnectionClosed
                    | ErrorType::H2Error
            );
            if client_disconnected {
                None
            } else {
                Some(Code::InvalidRequest)
            }
        }
        ErrorSource::Internal | ErrorSource::Unset => Some(Code::Internal),
    }
}
