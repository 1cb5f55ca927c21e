//! Failures of requests: retries, logs and error responses.

use std::fmt;
use std::time::{Duration, Instant};

use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::{FailToProxy, Session};
use postern_core::backoff::Backoff;
use postern_core::{Code, Problem, log_outage};
use postern_http::downstream::{AbortReason, RequestDeadline};
use uuid::Uuid;

use crate::admission::rejection;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::failure_cause;
use crate::state::request_context::{RequestContext, UpstreamAttempt};
use crate::telemetry::failure_cause::FailureCause;
use crate::upstream::{Endpoint, UpstreamPool};

/// Maximum attempts of a request that its upstream keeps refusing to process.
const MAX_UNPROCESSED_ATTEMPTS: u32 = 8;

/// Pauses before the third and each later attempt of a request.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(64));

/// Pauses after a failed attempt, except the first one.
pub(super) async fn back_off(attempts: u32) {
    if let Some(failures) = attempts.checked_sub(1).filter(|failures| *failures > 0) {
        tokio::time::sleep(BACKOFF.delay(failures)).await;
    }
}

/// Handles a failed connection attempt. Nothing was sent, so that a request of any method may be
/// retried at another address. An HTTP/2 connection that is ending may be the reason.
pub(super) fn on_connect_error(attempt: &UpstreamAttempt<'_>, mut error: Box<Error>) -> Box<Error> {
    if is_unprocessed(&error) && attempt.number < MAX_UNPROCESSED_ATTEMPTS {
        error.set_retry(true);
        return error;
    }
    let (pool, endpoint) = (attempt.pool, &attempt.permit.endpoint);
    let cause = failure_cause::of_attempt(&error);
    record_attempt_failure(attempt.id, (pool, endpoint), &error, cause, true);
    error.set_retry(attempt.may_retry(false));
    error
}

/// Returns whether an HTTP/2 upstream has said that it did not process the request (RFC 9113 section
/// 8.7): GOAWAY, which fails only the streams above its last one (section 6.8), or REFUSED_STREAM.
fn is_unprocessed(error: &Error) -> bool {
    let error = error.root_cause().downcast_ref::<h2::Error>();
    error.is_some_and(|error| {
        let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (error.is_go_away() || (error.is_reset() && is_refused))
    })
}

/// Handles a failure during an exchange. The request is retried only if no byte of a response was
/// received, the body can be sent again, and the method is idempotent (RFC 9110 section 9.2.2) or the
/// upstream has not processed the request. A failure of a reused connection is not counted for its
/// address, because origins close idle connections.
pub(super) fn on_exchange_error(
    client: &Session,
    mut error: Box<Error>,
    attempt: &UpstreamAttempt<'_>,
    was_idle: bool,
    has_response: bool,
) -> Box<Error> {
    let at_upstream = matches!(error.esource(), ErrorSource::Upstream);
    let has_body = !client.as_ref().retry_buffer_truncated();
    let may_repeat = !has_response && attempt.number < MAX_UNPROCESSED_ATTEMPTS;
    if at_upstream && may_repeat && is_unprocessed(&error) {
        error.set_retry(has_body);
        return error;
    }
    let can_repeat = client.req_header().method.is_idempotent() && has_body;
    if can_repeat {
        // Retryable as Pingora would allow on a reused connection only: no response was received.
        error.retry.decide_reuse(true);
    } else {
        error.set_retry(false);
    }
    if !at_upstream {
        return error;
    }
    let (pool, endpoint) = (attempt.pool, &attempt.permit.endpoint);
    if error.retry() && was_idle {
        tracing::debug!(
            request_id = %attempt.id,
            upstream = %pool.config.name,
            address = %endpoint.address,
            error = %ErrorSummary(&error),
            "idle upstream connection closed"
        );
    } else {
        let cause = failure_cause::of_attempt(&error);
        let is_counted = !client
            .deadline()
            .is_some_and(RequestDeadline::awaits_client);
        record_attempt_failure(attempt.id, (pool, endpoint), &error, cause, is_counted);
    }
    if error.retry() {
        // An idle connection that the upstream has closed says nothing of its load.
        error.set_retry(attempt.may_retry(!was_idle));
    }
    error
}

/// Logs the failure of an attempt, and counts it for its address unless a slow client has caused it.
/// Warnings are rate-limited, so that an outage does not flood the log; further failures are logged
/// at debug level.
fn record_attempt_failure(
    request_id: Uuid,
    (pool, endpoint): (&UpstreamPool, &Endpoint),
    error: &Error,
    cause: FailureCause,
    is_counted: bool,
) {
    match is_counted {
        true => pool.note_failure(endpoint, cause, Instant::now()),
        false => pool.count_failure(cause),
    }
    let cause = cause.as_str();
    let (upstream, address) = (&pool.config.name, &endpoint.address);
    let reason = ErrorSummary(error);
    log_outage!(format!("upstream {upstream}"), %request_id, %upstream, %address, cause, error = %reason, "upstream attempt failed");
}

/// The cause of a failed attempt: the type of the error and its root cause. The context in between
/// is omitted, because it may contain bytes of a response, except that of a failed TLS handshake: it
/// names what is wrong with the certificate, and the root cause is only the local address.
struct ErrorSummary<'a>(&'a Error);

impl fmt::Display for ErrorSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.etype().as_str())?;
        if *self.0.etype() == ErrorType::TLSHandshakeFailure
            && let Some(context) = innermost_context(self.0)
        {
            return write!(f, ": {context}");
        }
        let cause = self.0.root_cause();
        if cause.is::<Error>() {
            Ok(())
        } else {
            write!(f, ": {cause}")
        }
    }
}

/// Returns the explanation of the innermost error of Pingora in the chain.
fn innermost_context(error: &Error) -> Option<&str> {
    let inner = error.cause.as_deref();
    match inner.and_then(|cause| cause.downcast_ref::<Box<Error>>()) {
        Some(inner) => innermost_context(inner),
        None => error.context.as_ref().map(|context| context.as_str()),
    }
}

/// Writes the error response, if the client is connected and no response has started.
pub(super) async fn write_error_response(
    client: &mut Session,
    error: &Error,
    ctx: &mut RequestContext,
) -> FailToProxy {
    // A reset after the whole response does not affect it.
    if is_response_complete(client) {
        return FailToProxy {
            error_code: 0,
            can_reuse_downstream: true,
        };
    }
    if let Some((_, endpoint, _)) = ctx.last_attempt() {
        endpoint.note_abandoned();
    }
    // In a tunnel, an error response would be taken for data of the peer.
    let response_started = client.was_upgraded()
        || client
            .response_status()
            .is_some_and(|status| !status.is_informational());
    let own_code = ctx.error_code.or_else(|| own_code(error));
    let code = own_code.or_else(|| problem_code(client, error));
    // A response that is still streaming at the deadline of its route is not a failure of the
    // origin: an event stream may be endless.
    let is_overdue = client.deadline().and_then(RequestDeadline::abort_reason)
        == Some(AbortReason::UpstreamDeadline);
    let is_cut = is_overdue && response_started;
    if let (Some(Code::UpstreamTimeout), None, Some((pool, endpoint, _))) =
        (code, own_code, ctx.last_attempt())
        && !matches!(error.esource(), ErrorSource::Upstream)
        && !is_cut
    {
        let reason = client.deadline().and_then(RequestDeadline::abort_reason);
        let cause = reason.map_or(FailureCause::ResponseTimeout, |reason| {
            failure_cause::of_abort(reason).0
        });
        record_attempt_failure(ctx.request.id, (pool, endpoint), error, cause, true);
    }
    ctx.failure = Some(failure_cause::of_request(client, error, own_code, code));
    ctx.error_code = code;
    ctx.client_aborted = code.is_none();
    let status = code.map_or(0, |code| code.status().as_u16());
    if let (Some(code), false) = (code, response_started) {
        client.close_after_response();
        if rejection::write_rejection(client, ctx, &Problem::new(code))
            .await
            .is_err()
        {
            ctx.client_aborted = true;
        }
    }
    FailToProxy {
        error_code: status,
        // The session is finished: the client may be sending its request still.
        can_reuse_downstream: is_response_complete(client),
    }
}

fn is_response_complete(client: &Session) -> bool {
    let deadline = client.deadline();
    deadline.is_some_and(RequestDeadline::is_response_complete)
}

pub(super) fn fail_with(code: Code) -> Box<Error> {
    Error::new(ErrorType::new(code.as_str()))
}

/// Returns the code of an error of [`fail_with`].
fn own_code(error: &Error) -> Option<Code> {
    if let ErrorType::Custom(name) = error.etype() {
        Code::named(name)
    } else {
        None
    }
}

/// Returns the problem code of an error; `None` if the client has disconnected. Whether a deadline
/// counts as a timeout of the client or of the upstream depends on which of them the gateway was
/// waiting for.
fn problem_code(client: &Session, error: &Error) -> Option<Code> {
    if let Some(reason) = client.deadline().and_then(RequestDeadline::abort_reason) {
        return Some(failure_cause::of_abort(reason).1);
    }
    let client_disconnected = matches!(
        error.etype(),
        ErrorType::ReadError
            | ErrorType::WriteError
            | ErrorType::ConnectionClosed
            | ErrorType::H2Error
    );
    match error.esource() {
        ErrorSource::Upstream => Some(failure_cause::upstream_code(error)),
        ErrorSource::Downstream if client_disconnected => None,
        ErrorSource::Downstream => Some(Code::InvalidRequest),
        ErrorSource::Internal | ErrorSource::Unset => Some(Code::Internal),
    }
}
