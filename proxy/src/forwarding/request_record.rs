//! The record of a completed request: metrics, span and access event.

use std::time::Duration;

use http::Version;
use pingora::Error;
use pingora_proxy::Session;
use postern_core::Code;
use postern_core::token::Caller;
use postern_http::downstream::{AbortReason, RequestDeadline};
use uuid::Uuid;

use super::spans;
use crate::admission::authorize::request_authority;
use crate::admission::early_ends;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::failure_cause;
use crate::state::GatewayState;
use crate::state::request_context::RequestContext;
use crate::telemetry::access_log::AccessEvent;
use crate::telemetry::failure_cause::FailureCause;
use crate::telemetry::live_tail::TailDetails;
use crate::telemetry::metrics::{CLIENT_CLOSED_CODE, OK_CODE};

/// The final status, code and duration of a request.
struct RequestOutcome {
    status: u16,
    code: &'static str,
    elapsed: Duration,
    cause: Option<FailureCause>,
}

pub(super) fn record_request(
    state: &GatewayState,
    client: &Session,
    error: Option<&Error>,
    ctx: &RequestContext,
) {
    let request = &ctx.request;
    let written = client.response_status().map(|status| status.as_u16());
    let abandoned = ctx.client_aborted
        || (error.is_some()
            && ctx.error_code.is_none()
            && !client
                .deadline()
                .is_some_and(RequestDeadline::is_response_complete));
    // The stream to an HTTP/2 upstream was reset. Over HTTP/2, the stream of the client counts.
    if abandoned
        && client.req_header().version != Version::HTTP_2
        && ctx
            .last_attempt()
            .is_some_and(|(pool, ..)| pool.config.http2)
        && let (Some(_share), Some(address)) = (request.client_share(), request.client_address)
    {
        early_ends::note(state, address);
    }
    let is_expired = client.deadline().and_then(RequestDeadline::abort_reason)
        == Some(AbortReason::TokenExpired);
    let (status, code) = match (ctx.error_code, written) {
        (Some(code), written) => (written.unwrap_or(0), code.as_str()),
        (None, written) if abandoned => (written.unwrap_or(499), CLIENT_CLOSED_CODE),
        (None, Some(status)) if is_expired => (status, Code::TokenExpired.as_str()),
        (None, Some(status)) => {
            let of_upstream = ctx.forwarding.as_ref().and_then(|it| it.upstream_code);
            (status, of_upstream.map_or(OK_CODE, Code::as_str))
        }
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
        elapsed: request.started.elapsed(),
        cause,
    };
    let name = request.route_name();
    if request.route.is_some() {
        let duration = state.metrics.duration.with_label_values(&[name]);
        duration.observe(outcome.elapsed.as_secs_f64());
    }
    state.metrics.count(name, status, code);
    if let Some(code) = request.reported.map(Code::as_str) {
        let counter = &state.metrics.report_only;
        counter.with_label_values(&[name, code]).inc();
    }
    if let Some((pool, _, started)) = ctx.last_attempt() {
        let latency_us = ctx.forwarding.as_ref().and_then(|it| it.latency_us);
        let upstream_s = latency_us.map_or_else(
            || started.elapsed().as_secs_f64(),
            |micros| micros as f64 / 1e6,
        );
        pool.latency.observe(upstream_s);
    }
    let is_recorded = request.trace.is_recorded;
    if let Some(tracer) = state.tracer.as_ref().filter(|_| is_recorded) {
        let result = (status, code, outcome.elapsed);
        spans::record(tracer, client.req_header(), ctx, result);
    }
    write_access_event(state, client, ctx, &outcome);
}

fn write_access_event(
    state: &GatewayState,
    client: &Session,
    ctx: &RequestContext,
    outcome: &RequestOutcome,
) {
    let (request, forwarding) = (&ctx.request, ctx.forwarding.as_ref());
    let caller = request.caller.as_ref();
    let (mut id, mut trace) = (Uuid::encode_buffer(), Uuid::encode_buffer());
    let head = client.req_header();
    let path = head.raw_path();
    let path = path
        .split(|byte| *byte == b'?')
        .next()
        .filter(|_| request.has_canonical_target);
    let service = caller.and_then(Caller::service);
    let request_bytes = client.body_bytes_read() as u64;
    let response_bytes = client.body_bytes_sent() as u64;
    let event = AccessEvent {
        request_id: request.id.hyphenated().encode_lower(&mut id),
        method: Some(head.method.as_str()).filter(|method| method.len() <= 16),
        path: path.and_then(|path| std::str::from_utf8(path).ok()),
        route: Some(request.route_name()),
        status: outcome.status,
        code: outcome.code,
        cause: outcome.cause.map(FailureCause::as_str),
        report_only: request.reported.map(Code::as_str),
        kind: caller.map(|caller| match caller {
            Caller::User(_) => "user",
            Caller::Service(_) => "service",
        }),
        issuer: caller.map(Caller::issuer),
        subject: caller.map(Caller::subject),
        caller_service: service.map(|service| &*service.service_id),
        upstream: forwarding
            .filter(|forwarding| forwarding.attempts > 0)
            .map(|forwarding| forwarding.pool.config.name.as_str()),
        upstream_address: ctx
            .last_attempt()
            .map(|(_, endpoint, _)| &*endpoint.address_text),
        encoding: forwarding
            .and_then(|forwarding| forwarding.encoder.as_ref())
            .map(|encoder| encoder.coding().as_str()),
        attempts: forwarding.map_or(0, |forwarding| forwarding.attempts),
        duration_us: u64::try_from(outcome.elapsed.as_micros()).unwrap_or(u64::MAX),
        upstream_us: forwarding.and_then(|forwarding| forwarding.latency_us),
        request_bytes,
        response_bytes,
        protocol: protocol_name(head.version),
        trace_id: Some(
            Uuid::from_u128(request.trace.id)
                .simple()
                .encode_lower(&mut trace),
        ),
        client: request.client_address,
    };
    event.write(
        &state.access_log,
        &state.live_tail,
        &tail_details(client, ctx, outcome),
        request.start_time.plus(outcome.elapsed),
    );
}

/// Returns what the live tail shows beside the access event.
fn tail_details<'a>(
    client: &'a Session,
    ctx: &'a RequestContext,
    outcome: &RequestOutcome,
) -> TailDetails<'a> {
    let caller = ctx.request.caller.as_ref();
    TailDetails {
        host: request_authority(client.req_header()),
        decision: match outcome.code {
            _ if ctx.forwarding.is_some() => "forwarded",
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
