//! Requests to upstreams: choice of an address and the forwarded message.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::BytesMut;
use http::header::{AUTHORIZATION, HOST, TE};
use http::{HeaderMap, HeaderValue, Version};
use pingora::http::RequestHeader;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_proxy::Session;
use postern_core::Code;

use crate::admission::header_changes;
use crate::config::{HeaderChanges, UpstreamConfig};
use crate::downstream::deadline::RequestDeadline;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::REFUSED;
use crate::forwarding::identity_headers::IdentityHeaders;
use crate::message::grpc;
use crate::message::headers;
use crate::state::GatewayState;
use crate::state::request_context::{RequestContext, UpstreamAttempt};
use crate::telemetry::failure_cause::FailureCause;
use crate::upstream::{Abortable, BoundConnection, ConnectionHeader, NoEndpoint, UpstreamPool};

/// Records the problem code and returns the error that ends the request.
pub(super) fn fail_with(ctx: &mut RequestContext, code: Code) -> Box<Error> {
    ctx.error_code = Some(code);
    Error::explain(REFUSED, code.as_str())
}

/// Chooses the address of the next attempt.
pub(super) fn choose_endpoint(
    state: &GatewayState,
    client: &Session,
    ctx: &mut RequestContext,
) -> Result<()> {
    let config = Arc::clone(&ctx.config);
    let Some(route) = ctx.route.map(|index| &config.route_table.routes[index]) else {
        return Err(fail_with(ctx, Code::Internal));
    };
    let before = ctx.attempt.take();
    let pool = match &before {
        Some(attempt) => &attempt.pool,
        None => config.pool(route, state.ids.random_u64()),
    };
    ctx.attempts += 1;
    if let Some(before) = &before {
        before.permit.release();
    }
    let avoid = before.as_ref().map(|attempt| &*attempt.permit.endpoint);
    let began = Instant::now();
    let key = pool.hash_key(client.req_header(), ctx.caller.as_ref(), ctx.client_address);
    let permit = match ctx.client_share() {
        Some(client) => pool.pick_for_client(client, &key, avoid, began),
        None => pool.pick(&key, avoid, began),
    };
    let permit = permit.map_err(|reason| {
        pool.count_failure(FailureCause::NoEndpoint);
        log_no_endpoint(pool, ctx, reason);
        ctx.unavailable = Some(Arc::clone(pool));
        fail_with(ctx, Code::UpstreamUnavailable)
    })?;
    let permit = Arc::new(
        match client.bound_upstream().and_then(BoundConnection::endpoint) {
            Some(endpoint) if avoid.is_none() => pool.move_to(&endpoint, permit),
            Some(_) | None => permit,
        },
    );
    pool.count_attempt();
    if before.is_none() {
        let overhead = (began - ctx.started).saturating_sub(ctx.body_read_time);
        state.metrics.overhead.observe(overhead.as_secs_f64());
    }
    if let Some(deadline) = client.deadline() {
        deadline.expect_upstream(pool.config.connect_timeout + ctx.read_timeout(pool), began);
    }
    ctx.attempt = Some(UpstreamAttempt {
        pool: Arc::clone(pool),
        permit,
        started: began,
    });
    Ok(())
}

/// Makes the request end when the chosen address was removed and its time to drain is over.
pub(super) async fn abort_when_drained(client: &Session, ctx: &RequestContext) {
    let (Some(attempt), Some(deadline)) = (&ctx.attempt, client.shared_deadline()) else {
        return;
    };
    // The task polls the deadline when it is woken.
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    attempt.permit.abort_when_drained(deadline, waker);
}

impl Abortable for RequestDeadline {
    fn abort(&self) {
        self.abort_drained();
    }
}

/// Logs that no upstream address is available, as a rate-limited warning.
fn log_no_endpoint(pool: &UpstreamPool, ctx: &RequestContext, reason: NoEndpoint) {
    let (request_id, upstream) = (ctx.id, &pool.config.name);
    match pool.warnings.admit() {
        Some(suppressed) => {
            tracing::warn!(%request_id, %upstream, %reason, suppressed, "no upstream address available");
        }
        None => tracing::debug!(%request_id, %upstream, %reason, "no upstream address available"),
    }
}

/// Returns the PROXY protocol header with which the connection must begin, if the upstream expects
/// one. The port is that of the client if it has connected itself, otherwise 0.
pub(super) fn connection_header(
    client: &Session,
    pool: &UpstreamPool,
    ctx: &RequestContext,
) -> Option<ConnectionHeader> {
    let version = pool.config.proxy_protocol?;
    let peer = client.client_addr().and_then(|peer| peer.as_inet());
    let source = ctx.client_address.filter(|_| ctx.is_client_known);
    let source = source.map(|address| {
        let peer = peer.filter(|peer| peer.ip() == address);
        SocketAddr::new(address, peer.map_or(0, SocketAddr::port))
    });
    let destination = client.server_addr().and_then(|local| local.as_inet());
    Some(ConnectionHeader::new(version, source, destination.copied()))
}

/// Builds the peer of a request over HTTP/2, whose connection it shares with others.
pub(super) fn http2_peer(
    session: &mut Session,
    attempt: &UpstreamAttempt,
    ctx: &RequestContext,
) -> Box<HttpPeer> {
    let endpoint = &attempt.permit.endpoint;
    let mut peer = Box::new(endpoint.peer.clone());
    let headers = &session.req_header().headers;
    let owner = match headers::authenticates_connection(headers, AUTHORIZATION) {
        // No other request finds the connection.
        true => Some(ctx.id.as_u64_pair().1),
        false => ctx.client_share().filter(|_| !session.is_body_empty()),
    };
    peer.group_key = endpoint.connection_group(owner);
    peer
}

/// Builds the head of a request over HTTP/2.
pub(super) fn http2_request(
    client: &RequestHeader,
    peer: &HttpPeer,
    ctx: &RequestContext,
) -> Result<Box<RequestHeader>> {
    let mut parts: http::request::Parts = client.clone().into();
    headers::strip(&mut parts.headers, headers::is_hop_by_hop);
    parts.version = Version::HTTP_2;
    let mut request = Box::new(RequestHeader::from(parts));
    prepare_headers(client, &mut request, ctx)?;
    let host = request.remove_header(&HOST);
    let uri = http::Uri::builder()
        .scheme(if peer.is_tls() { "https" } else { "http" })
        .authority(host.as_ref().map_or(&b""[..], HeaderValue::as_bytes))
        .path_and_query(request.raw_path())
        .build();
    let uri = uri.or_err(ErrorType::InvalidHTTPHeader, "target for HTTP/2");
    request.set_uri(uri.map_err(Error::into_down)?);
    Ok(request)
}

/// Checks the received part of the body, whose length may not be known before its end.
///
/// # Errors
/// 413 if the body is longer than the route permits.
pub(super) fn check_body_bytes(session: &Session, ctx: &mut RequestContext) -> Result<()> {
    let limit = ctx.route().map_or(0, |route| route.settings.body_bytes);
    match session.body_bytes_read() as u64 > limit {
        true => Err(fail_with(ctx, Code::BodyTooLarge)),
        false => Ok(()),
    }
}

/// Replaces reserved fields by those of the gateway and rewrites the path.
fn prepare_headers(
    client: &RequestHeader,
    request: &mut RequestHeader,
    ctx: &RequestContext,
) -> Result<()> {
    let Some(attempt) = &ctx.attempt else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let empty = http::Request::new(()).into_parts().0;
    let mut parts =
        http::request::Parts::from(std::mem::replace(request, RequestHeader::from(empty)));
    if let Some(changes) = request_changes(ctx) {
        apply_changes(changes, client, &mut parts.headers, ctx);
    }
    identity_headers(&attempt.pool.config, ctx)
        .write(&mut parts.headers)
        .or_err(REFUSED, "identity is not a valid header value")?;
    // `TE` is hop-by-hop, so that Pingora has removed it. gRPC servers reject calls without it.
    if parts.version == Version::HTTP_2 && grpc::accepts_trailers(client) {
        parts
            .headers
            .insert(TE, HeaderValue::from_static("trailers"));
    }
    *request = RequestHeader::from(parts);
    match ctx.route().and_then(|route| route.rewrite.as_ref()) {
        Some(rewrite) => {
            let target = rewrite.apply(request.raw_path());
            request.set_raw_path(&target)
        }
        None => Ok(()),
    }
}

/// Serializes the head of the request to an upstream as HTTP/1.1, with these hop-by-hop fields.
pub(super) fn serialize_request(
    request: &RequestHeader,
    upstream: &UpstreamConfig,
    hop_by_hop: &[u8],
    ctx: &RequestContext,
) -> Result<BytesMut> {
    let mut message = BytesMut::with_capacity(2 << 10);
    message.extend_from_slice(request.method.as_str().as_bytes());
    message.extend_from_slice(b" ");
    match ctx.route().and_then(|route| route.rewrite.as_ref()) {
        Some(rewrite) => message.extend_from_slice(&rewrite.apply(request.raw_path())),
        None => message.extend_from_slice(request.raw_path()),
    }
    message.extend_from_slice(b" HTTP/1.1\r\n");
    let changed = request_changes(ctx).map(|changes| {
        let mut headers = request.headers.clone();
        apply_changes(changes, request, &mut headers, ctx);
        headers
    });
    let headers = changed.as_ref().unwrap_or(&request.headers);
    identity_headers(upstream, ctx)
        .append(headers, &mut message)
        .or_err(REFUSED, "identity is not a valid header value")?;
    message.extend_from_slice(hop_by_hop);
    message.extend_from_slice(b"\r\n");
    Ok(message)
}

/// Applies the changes of a route to the fields of a client without the reserved ones, of which the
/// route may set those that the gateway does not fill.
fn apply_changes(
    changes: &HeaderChanges,
    client: &RequestHeader,
    headers: &mut HeaderMap,
    ctx: &RequestContext,
) {
    headers::strip(headers, headers::is_reserved);
    header_changes::apply(changes, headers, &header_changes::variables(client, ctx));
}

/// Returns the changes of request fields that the route describes. They are applied before the
/// fields of the gateway are set.
fn request_changes(ctx: &RequestContext) -> Option<&HeaderChanges> {
    ctx.route()
        .and_then(|route| route.settings.request_headers.as_deref())
}

fn identity_headers<'a>(
    upstream: &'a UpstreamConfig,
    ctx: &'a RequestContext,
) -> IdentityHeaders<'a> {
    IdentityHeaders {
        id: ctx.id,
        trace: ctx.trace.for_upstream(),
        client: ctx.client_address,
        is_tls: ctx.is_tls,
        caller: ctx.caller.as_ref(),
        replaced: ctx
            .route()
            .and_then(|route| route.settings.authorize.as_ref())
            .map_or(&[][..], |authorize| &authorize.forward_headers[..]),
        added: ctx.added_headers.as_deref().unwrap_or_default(),
        hides_api_keys: ctx.config.api_keys.is_some(),
        forwarded: upstream.forwarded,
        host: upstream.host.as_ref(),
        forwarded_host: ctx.forwarded_host.as_ref(),
        is_removed: match request_changes(ctx) {
            Some(_) => headers::is_filled,
            None => headers::is_reserved,
        },
    }
}
