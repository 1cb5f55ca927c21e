//! The fast path: exchanges of complete small requests over HTTP/1.1 with upstreams that speak
//! plain HTTP/1.1. Most requests are eligible.
//!
//! Pingora forwards both directions concurrently, over two channels. A request with a short body
//! does not need that: the body is read completely, the request is sent in one write, and the
//! response is forwarded as it arrives, by a single task. Other requests (long or chunked bodies,
//! upgrades, TLS or HTTP/2 to the upstream, HTTP/2 from the client) take the streaming path. Both
//! paths share the functions that implement their rules, through the [`ClientExchange`] trait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::BytesMut;
use http::header::{EXPECT, UPGRADE};
use http::{Method, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_core::{Error, ErrorType, Result};

use crate::admission::{admit_or_answer, authorize};
use crate::downstream::client_connection::ClientConnection;
use crate::downstream::client_exchange::ClientExchange;
use crate::forwarding::http1_session::Http1ServerSession;
use crate::forwarding::{failure, request_record, response, upstream_request};
use crate::message::head;
use crate::message::target::RequestTarget;
use crate::routing::router::RouteRequest;
use crate::routing::table::RouteMatch;
use crate::state::GatewayState;
use crate::state::request_context::{RequestContext, UpstreamAttempt};
use crate::state::runtime_config::RuntimeConfig;
use crate::upstream::{ResponseBody, UpstreamConnection};

/// Maximum bytes of a request body on the fast path.
pub(super) const MAX_BUFFERED_BODY_BYTES: u64 = 16 << 10;

/// The result of serving a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastPathOutcome {
    /// The request was answered, and the connection can be reused.
    KeepAlive,
    /// The request has ended, and the connection must be closed.
    Closed,
    /// The request must take the streaming path; nothing has been consumed.
    Ineligible,
}

/// Serves the request whose head was checked last, if it is eligible.
pub(crate) async fn serve(
    state: &GatewayState,
    connection: &mut ClientConnection,
) -> FastPathOutcome {
    if connection
        .body_remaining()
        .is_none_or(|left| left > MAX_BUFFERED_BODY_BYTES)
    {
        return FastPathOutcome::Ineligible;
    }
    let mut ctx = state.new_context();
    let Some(request) = head::to_request(connection.pending_head())
        .filter(|request| is_eligible(request, &ctx.config))
    else {
        return FastPathOutcome::Ineligible;
    };
    let mut session = Http1ServerSession::new(connection, request);
    if state.is_draining.load(Ordering::Relaxed) {
        session.disable_keep_alive();
    }
    let forwarded = forward(state, &mut session, &mut ctx).await;
    if let Err(error) = &forwarded {
        let _written = failure::write_error_response(&mut session, error, &mut ctx).await;
    }
    request_record::record_request(
        state,
        &session,
        forwarded.as_ref().err().map(|error| &**error),
        &ctx,
    );
    drop(ctx);
    if forwarded.is_ok() && session.finish().await {
        FastPathOutcome::KeepAlive
    } else {
        FastPathOutcome::Closed
    }
}

fn is_eligible(request: &RequestHeader, config: &RuntimeConfig) -> bool {
    let is_simple = ![EXPECT, UPGRADE]
        .iter()
        .any(|name| request.headers.contains_key(name));
    request.version == Version::HTTP_11
        && is_simple
        && (config.is_all_plain_http1 || routes_to_plain_upstream(request, config))
}

/// Returns whether the route uses plain HTTP/1.1 upstreams only. Called if some upstreams do not.
fn routes_to_plain_upstream(request: &RequestHeader, config: &RuntimeConfig) -> bool {
    let Ok(target) = RequestTarget::parse(request.raw_path()) else {
        return true;
    };
    let lookup = RouteRequest {
        host: authorize::request_authority(request),
        path: target.path,
        query: target.query,
        method: request.method.as_str(),
        headers: &request.headers,
    };
    match config.route_table.find(&lookup) {
        RouteMatch::Route(route) => config.is_plain_http1(&config.route_table.routes[route]),
        RouteMatch::MethodNotAllowed { .. } | RouteMatch::NotFound => true,
    }
}

/// Admits the request and forwards it, with retries.
async fn forward(
    state: &GatewayState,
    session: &mut Http1ServerSession<'_>,
    ctx: &mut RequestContext,
) -> Result<()> {
    if admit_or_answer(state, session, ctx).await? {
        return Ok(());
    }
    let body = session.read_body(ctx).await?;
    loop {
        upstream_request::choose_endpoint(state, session, ctx)?;
        match attempt_once(state, session, &body, ctx).await {
            Err(error) if error.retry() => {}
            done => return done,
        }
    }
}

async fn attempt_once(
    state: &GatewayState,
    session: &mut Http1ServerSession<'_>,
    body: &[u8],
    ctx: &mut RequestContext,
) -> Result<()> {
    let Some(chosen) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let (pool, endpoint) = (
        Arc::clone(&chosen.pool),
        Arc::clone(&chosen.permit.endpoint),
    );
    let idle = endpoint.idle_plain.take(pool.config.idle_timeout);
    let was_idle = idle.is_some();
    let mut upstream = match idle {
        Some(upstream) => upstream,
        None => UpstreamConnection::connect(endpoint.address, pool.config.connect_timeout)
            .await
            .map_err(|error| failure::on_connect_error(ctx, error))?,
    };
    match exchange(state, session, &mut upstream, body, ctx).await {
        Ok(Some(since)) => endpoint.idle_plain.put(upstream, since),
        Ok(None) => {}
        Err(error) => return Err(failure::on_exchange_error(session, error, ctx, was_idle)),
    }
    Ok(())
}

/// Sends the request and forwards the response. Returns the time since which the connection is
/// idle, if it can be reused.
async fn exchange(
    state: &GatewayState,
    session: &mut Http1ServerSession<'_>,
    upstream: &mut UpstreamConnection,
    body: &[u8],
    ctx: &mut RequestContext,
) -> Result<Option<Instant>> {
    let message = upstream_request::serialize_request(session.request(), body, ctx)?;
    let is_head_request = session.request().method == Method::HEAD;
    send_request(session, upstream, message, ctx).await?;
    let mut reply = session
        .await_upstream(|cx| upstream.poll_response(cx, is_head_request))
        .await?;
    while reply.head.status.is_informational()
        && reply.head.status != StatusCode::SWITCHING_PROTOCOLS
    {
        forward_head(state, session, reply.head, false, ctx).await?;
        reply = session
            .await_upstream(|cx| upstream.poll_response(cx, is_head_request))
            .await
            .map_err(|mut error| {
                error.set_retry(false);
                error
            })?;
    }
    if reply.head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(response::invalid_response("unrequested protocol upgrade"));
    }
    let mut rest = reply.body;
    let mut is_written = rest == ResponseBody::Done;
    let mut since = Instant::now();
    if is_written {
        ctx.note_response_complete();
    }
    forward_head(state, session, reply.head, is_written, ctx).await?;
    while let Some(data) = session
        .await_upstream(|cx| upstream.poll_body(cx, &mut rest))
        .await?
    {
        is_written = rest == ResponseBody::Done;
        if is_written {
            since = Instant::now();
            ctx.note_response_complete();
        }
        session.write_body(Some(data), is_written).await?;
    }
    if !is_written {
        session.write_body(None, true).await?;
    }
    Ok(reply.keep_alive.then_some(since))
}

/// Sends the request within the upstream's write timeout, then starts its read timeout.
async fn send_request(
    session: &mut Http1ServerSession<'_>,
    upstream: &mut UpstreamConnection,
    mut message: BytesMut,
    ctx: &RequestContext,
) -> Result<()> {
    let Some(UpstreamAttempt { pool, .. }) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let began = Instant::now();
    session.expect_upstream(pool.config.write_timeout, began);
    let mut has_waited = false;
    session
        .await_upstream(|cx| {
            let sent = upstream.poll_send(cx, &mut message);
            has_waited |= sent.is_pending();
            sent
        })
        .await?;
    // Most requests are sent in one write, so that the clock need not be read again.
    let sent_at = if has_waited { Instant::now() } else { began };
    session.expect_upstream(ctx.read_timeout(pool), sent_at);
    Ok(())
}

async fn forward_head(
    state: &GatewayState,
    session: &mut Http1ServerSession<'_>,
    mut head: ResponseHeader,
    end_of_stream: bool,
    ctx: &mut RequestContext,
) -> Result<()> {
    response::note_response_head(session, &head, ctx);
    response::apply_response_headers(state, session, &mut head, ctx)?;
    session.write_head(head, end_of_stream).await
}
