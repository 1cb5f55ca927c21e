//! HTTP/2 streams to upstream addresses.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Request, StatusCode, Version};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, OrErr, Result, RetryType};
use pingora_http::ResponseHeader;

use crate::upstream::http1_connection::malformed_response;
use crate::upstream::http2_pool::{Http2Pool, StreamPermit};
use crate::upstream::pinned_certificates::PinnedCertificates;
use crate::upstream::response::{ResponseBody, ResponseFault, UpstreamResponse};

/// A stream that carries one request. It is reset when it is dropped, unless both directions have
/// ended.
pub struct UpstreamStream {
    writer: SendStream<Bytes>,
    reply: Reply,
    permit: StreamPermit,
    /// Whether the end of the request was sent.
    is_ended: bool,
    /// Whether data waits for a window.
    is_blocked: bool,
    trailers: Option<HeaderMap>,
}

/// The response.
enum Reply {
    Awaited(ResponseFuture),
    Body(RecvStream),
}

impl UpstreamStream {
    /// Opens a stream on a connection of the pool, or on a new one, and sends the head of a request,
    /// which ends it if `is_end`. Returns whether the connection was reused.
    pub async fn open(
        pool: &Http2Pool,
        peer: &HttpPeer,
        pins: &PinnedCertificates,
        head: Request<()>,
        is_end: bool,
    ) -> Result<(Self, bool)> {
        let acquired = pool.acquire(peer, pins).await;
        let (permit, mut requests, is_reused) = acquired.map_err(Error::into_up)?;
        let sent = requests.send_request(head, is_end);
        let sent = sent.or_err(ErrorType::H2Error, "sending a request head");
        let (reply, writer) = sent.map_err(Error::into_up)?;
        let stream = Self {
            writer,
            reply: Reply::Awaited(reply),
            permit,
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
        while data.has_remaining() {
            self.writer.reserve_capacity(data.remaining());
            let polled = self.writer.poll_capacity(cx);
            self.is_blocked = polled.is_pending();
            let Some(Ok(capacity)) = ready!(polled) else {
                return Poll::Pending;
            };
            let part = data.copy_to_bytes(capacity.min(data.remaining()));
            self.is_ended = is_end && !data.has_remaining();
            if self.writer.send_data(part, self.is_ended).is_err() {
                return Poll::Pending;
            }
        }
        if is_end && !std::mem::replace(&mut self.is_ended, true) {
            let _is_failed = self.writer.send_data(Bytes::new(), true);
        }
        Poll::Ready(())
    }

    /// Reads the next response head, which may be an interim one.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        is_head_request: bool,
    ) -> Poll<Result<UpstreamResponse>> {
        let Reply::Awaited(reply) = &mut self.reply else {
            return Poll::Ready(Err(malformed_response(ResponseFault)));
        };
        // The final response is polled once it has arrived: that drops interim ones.
        while let Some(interim) = ready!(reply.poll_informational(cx)) {
            let (head, ()) = interim.map_err(head_error)?.into_parts();
            // The gateway itself has answered the expectation of the client.
            if head.status != StatusCode::CONTINUE {
                let body = ResponseBody::Done;
                return Poll::Ready(Ok(UpstreamResponse::of(head.into(), body)));
            }
        }
        let response = ready!(Pin::new(reply).poll(cx)).map_err(head_error)?;
        let (head, mut body) = response.into_parts();
        let is_over = is_over(&mut body, cx)?;
        self.reply = Reply::Body(body);
        let mut head = ResponseHeader::from(head);
        let framing = ResponseBody::of(head.status, 1, &head.headers, is_head_request);
        let framing = framing.map_err(malformed_response)?;
        if is_over && matches!(framing, ResponseBody::Length(_)) {
            return Poll::Ready(Err(malformed_response(ResponseFault)));
        }
        head.set_version(Version::HTTP_11);
        if framing == ResponseBody::UntilClose && !head.headers.contains_key(CONTENT_LENGTH) {
            head.insert_header(TRANSFER_ENCODING, "chunked")?;
        }
        let body = match is_over {
            true => ResponseBody::Done,
            false => ResponseBody::UntilClose,
        };
        Poll::Ready(Ok(UpstreamResponse::of(head, body)))
    }

    /// Returns the next part of the body; `None` at its end, before which `body` is done.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<Result<Option<Bytes>>> {
        let Reply::Body(reader) = &mut self.reply else {
            return Poll::Ready(Err(malformed_response(ResponseFault)));
        };
        let part = ready!(reader.poll_data(cx)).transpose();
        let part = part.map_err(body_error)?;
        match &part {
            Some(part) => {
                let _ended = reader.flow_control().release_capacity(part.len());
            }
            None => self.trailers = trailers(ready!(reader.poll_trailers(cx)))?,
        }
        if part.is_none() || is_over(reader, cx)? {
            *body = ResponseBody::Done;
        }
        Poll::Ready(Ok(part))
    }

    /// Takes the trailers of a response that has ended.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }
}

impl Drop for UpstreamStream {
    /// The window of the connection may be what the request was waiting for.
    fn drop(&mut self) {
        if self.is_blocked {
            self.permit.retire();
        }
    }
}

/// Returns whether a response has ended, and not by an error
/// (<https://github.com/hyperium/h2/issues/806>).
fn is_over(body: &mut RecvStream, cx: &mut Context<'_>) -> Result<bool> {
    match body.is_end_stream().then(|| body.poll_data(cx)) {
        None => Ok(false),
        Some(Poll::Ready(None)) => Ok(true),
        Some(Poll::Ready(Some(Err(error)))) => Err(body_error(error)),
        Some(Poll::Ready(Some(Ok(_))) | Poll::Pending) => Err(malformed_response(ResponseFault)),
    }
}

/// Returns the trailers, or none if the upstream ends the stream or the connection without an error:
/// it does not want the rest of the request (RFC 9113 section 8.1).
fn trailers(read: Result<Option<HeaderMap>, h2::Error>) -> Result<Option<HeaderMap>> {
    let is_end = |error: &h2::Error| {
        let is_ended = error.is_go_away() || error.is_reset();
        is_ended && error.is_remote() && error.reason() == Some(Reason::NO_ERROR)
    };
    match read {
        Err(error) if is_end(&error) => Ok(None),
        read => read.map_err(body_error),
    }
}

fn body_error(error: h2::Error) -> Box<Error> {
    Error::because(ErrorType::ReadError, "reading a response body", error).into_up()
}

/// Converts an error before the response. The request may be retried on another connection if a
/// reused one was lost.
fn head_error(error: h2::Error) -> Box<Error> {
    let is_malformed = error.is_library() && error.reason() == Some(Reason::PROTOCOL_ERROR);
    let is_lost = error.get_io().is_some_and(|error| {
        let kinds = [
            ErrorKind::BrokenPipe,
            ErrorKind::ConnectionReset,
            ErrorKind::TimedOut,
        ];
        error.raw_os_error().is_some() || kinds.contains(&error.kind())
    });
    let kind = match error.is_io() {
        true => ErrorType::ReadError,
        false if is_malformed => ErrorType::InvalidH2,
        false => ErrorType::H2Error,
    };
    let mut error = Error::because(kind, "reading a response head", error).into_up();
    if is_lost {
        error.retry = RetryType::ReusedOnly;
    }
    error
}
