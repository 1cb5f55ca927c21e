//! HTTP/2 streams to upstream addresses, on connections that Pingora opens and pools.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::SendStream;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use pingora_core::connectors::http::v2::Connector;
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::protocols::http::v2::client::Http2Session;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;

use crate::upstream::http1_connection::malformed_response;
use crate::upstream::pinned_certificates::{PinnedCertificates, connector_options};
use crate::upstream::response::{ResponseBody, ResponseFault, UpstreamResponse};

/// The error type for an upstream with `http2 = true` that does not speak HTTP/2.
const NOT_HTTP2: ErrorType = ErrorType::new("upstream with http2 = true does not speak HTTP/2");

/// Maximum idle connections of an upstream.
const MAX_IDLE_CONNECTIONS: usize = 128;

/// Creates what opens and pools the HTTP/2 connections of an upstream, whose certificates the
/// system's authorities have signed if `uses_system_roots`.
pub fn http2_connector(uses_system_roots: bool) -> Arc<Connector> {
    let options = connector_options(MAX_IDLE_CONNECTIONS, uses_system_roots);
    Arc::new(Connector::new(Some(options)))
}

/// A stream that carries one request.
pub struct UpstreamStream {
    session: Http2Session,
    connector: Arc<Connector>,
    peer: Box<HttpPeer>,
    writer: Option<SendStream<Bytes>>,
    /// Whether the end of the request was sent.
    is_ended: bool,
    /// Whether data waits for a window.
    is_blocked: bool,
    trailers: Option<HeaderMap>,
}

impl UpstreamStream {
    /// Opens a stream on a connection of the pool, or on a new one, and sends the head of a request,
    /// which ends it if `is_end`. Returns whether the connection was reused.
    pub async fn open(
        connector: Arc<Connector>,
        peer: Box<HttpPeer>,
        pins: &PinnedCertificates,
        head: Box<RequestHeader>,
        is_end: bool,
    ) -> Result<(Self, bool)> {
        let reused = connector.reused_http_session(&*peer).await;
        let (mut session, is_reused) = match reused.map_err(Error::into_up)? {
            Some(session) => (session, true),
            None => {
                let opened = connector.new_http_session::<HttpPeer, ()>(&peer).await;
                match opened.map_err(Error::into_up)? {
                    HttpSession::H2(session) => (session, false),
                    HttpSession::H1(_) | HttpSession::Custom(()) => {
                        return Err(Error::new_up(NOT_HTTP2));
                    }
                }
            }
        };
        let digest = session.digest();
        pins.check(digest.and_then(|digest| digest.ssl_digest.as_deref()))?;
        let sent = session.write_request_header(head, is_end);
        sent.map_err(Error::into_up)?;
        let stream = Self {
            writer: session.take_request_body_writer(),
            session,
            connector,
            peer,
            is_ended: is_end,
            is_blocked: false,
            trailers: None,
        };
        Ok((stream, is_reused))
    }

    /// Returns whether the end of the request was sent.
    pub(crate) fn is_request_ended(&self) -> bool {
        self.is_ended
    }

    /// Sends all of `data` as far as the windows of stream and connection allow (RFC 9113 section
    /// 5.2), and then the end of the request if `is_end`. Is never ready once the stream has failed:
    /// [`Self::poll_response`] and [`Self::poll_body`] return the reason, or an early answer.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut impl Buf,
        is_end: bool,
    ) -> Poll<()> {
        let Some(writer) = &mut self.writer else {
            return Poll::Pending;
        };
        while data.has_remaining() {
            writer.reserve_capacity(data.remaining());
            let polled = writer.poll_capacity(cx);
            self.is_blocked = polled.is_pending();
            let Some(Ok(capacity)) = ready!(polled) else {
                return Poll::Pending;
            };
            let part = data.copy_to_bytes(capacity.min(data.remaining()));
            self.is_ended = is_end && !data.has_remaining();
            if writer.send_data(part, self.is_ended).is_err() {
                return Poll::Pending;
            }
        }
        if is_end && !std::mem::replace(&mut self.is_ended, true) {
            let _is_failed = writer.send_data(Bytes::new(), true);
        }
        Poll::Ready(())
    }

    /// Reads the head of the response. Pingora drops interim ones.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        is_head_request: bool,
    ) -> Poll<Result<UpstreamResponse>> {
        let read = ready!(pin!(self.session.read_response_header()).poll(cx));
        read.map_err(Error::into_up)?;
        let is_over = self.is_over()?;
        let Some(head) = self.session.response_header() else {
            return Poll::Ready(Err(malformed_response(ResponseFault)));
        };
        let mut head = Box::new(head.clone());
        let framing = ResponseBody::of(head.status, 1, &head.headers, is_head_request);
        let framing = framing.map_err(malformed_response)?;
        if is_over && matches!(framing, ResponseBody::Length(_)) {
            return Poll::Ready(Err(malformed_response(ResponseFault)));
        }
        head.set_version(Version::HTTP_11);
        if framing == ResponseBody::UntilClose && !head.headers.contains_key(CONTENT_LENGTH) {
            head.insert_header(TRANSFER_ENCODING, "chunked")?;
        }
        Poll::Ready(Ok(UpstreamResponse {
            head,
            body: match is_over {
                true => ResponseBody::Done,
                false => ResponseBody::UntilClose,
            },
            keep_alive: true,
            is_challenge: false,
        }))
    }

    /// Returns the next part of the body; `None` at its end, before which `body` is done.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<Result<Option<Bytes>>> {
        let read = ready!(pin!(self.session.read_response_body()).poll(cx));
        let part = read.map_err(Error::into_up)?;
        if part.is_none() {
            let trailers = ready!(pin!(self.session.read_trailers()).poll(cx));
            self.trailers = trailers.map_err(Error::into_up)?;
        }
        if part.is_none() || self.is_over()? {
            *body = ResponseBody::Done;
        }
        Poll::Ready(Ok(part))
    }

    /// Takes the trailers of a response that has ended.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    fn is_over(&mut self) -> Result<bool> {
        let is_over = self.session.check_response_end_or_error();
        is_over.map_err(Error::into_up)
    }

    /// Ends the exchange. The stream is reset unless both directions have ended, and the connection
    /// can carry another, unless the window of the connection may be what the request was waiting for.
    pub fn release(self) {
        if self.is_blocked {
            self.session.conn.mark_shutdown();
        }
        let idle_timeout = self.peer.options.idle_timeout;
        self.connector
            .release_http_session(self.session, &*self.peer, idle_timeout);
    }
}
