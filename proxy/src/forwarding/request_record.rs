//! The record of a completed request: metrics, span and access event.

use std::time::{Duration, Instant};

use http::Version;
use pingora_core::Error;
use pingora_proxy::Session;
use postern_core::Code;
use postern_core::token::Caller;
use uuid::Uuid;

use super::spans;
use crate::admission::authorize::request_authority;
use crate::admission::early_ends;
use crate::downstream::deadline::{AbortReason, RequestDeadline};
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::failure_cause;
use crate::state::GatewayState;
use crate::state::request_context::{RequestContext, UpstreamAttempt};
use crate::telemetry::access_log::AccessEvent;
use crate::telemetry::failure_cause::FailureCause;
use crate::telemetry::live_tail::TailDetails;
use crate::telemetry::metrics::{CLIENT_CLOSED_CODE, NO_ROUTE, OK_CODE};

/// The final status, code and duration of a request.
struct RequestOutcome {
    status: u16,
    code: &'static str,
    elapsed: Duration,
    cause: Option<FailureCause>,
}

/// Records a completed request.
pub(super) fn record_request(
    state: &GatewayState,
    client: &Session,
    error: Option<&Error>,
    ctx: &RequestContext,
) {
    let written = client.response_status().map(|status| status.as_u16());
    let abandoned = ctx.client_aborted
        || (error.is_some()
            && ctx.error_code.is_none()
            && !client
                .deadline()
                .is_some_and(RequestDeadline::is_response_complete));
    // The stream to an HTTP/2 upstream was reset. Over HTTP/2, the stream of the client counts.
    let is_reset = |attempt: &UpstreamAttempt| attempt.pool.config.http2;
    if abandoned
        && client.req_header().version != Version::HTTP_2
        && ctx.attempt.as_ref().is_some_and(is_reset)
        && let (Some(_share), Some(address)) = (ctx.client_share(), ctx.client_address)
    {
        early_ends::note(state, address);
    }
    let is_expired = client.deadline().and_then(RequestDeadline::abort_reason)
        == Some(AbortReason::TokenExpired);
    let (status, code) = match (ctx.error_code, written) {
        (Some(code), written) => (written.unwrap_or(0), code.as_str()),
        (None, written) if abandoned => (written.unwrap_or(499), CLIENT_CLOSED_CODE),
        (None, Some(status)) if is_expired => (status, Code::TokenExpired.as_str()),
        (None, Some(status)) => (status, ctx.upstream_code.map_or(OK_CODE, Code::as_str)),
        (None, None) => (499, CLIENT_CLOSED_CODE),
    };
    let cause = ctx.failure.or_else(|| match code {
        CLIENT_CLOSED_CODE => Some(FailureCause::ClientDisconnected),
        _ if is_expired => Some(FailureCause::TokenExpired),
        _ => ctx.error_code.and_then(failure_cause::of_code),
    });
    let outcome = RequestOutcome {
        status,
        code,
        elapsed: ctx.started.elapsed(),
        cause,
    };
    match ctx.route {
        Some(route) => {
            let (metrics, name) = (
                &ctx.config.route_metrics[route],
                ctx.config.route_table.routes[route].name.as_str(),
            );
            metrics.observe(&state.metrics, name, outcome.elapsed.as_secs_f64());
            if code == OK_CODE {
                metrics.count_ok(&state.metrics, name, status);
            } else {
                state.metrics.count(name, status, code);
            }
        }
        None => state.metrics.count(NO_ROUTE, status, code),
    }
    if let Some(attempt) = &ctx.attempt {
        let upstream_s = ctx.upstream_latency_us.map_or_else(
            || seconds_since(attempt.started),
            |micros| micros as f64 / 1e6,
        );
        attempt.pool.latency.observe(upstream_s);
    }
    if let Some(tracer) = state.tracer.as_ref().filter(|_| ctx.trace.is_recorded) {
        let (status, code, elapsed) = (outcome.status, outcome.code, outcome.elapsed);
        spans::record(tracer, client.req_header(), ctx, (status, code, elapsed));
    }
    write_access_event(state, client, ctx, &outcome);
}

fn seconds_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

fn write_access_event(
    state: &GatewayState,
    client: &Session,
    ctx: &RequestContext,
    outcome: &RequestOutcome,
) {
    let (mut id, mut trace) = (Uuid::encode_buffer(), Uuid::encode_buffer());
    let head = client.req_header();
    let path = head.raw_path();
    let path = path
        .split(|byte| *byte == b'?')
        .next()
        .filter(|_| ctx.has_canonical_target);
    let service = ctx
        .caller
        .as_ref()
        .and_then(Caller::service)
        .map(|service| &*service.service_id);
    let attempt = ctx.attempt.as_ref();
    let request_bytes = client.body_bytes_read() as u64;
    let response_bytes = client.body_bytes_sent() as u64;
    let event = AccessEvent {
        request_id: ctx.id.hyphenated().encode_lower(&mut id),
        method: Some(head.method.as_str()).filter(|method| method.len() <= 16),
        path: path.and_then(|path| std::str::from_utf8(path).ok()),
        route: Some(ctx.route().map_or(NO_ROUTE, |route| route.name.as_str())),
        status: outcome.status,
        code: outcome.code,
        cause: outcome.cause.map(FailureCause::as_str),
        report_only: ctx.report_only_code.map(Code::as_str),
        kind: ctx.caller.as_ref().map(|caller| match caller {
            Caller::User(_) => "user",
            Caller::Service(_) => "service",
        }),
        issuer: ctx.caller.as_ref().map(Caller::issuer),
        subject: ctx.caller.as_ref().map(Caller::subject),
        caller_service: service,
        upstream: attempt
            .map(|attempt| &attempt.pool)
            .or(ctx.unavailable.as_ref())
            .map(|pool| pool.config.name.as_str()),
        upstream_address: attempt.map(|attempt| &*attempt.permit.endpoint.address_text),
        encoding: ctx.encoder.as_ref().map(|encoder| encoder.coding.as_str()),
        attempts: ctx.attempts,
        duration_us: u64::try_from(outcome.elapsed.as_micros()).unwrap_or(u64::MAX),
        upstream_us: ctx.upstream_latency_us,
        request_bytes,
        response_bytes,
        protocol: protocol_name(head.version),
        trace_id: Some(
            Uuid::from_u128(ctx.trace.id)
                .simple()
                .encode_lower(&mut trace),
        ),
        client: ctx.client_address,
    };
    event.write(
        &state.access_log,
        &state.live_tail,
        &tail_details(client, ctx, outcome),
        ctx.start_time.plus(outcome.elapsed),
    );
}

/// Returns what the live tail shows beside the access event.
fn tail_details<'a>(
    client: &'a Session,
    ctx: &'a RequestContext,
    outcome: &RequestOutcome,
) -> TailDetails<'a> {
    let caller = ctx.caller.as_ref();
    TailDetails {
        host: request_authority(client.req_header()),
        decision: match outcome.code {
            _ if ctx.is_forwarded => "forwarded",
            OK_CODE => "answered",
            CLIENT_CLOSED_CODE => "aborted",
            _ => "rejected",
        },
        groups: caller
            .and_then(Caller::user)
            .map_or(&[], |user| &*user.groups),
        scopes: caller.map_or(&[], Caller::scopes),
    }
}

fn protocol_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}
