//! The client side of an exchange on the fast path.

use std::future::poll_fn;
use std::io::Write;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::{Error, ErrorType, OrErr, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::downstream::client_connection::ClientConnection;
use crate::downstream::client_exchange::ClientExchange;
use crate::downstream::deadline::RequestDeadline;
use crate::forwarding::fast_path::MAX_BUFFERED_BODY_BYTES;
use crate::message::headers;
use crate::state::request_context::RequestContext;

/// One HTTP/1.1 exchange on a client connection.
pub(super) struct Http1ServerSession<'w> {
    connection: &'w mut ClientConnection,
    request: RequestHeader,
    response_status: Option<StatusCode>,
    framing: ResponseFraming,
    keep_alive: bool,
    received: u64,
    sent: u64,
}

/// The framing of the response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseFraming {
    /// No body.
    NoBody,
    /// A body with this many remaining bytes.
    Length(u64),
    Chunked,
}

impl<'w> Http1ServerSession<'w> {
    pub(super) fn new(connection: &'w mut ClientConnection, request: RequestHeader) -> Self {
        connection.consume_head();
        let options = request
            .headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let keep_alive = !options
            .flat_map(|value| value.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case("close"));
        Self {
            connection,
            request,
            response_status: None,
            framing: ResponseFraming::NoBody,
            keep_alive,
            received: 0,
            sent: 0,
        }
    }

    /// Reads the whole request body.
    pub(super) async fn read_body(&mut self, ctx: &mut RequestContext) -> Result<BytesMut> {
        if self.connection.body_remaining() == Some(0) {
            return Ok(BytesMut::new());
        }
        let began = Instant::now();
        let body = self.read_rest().await;
        ctx.body_read_time = began.elapsed();
        body
    }

    async fn read_rest(&mut self) -> Result<BytesMut> {
        let mut body = BytesMut::new();
        while let Some(left @ 1..) = self.connection.body_remaining() {
            body.reserve(usize::try_from(left.min(MAX_BUFFERED_BODY_BYTES)).unwrap_or(0));
            let read = self
                .connection
                .read_buf(&mut body)
                .await
                .or_err(ErrorType::ReadError, "reading a request body");
            let read = read.map_err(Error::into_down)?;
            if read == 0 {
                return Err(Error::new_down(ErrorType::ConnectionClosed));
            }
            self.received += read as u64;
        }
        Ok(body)
    }

    /// Sets the time for the upstream, from `now`.
    pub(super) fn expect_upstream(&self, within: Duration, now: Instant) {
        self.connection.deadline().expect_upstream(within, now);
    }

    /// Waits for the upstream, unless the client disconnects or a deadline passes first. Data that
    /// was written for the client is sent meanwhile.
    pub(super) async fn await_upstream<T>(
        &mut self,
        mut upstream: impl FnMut(&mut Task<'_>) -> Poll<Result<T>>,
    ) -> Result<T> {
        poll_fn(|cx| match upstream(cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => self.poll_client_abort(cx).map(Err),
        })
        .await
    }

    /// Completes with the reason for no longer serving the client.
    fn poll_client_abort(&mut self, cx: &mut Task<'_>) -> Poll<Box<Error>> {
        if self.connection.has_unsent_data()
            && let Poll::Ready(Err(error)) = Pin::new(&mut *self.connection).poll_flush(cx)
        {
            return Poll::Ready(
                Error::because(ErrorType::WriteError, "writing to a client", error).into_down(),
            );
        }
        let mut space = [0; 1];
        Poll::Ready(
            match ready!(
                Pin::new(&mut *self.connection).poll_read(cx, &mut ReadBuf::new(&mut space))
            ) {
                Ok(()) => Error::new_down(ErrorType::ConnectionClosed),
                Err(error) => {
                    Error::because(ErrorType::ReadError, "polling a client", error).into_down()
                }
            },
        )
    }

    /// Ends the exchange. Returns whether the connection can be reused.
    pub(super) async fn finish(mut self) -> bool {
        if !self.keep_alive {
            let _gone = self.connection.shutdown().await;
            return false;
        }
        // An unread request body precedes the next request on the connection.
        self.read_rest().await.is_ok()
    }

    async fn write(&mut self, data: &[u8]) -> Result<()> {
        self.connection
            .write_all(data)
            .await
            .or_err(ErrorType::WriteError, "writing to a client")
            .map_err(Error::into_down)
    }

    async fn flush(&mut self) -> Result<()> {
        self.connection
            .flush()
            .await
            .or_err(ErrorType::WriteError, "writing to a client")
            .map_err(Error::into_down)
    }

    fn framing(&self, head: &ResponseHeader) -> ResponseFraming {
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        match length {
            _ if self.request.method == Method::HEAD => ResponseFraming::NoBody,
            _ if head.status.is_informational() || matches!(head.status.as_u16(), 204 | 304) => {
                ResponseFraming::NoBody
            }
            _ if head.headers.contains_key(TRANSFER_ENCODING) => ResponseFraming::Chunked,
            Some(length) => ResponseFraming::Length(length),
            None => ResponseFraming::NoBody,
        }
    }
}

impl ClientExchange for Http1ServerSession<'_> {
    fn request(&self) -> &RequestHeader {
        &self.request
    }

    fn peer_address(&self) -> Option<IpAddr> {
        self.connection.peer_address()
    }

    fn connection(&self) -> Option<&ClientConnection> {
        Some(self.connection)
    }

    fn is_tls(&self) -> bool {
        self.connection.is_tls()
    }

    fn deadline(&self) -> Option<&RequestDeadline> {
        Some(self.connection.deadline())
    }

    fn response_status(&self) -> Option<StatusCode> {
        self.response_status
    }

    fn is_tunnel(&self) -> bool {
        false
    }

    fn can_replay_body(&self) -> bool {
        true
    }

    fn body_bytes(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    fn disable_keep_alive(&mut self) {
        self.keep_alive = false;
    }

    async fn write_head(&mut self, head: ResponseHeader, end_of_stream: bool) -> Result<()> {
        let is_final = !head.status.is_informational();
        let mut text = BytesMut::with_capacity(512);
        text.extend_from_slice(b"HTTP/1.1 ");
        text.extend_from_slice(head.status.as_str().as_bytes());
        text.extend_from_slice(b" ");
        text.extend_from_slice(
            head.status
                .canonical_reason()
                .unwrap_or_default()
                .as_bytes(),
        );
        text.extend_from_slice(b"\r\n");
        for (name, value) in &head.headers {
            if *name != CONNECTION && !(is_final && *name == DATE) {
                headers::append_field(&mut text, name.as_str(), value.as_bytes());
            }
        }
        if is_final {
            headers::append_field(&mut text, DATE.as_str(), get_cached_date().as_bytes());
            let connection: &[u8] = if self.keep_alive {
                b"keep-alive"
            } else {
                b"close"
            };
            headers::append_field(&mut text, CONNECTION.as_str(), connection);
        }
        text.extend_from_slice(b"\r\n");
        self.framing = self.framing(&head);
        self.response_status = Some(head.status);
        self.write(&text).await?;
        if end_of_stream || !is_final {
            self.flush().await
        } else {
            Ok(())
        }
    }

    async fn write_body(&mut self, data: Option<Bytes>, end_of_stream: bool) -> Result<()> {
        let mut data = data.unwrap_or_default();
        match self.framing {
            ResponseFraming::NoBody => data.clear(),
            ResponseFraming::Length(left) => {
                data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                self.framing = ResponseFraming::Length(left - data.len() as u64);
                self.write(&data).await?;
            }
            ResponseFraming::Chunked if data.is_empty() => {}
            ResponseFraming::Chunked => {
                let mut size = [0; 18];
                let room = size.len();
                let mut space = &mut size[..];
                let _fits = write!(space, "{:x}\r\n", data.len());
                let length = room - space.len();
                self.write(&size[..length]).await?;
                self.write(&data).await?;
                self.write(b"\r\n").await?;
            }
        }
        self.sent += data.len() as u64;
        if !end_of_stream {
            return Ok(());
        }
        // The next response would be taken for the missing part of this one.
        if matches!(self.framing, ResponseFraming::Length(1..)) {
            return Err(Error::new_in(ErrorType::InternalError));
        }
        if self.framing == ResponseFraming::Chunked {
            self.write(b"0\r\n\r\n").await?;
        }
        self.flush().await
    }

    /// Ends the response without trailers, which RFC 9110 section 6.5.1 allows to be dropped.
    async fn write_trailers(&mut self, _trailers: HeaderMap) -> Result<()> {
        self.write_body(None, true).await
    }
}
