//! The beginning of an exchange: a connection and the request to be sent on it.

use std::borrow::Cow;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use pingora::Result;
use pingora::protocols::ALPN;
use pingora_proxy::Session;
use postern_http::message::headers;
use postern_http::upstream::{
    IdleCheck, OutboundData, UpstreamConnection, UpstreamStream, UpstreamTransport,
};

use crate::config::Route;
use crate::downstream::session_ext::SessionExt;
use crate::forwarding::{failure, upstream_request};
use crate::state::request_context::UpstreamAttempt;

/// A connection, and what is to be sent on it.
pub(super) struct OpenExchange {
    pub(super) upstream: UpstreamTransport,
    /// Whether the connection has carried another request.
    pub(super) was_idle: bool,
    pub(super) outbound: OutboundData,
}

/// Returns whether a request asks for a WebSocket, and its route has some.
pub(super) fn is_upgrade(session: &Session, route: &Route) -> bool {
    route.settings.websocket && headers::is_websocket_upgrade(session.req_header())
}

impl OpenExchange {
    /// Takes an idle connection, or opens one. What is known of the request is to be sent.
    pub(super) async fn open(
        session: &mut Session,
        body: Option<&Bytes>,
        length: Option<u64>,
        attempt: &UpstreamAttempt<'_>,
    ) -> Result<Self> {
        let buffered = match body {
            Some(body) => body.clone(),
            None => session.as_ref().get_retry_buffer().unwrap_or_default(),
        };
        let is_upgrade = is_upgrade(session, attempt.route);
        let hop_by_hop = match (length, is_upgrade) {
            (_, true) => &b"connection: upgrade\r\nupgrade: websocket\r\n"[..],
            (None, false) => b"transfer-encoding: chunked\r\n",
            (Some(_), false) => b"",
        };
        let (upstream, was_idle, mut outbound) = match &attempt.pool.http2 {
            Some(http2) if !is_upgrade => {
                let peer = upstream_request::http2_peer(session, attempt);
                let request =
                    upstream_request::http2_request(session.req_header(), &peer, attempt)?;
                let pins = &attempt.permit.endpoint.pins;
                let is_end = session.as_mut().is_body_empty();
                let opened = UpstreamStream::open(http2, &peer, pins, request, is_end).await;
                let (stream, was_idle) =
                    opened.map_err(|error| failure::on_connect_error(attempt, error))?;
                let upstream = UpstreamTransport::Http2(Box::new(stream));
                (upstream, was_idle, OutboundData::default())
            }
            Some(_) | None => {
                let (upstream, was_idle, head) =
                    Self::open_http1(session, attempt, hop_by_hop).await?;
                let is_chunked = length.is_none();
                (upstream, was_idle, OutboundData::new(head, is_chunked))
            }
        };
        outbound.append(buffered);
        Ok(Self {
            upstream,
            was_idle,
            outbound,
        })
    }

    async fn open_http1(
        session: &Session,
        attempt: &UpstreamAttempt<'_>,
        hop_by_hop: &[u8],
    ) -> Result<(UpstreamTransport, bool, BytesMut)> {
        let (pool, endpoint) = (attempt.pool, &attempt.permit.endpoint);
        let request = session.req_header();
        let check = match request.method.is_idempotent() {
            true => IdleCheck::LastPoll,
            false => IdleCheck::Now,
        };
        let idle_timeout = pool.config.idle_timeout;
        let bound = session.bound_upstream();
        let idle = bound.and_then(|bound| bound.take(&endpoint.idle, idle_timeout));
        // A retry uses a new connection: idle ones may be closed as the first one was.
        let idle = idle.or_else(|| {
            let is_first = attempt.number <= 1;
            is_first.then(|| endpoint.idle.take(idle_timeout, check))?
        });
        let was_idle = idle.is_some();
        let mut upstream = match idle {
            Some(upstream) => upstream,
            None => {
                let (mut peer, pins) = (Cow::Borrowed(&endpoint.peer), &endpoint.pins);
                let timeout = pool.config.connect_timeout;
                if pool.config.http2 {
                    // HTTP/1.1 has upgrades.
                    peer.to_mut().options.alpn = ALPN::H1;
                }
                UpstreamConnection::connect(&peer, pins, timeout)
                    .await
                    .map_err(|error| failure::on_connect_error(attempt, error))?
            }
        };
        upstream.note_request(&request.headers);
        let head = upstream_request::serialize_request(request, &pool.config, hop_by_hop, attempt)?;
        Ok((UpstreamTransport::Http1(upstream), was_idle, head))
    }
}

/// Ends the exchange. `idle_since` is the end of a response after which an HTTP/1.1 connection
/// can be reused, by the same client alone if it has authenticated the connection.
pub(super) fn release(
    upstream: UpstreamTransport,
    session: &Session,
    idle_since: Option<Instant>,
    attempt: &UpstreamAttempt<'_>,
) {
    let endpoint = &attempt.permit.endpoint;
    match (upstream, idle_since) {
        (UpstreamTransport::Http1(connection), Some(since)) if connection.is_authenticated() => {
            // The connection of a trusted proxy is that of many clients.
            let is_trusted = |peer| attempt.config.limits.http.is_trusted_proxy(peer);
            if let Some(bound) = session.bound_upstream()
                && !session.peer_address().is_none_or(is_trusted)
            {
                bound.put(connection, &endpoint.idle, since);
            }
        }
        (UpstreamTransport::Http1(connection), Some(since)) => endpoint.idle.put(connection, since),
        (UpstreamTransport::Http1(_), None) | (UpstreamTransport::Http2(_), _) => {}
    }
}
