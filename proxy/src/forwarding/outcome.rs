//! What came of a request: told to the upstream's statistics, the client, the access log and the
//! metrics.

use std::sync::atomic::Ordering;
use std::time::Instant;

use http::header::{CONNECTION, CONTENT_LENGTH, SET_COOKIE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use pingora::http::ResponseHeader;
use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::Session;
use postern_common::Code;
use postern_common::clock::Timestamp;
use postern_common::http::CODE;
use postern_common::token::Caller;
use uuid::Uuid;

use crate::admission::response_headers::dress_common;
use crate::downstream::client_exchange::Client;
use crate::downstream::deadline::{Fault, Watch};
use crate::forwarding::identity_headers::REQUEST_ID;
use crate::message::headers;
use crate::state::State;
use crate::state::request_context::Context;
use crate::telemetry::access_log::Event;
use crate::telemetry::metrics::NO_ROUTE;
use crate::telemetry::metrics::OK;
use crate::telemetry::spans::Span;
use crate::upstream::Body;

/// The code of a request whose client left.
const ABANDONED: &str = "client_closed";

/// Checks the head of an answer that Pingora has read, as the fast path checks those that it reads.
///
/// # Errors
/// A failure of the upstream: the end of its answer is uncertain (RFC 9112 section 6.3), or it
/// switches protocols although the request did not ask for that on a route that allows it (RFC 9110
/// section 15.2.2).
pub(super) fn check_answer(
    session: &Session,
    response: &ResponseHeader,
    ctx: &Context,
) -> Result<()> {
    let request = session.req_header();
    let may_upgrade = headers::is_websocket_upgrade(request)
        && headers::names_websocket(&response.headers)
        && response.version == Version::HTTP_11
        && ctx.route().is_some_and(|route| route.websocket);
    if response.status == StatusCode::SWITCHING_PROTOCOLS && !may_upgrade {
        return Err(invalid_answer(
            "an upgrade that the request did not ask for",
        ));
    }
    let minor = u8::from(response.version != Version::HTTP_10);
    match Body::of(
        response.status,
        minor,
        &response.headers,
        request.method == Method::HEAD,
    ) {
        Ok(_) => Ok(()),
        Err(_) => Err(invalid_answer("an answer whose end is uncertain")),
    }
}

/// The error of an answer that is not forwarded.
pub(super) fn invalid_answer(reason: &'static str) -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, reason).into_up()
}

/// The head of a response has arrived.
pub(super) fn note_response(client: &impl Client, response: &ResponseHeader, ctx: &mut Context) {
    let status = response.status;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    if let Some(attempt) = &ctx.attempt {
        let now = Instant::now();
        let micros = u64::try_from((now - attempt.began).as_micros()).unwrap_or(u64::MAX);
        attempt
            .pool
            .note_answer(&attempt.ticket.endpoint, status.as_u16(), micros, now);
        if let Some(watch) = client.watch() {
            watch.note_answer(ctx.read_timeout(&attempt.pool), now);
        }
        ctx.upstream_us = Some(micros);
    }
    if is_refusal(status) {
        let code = response
            .headers
            .get(&CODE)
            .and_then(|code| code.to_str().ok());
        ctx.refused_behind = code.and_then(Code::named);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS
        && let Some(wire) = client.wire()
    {
        if let Some(at) = tunnel_expiry(ctx) {
            wire.expire_tunnel(at);
        }
        wire.open_tunnel();
    }
}

/// The end of an answer has come from the upstream, which has done with the request if it has had
/// all of it.
pub(super) fn note_answer_complete(client: &impl Client, ctx: &Context) {
    if client.watch().is_some_and(Watch::is_complete) {
        ctx.note_answer_complete();
    }
}

/// When a WebSocket ends because its token expires, unless the route lets it outlive the token.
fn tunnel_expiry(ctx: &Context) -> Option<Instant> {
    let caller = ctx
        .caller
        .as_ref()
        .filter(|_| !ctx.route().is_some_and(|route| route.outlives_token))?;
    let now = ctx.began_at.plus(ctx.started.elapsed());
    let left = Timestamp::from_unix_seconds(caller.expires_at()).since(now);
    Instant::now().checked_add(left)
}

fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// Adds what every answer carries.
pub(super) fn dress(
    state: &State,
    client: &mut impl Client,
    response: &mut ResponseHeader,
    ctx: &Context,
) -> Result<()> {
    if response.headers.contains_key(SET_COOKIE) && !ctx.route().is_some_and(|route| route.cookies)
    {
        response.remove_header(&SET_COOKIE);
    }
    strip(response)?;
    if response.status.is_informational() {
        return Ok(());
    }
    // HTTP/1.0 has no chunks (RFC 9112 section 6.1): the end of the connection ends the body.
    if client.request().version == Version::HTTP_10
        && response.remove_header(&TRANSFER_ENCODING).is_some()
    {
        client.close();
    }
    if state.stopping.load(Ordering::Relaxed) {
        client.close();
    }
    dress_common(client, response, ctx)?;
    // Into the bare map, as on the way there.
    let empty = http::Response::new(()).into_parts().0;
    let mut parts =
        http::response::Parts::from(std::mem::replace(response, ResponseHeader::from(empty)));
    let mut text = Uuid::encode_buffer();
    let id: &str = ctx.id.hyphenated().encode_lower(&mut text);
    if let Ok(id) = HeaderValue::from_str(id) {
        parts.headers.reserve(3);
        parts.headers.insert(&REQUEST_ID, id);
    }
    *response = ResponseHeader::from(parts);
    Ok(())
}

/// Removes the fields of the upstream's connection, those that its `Connection` names included (RFC
/// 9110 section 7.6.1), and those that only the gateway may write. How a body is framed stays,
/// where there is one.
fn strip(response: &mut ResponseHeader) -> Result<()> {
    let has_body = !response.status.is_informational() && response.status != StatusCode::NO_CONTENT;
    let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
    let named = headers::named_by_connection(&response.headers);
    let goes = |name: &HeaderName| match *name {
        TRANSFER_ENCODING | CONTENT_LENGTH => !has_body,
        CONNECTION | UPGRADE if is_upgrade => false,
        _ => {
            let text = name.as_str();
            headers::is_of_connection(text) || headers::is_own(text) || named.contains(name)
        }
    };
    while let Some(name) = response.headers.keys().find(|name| goes(name)).cloned() {
        response.remove_header(&name);
    }
    if is_upgrade {
        response.insert_header(CONNECTION, "Upgrade")?;
    }
    Ok(())
}

/// Takes out of trailers what no head of a response may say either.
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    let goes = |name: &HeaderName| {
        *name == SET_COOKIE
            || headers::is_own(name.as_str())
            || headers::is_of_connection(name.as_str())
    };
    while let Some(name) = trailers.keys().find(|name| goes(name)).cloned() {
        trailers.remove(&name);
    }
}

/// One access event, and the metrics.
pub(super) fn tell(state: &State, client: &impl Client, error: Option<&Error>, ctx: &Context) {
    let written = client.written().map(|status| status.as_u16());
    let abandoned = ctx.is_abandoned
        || (error.is_some()
            && ctx.refused.is_none()
            && !client.watch().is_some_and(Watch::is_answered));
    let is_expired = client.watch().and_then(Watch::fault) == Some(Fault::Expired);
    let (status, code) = match (ctx.refused, written) {
        (Some(code), written) => (written.unwrap_or(0), code.as_str()),
        (None, written) if abandoned => (written.unwrap_or(499), ABANDONED),
        (None, Some(status)) if is_expired => (status, Code::TokenExpired.as_str()),
        (None, Some(status)) => (status, ctx.refused_behind.map_or(OK, Code::as_str)),
        (None, None) => (499, ABANDONED),
    };
    let elapsed = ctx.started.elapsed();
    match ctx.route {
        Some(route) => {
            let (metrics, name) = (
                &ctx.live.metrics[route],
                ctx.live.table.routes[route].name.as_str(),
            );
            metrics.observe(&state.metrics, name, elapsed.as_secs_f64());
            if code == OK {
                metrics.count_ok(&state.metrics, name, status);
            } else {
                state.metrics.count(name, status, code);
            }
        }
        None => state.metrics.count(NO_ROUTE, status, code),
    }
    if let Some(attempt) = &ctx.attempt {
        let upstream_s = ctx
            .upstream_us
            .map_or_else(|| since(attempt.began), |micros| micros as f64 / 1e6);
        attempt.pool.latency.observe(upstream_s);
    }
    if let Some(traces) = state.traces.as_ref().filter(|_| ctx.trace.is_sampled()) {
        traces.send(span(state, client, ctx, (status, code), elapsed));
    }
    if state.access.is_on() {
        write_event(state, client, ctx, (status, code), elapsed);
    }
}

fn since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

fn span(
    state: &State,
    client: &impl Client,
    ctx: &Context,
    (status, code): (u16, &'static str),
    elapsed: std::time::Duration,
) -> Span {
    let end = u128::try_from(state.clock.now().0).unwrap_or(0) * 1_000_000;
    Span {
        trace: ctx.trace.id,
        id: ctx.trace.span,
        parent: ctx.trace.parent,
        method: client.request().method.as_str().chars().take(16).collect(),
        route: ctx
            .route()
            .map_or(NO_ROUTE, |route| &route.pattern.path.template)
            .to_owned(),
        status,
        code,
        upstream: ctx
            .attempt
            .as_ref()
            .map(|attempt| attempt.pool.config.name.clone()),
        begin: end.saturating_sub(elapsed.as_nanos()),
        end,
    }
}

fn write_event(
    state: &State,
    client: &impl Client,
    ctx: &Context,
    (status, code): (u16, &str),
    elapsed: std::time::Duration,
) {
    let (mut id, mut trace) = (Uuid::encode_buffer(), Uuid::encode_buffer());
    let head = client.request();
    let path = head.raw_path();
    let path = path
        .split(|byte| *byte == b'?')
        .next()
        .filter(|_| ctx.is_canonical);
    let service = ctx
        .caller
        .as_ref()
        .and_then(Caller::service)
        .map(|service| &*service.service_id);
    let (request_bytes, response_bytes) = client.bytes();
    let event = Event {
        request_id: ctx.id.hyphenated().encode_lower(&mut id),
        method: Some(head.method.as_str()).filter(|method| method.len() <= 16),
        path: path.and_then(|path| std::str::from_utf8(path).ok()),
        route: ctx
            .route()
            .map(|route| route.pattern.path.template.as_str()),
        status,
        code,
        audit: ctx.audit.map(Code::as_str),
        kind: ctx.caller.as_ref().map(|caller| match caller {
            Caller::User(_) => "user",
            Caller::Service(_) => "service",
        }),
        issuer: ctx.caller.as_ref().map(Caller::issuer),
        subject: ctx.caller.as_ref().map(Caller::subject),
        service,
        upstream: ctx
            .attempt
            .as_ref()
            .map(|attempt| attempt.pool.config.name.as_str()),
        attempts: ctx.attempts,
        duration_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        upstream_us: ctx.upstream_us,
        request_bytes,
        response_bytes,
        protocol: protocol(head.version),
        trace_id: Some(
            Uuid::from_u128(ctx.trace.id)
                .simple()
                .encode_lower(&mut trace),
        ),
        client: ctx.client,
    };
    event.write(&state.access, ctx.began_at.plus(elapsed));
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}
