//! A connection or stream that carries one exchange, whatever its protocol.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use pingora_core::Result;

use crate::upstream::http1_connection::UpstreamConnection;
use crate::upstream::http2_stream::UpstreamStream;
use crate::upstream::outbound_data::OutboundData;
use crate::upstream::response::{ResponseBody, UpstreamResponse};

/// What carries an exchange.
pub enum UpstreamTransport {
    /// A connection over HTTP/1.1.
    Http1(UpstreamConnection),
    /// A stream of an HTTP/2 connection.
    Http2(Box<UpstreamStream>),
}

impl UpstreamTransport {
    /// Returns whether the end of the request must be sent, although no data is left.
    #[inline]
    pub fn needs_end(&self) -> bool {
        match self {
            Self::Http1(_) => false,
            Self::Http2(stream) => !stream.is_request_ended(),
        }
    }

    /// Sends all of `data`, which `is_end` ends.
    #[inline]
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut OutboundData,
        is_end: bool,
    ) -> Poll<Result<()>> {
        match self {
            Self::Http1(connection) => connection.poll_send(cx, data),
            Self::Http2(stream) => stream.poll_send(cx, data, is_end).map(Ok),
        }
    }

    /// Reads the next response head.
    #[inline]
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        is_head_request: bool,
    ) -> Poll<Result<UpstreamResponse>> {
        match self {
            Self::Http1(connection) => connection.poll_response(cx, is_head_request),
            Self::Http2(stream) => stream.poll_response(cx, is_head_request),
        }
    }

    /// Returns the next part of a body; `None` at its end.
    #[inline]
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<Result<Option<Bytes>>> {
        match self {
            Self::Http1(connection) => connection.poll_body(cx, body),
            Self::Http2(stream) => stream.poll_body(cx, body),
        }
    }

    /// Takes the trailers of a response that has ended. Those of HTTP/1.1 are dropped.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(stream) => stream.take_trailers(),
        }
    }
}
