//! The cause of a failure, from the error of Pingora and the reason for which the gateway aborted
//! the request.

use std::io;

use pingora::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;
use postern_core::Code;
use postern_http::downstream::{AbortReason, RequestDeadline};

use crate::downstream::session_ext::SessionExt;
use crate::telemetry::failure_cause::FailureCause;

pub(super) fn of_attempt(error: &Error) -> FailureCause {
    let kind = error.etype();
    let io = io_kind(error);
    if matches!(kind, ErrorType::ConnectRefused) || io == Some(io::ErrorKind::ConnectionRefused) {
        return FailureCause::ConnectRefused;
    }
    if matches!(
        kind,
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout
    ) {
        return FailureCause::ConnectTimeout;
    }
    if matches!(
        kind,
        ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert | ErrorType::HandshakeError
    ) {
        return FailureCause::TlsFailed;
    }
    // A malformed TLS record.
    if io == Some(io::ErrorKind::InvalidData) {
        return FailureCause::InvalidResponse;
    }
    let is_connect_error = matches!(
        kind,
        ErrorType::ConnectNoRoute
            | ErrorType::ConnectError
            | ErrorType::ConnectProxyFailure
            | ErrorType::BindError
            | ErrorType::SocketError
    );
    let is_write_error = matches!(kind, ErrorType::WriteTimedout | ErrorType::WriteError);
    let timed_out = io == Some(io::ErrorKind::TimedOut);
    if is_connect_error {
        return match timed_out {
            true => FailureCause::ConnectTimeout,
            false => FailureCause::ConnectFailed,
        };
    }
    if timed_out || matches!(kind, ErrorType::ReadTimedout | ErrorType::WriteTimedout) {
        return match is_write_error {
            true => FailureCause::WriteTimeout,
            false => FailureCause::ResponseTimeout,
        };
    }
    let is_closed = is_write_error
        || matches!(
            kind,
            ErrorType::ReadError | ErrorType::ConnectionClosed | ErrorType::H2Error
        );
    match is_closed {
        true => FailureCause::Reset,
        false => FailureCause::InvalidResponse,
    }
}

pub(super) fn upstream_code(error: &Error) -> Code {
    let cause = of_attempt(error);
    let timeouts = [
        FailureCause::ConnectTimeout,
        FailureCause::ResponseTimeout,
        FailureCause::WriteTimeout,
    ];
    let unreachable = [FailureCause::ConnectRefused, FailureCause::ConnectFailed];
    if timeouts.contains(&cause) {
        Code::UpstreamTimeout
    } else if unreachable.contains(&cause) {
        Code::UpstreamUnavailable
    } else {
        Code::UpstreamFailed
    }
}

pub(super) fn of_abort(reason: AbortReason) -> (FailureCause, Code) {
    match reason {
        AbortReason::InvalidFraming => (FailureCause::InvalidRequest, Code::InvalidRequest),
        AbortReason::ClientStalled => (FailureCause::ClientTimeout, Code::RequestTimeout),
        AbortReason::ClientDeadline => (FailureCause::Deadline, Code::RequestTimeout),
        AbortReason::UpstreamDeadline => (FailureCause::Deadline, Code::UpstreamTimeout),
        AbortReason::UpstreamTimeout => (FailureCause::ResponseTimeout, Code::UpstreamTimeout),
        AbortReason::TokenExpired => (FailureCause::TokenExpired, Code::TokenExpired),
        AbortReason::BufferExhausted => (FailureCause::BufferExhausted, Code::Unavailable),
    }
}

/// Returns the cause of a request that ends with an error. `own_code` is the code with which the gateway
/// itself ends it, `code` that of the response; without one the client has disconnected.
pub(super) fn of_request(
    client: &Session,
    error: &Error,
    own_code: Option<Code>,
    code: Option<Code>,
) -> FailureCause {
    if let Some(cause) = own_code.and_then(of_code) {
        return cause;
    }
    if let Some(reason) = client.deadline().and_then(RequestDeadline::abort_reason) {
        return of_abort(reason).0;
    }
    match error.esource() {
        ErrorSource::Upstream => of_attempt(error),
        ErrorSource::Downstream if code.is_none() => FailureCause::ClientDisconnected,
        ErrorSource::Downstream => FailureCause::InvalidRequest,
        ErrorSource::Internal | ErrorSource::Unset => FailureCause::Internal,
    }
}

/// Returns the cause of a code with which the gateway itself ends a request, if it is one of a
/// failure and not of a rejection.
pub(super) fn of_code(code: Code) -> Option<FailureCause> {
    [
        (Code::BodyTooLarge, FailureCause::BodyTooLarge),
        (Code::UpstreamUnavailable, FailureCause::NoEndpoint),
        (Code::Internal, FailureCause::Internal),
    ]
    .into_iter()
    .find_map(|(own, cause)| (own == code).then_some(cause))
}

/// Returns the kind of the underlying I/O error.
fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    error
        .root_cause()
        .downcast_ref::<io::Error>()
        .map(io::Error::kind)
}
