//! One HTTP/1 exchange on a client connection, as a Pingora session.
//!
//! Pingora's own session would parse the head, which has been checked already, a second time, and
//! copy it.

mod session;

use std::future::poll_fn;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use parking_lot::Mutex;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::downstream::client_connection::ClientConnection;
use crate::downstream::client_handle::ClientHandle;
use crate::message::framing::ChunkState;
use crate::message::{head, headers};
use crate::upstream::ResponseBody;

const BODY_READ_BYTES: u64 = 32 << 10;

/// Maximum unread bytes of a request body that are read after the response, so that the connection
/// can be reused. With more, the response announces that the connection closes.
pub(crate) const MAX_DRAIN_BYTES: u64 = 16 << 10;

/// Maximum bytes of a request body that are kept for a second attempt.
const MAX_RETRY_BYTES: usize = 64 << 10;

/// Where a session leaves its connection for the next request, or after an upgrade.
pub type ConnectionSlot = Arc<Mutex<Option<Box<ClientConnection>>>>;

/// One exchange.
pub struct Http1Session {
    /// `None` once the exchange has ended.
    connection: Option<Box<ClientConnection>>,
    slot: ConnectionSlot,
    request: RequestHeader,
    has_body: bool,
    /// The position in a chunked body, and received bytes of it.
    chunks: (ResponseBody, BytesMut),
    /// The last response head that was written.
    response: Option<Box<ResponseHeader>>,
    framing: ResponseFraming,
    is_response_complete: bool,
    /// Whether the response announced that the connection stays open.
    keep_alive: bool,
    received: usize,
    sent: usize,
    retry_buffer: Option<RetryBuffer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseFraming {
    /// No body.
    NoBody,
    /// A body with this many remaining bytes.
    Length(usize),
    Chunked,
    /// A body that ends with the connection, for HTTP/1.0.
    UntilClose,
}

/// The beginning of a request body, for a second attempt.
#[derive(Debug, Default)]
pub(crate) struct RetryBuffer {
    data: BytesMut,
    pub(crate) is_truncated: bool,
}

impl Http1Session {
    /// Creates the session of the connection's pending request.
    pub fn new(mut connection: Box<ClientConnection>, slot: ConnectionSlot) -> Option<Self> {
        let request = head::to_request(connection.pending_head())?;
        connection.consume_head();
        let handle = ClientHandle {
            deadline: connection.shared_deadline(),
            is_tls: connection.is_tls(),
            attributes: connection.attributes().cloned(),
            bound_upstream: Some(connection.bound_upstream()),
            connection: Some(Arc::clone(&slot)),
        };
        let mut parts = http::request::Parts::from(request);
        parts.extensions.insert(handle);
        Some(Self {
            has_body: connection.body_remaining() != 0,
            chunks: match connection.is_chunked() {
                true => (
                    ResponseBody::Chunked(ChunkState::Size(0, 0)),
                    BytesMut::new(),
                ),
                false => (ResponseBody::Done, BytesMut::new()),
            },
            connection: Some(connection),
            slot,
            request: RequestHeader::from(parts),
            response: None,
            framing: ResponseFraming::NoBody,
            is_response_complete: false,
            keep_alive: true,
            received: 0,
            sent: 0,
            retry_buffer: None,
        })
    }

    fn connection(&mut self) -> Result<&mut ClientConnection> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            None => Err(Error::new_down(ErrorType::ConnectionClosed)),
        }
    }

    fn body_remaining(&self) -> u64 {
        let connection = self.connection.as_ref();
        connection.map_or(0, |it| it.body_remaining())
    }

    fn is_body_read(&self) -> bool {
        self.body_remaining() == 0 && self.chunks.1.is_empty()
    }

    /// Reads the next part of the request body; `None` at its end.
    async fn read(&mut self) -> Result<Option<Bytes>> {
        while !self.is_body_read() {
            if self.chunks.0 != ResponseBody::Done {
                let (chunks, received) = &mut self.chunks;
                let data = chunks.take(received);
                // The connection has checked each byte.
                let data = data.map_err(|_| Error::new_in(ErrorType::InternalError))?;
                if data.is_some() {
                    return Ok(self.received(data));
                }
            }
            if self.body_remaining() == 0 {
                break;
            }
            let part = self.read_part().await?;
            if self.chunks.0 == ResponseBody::Done {
                return Ok(self.received(Some(part.freeze())));
            }
            if self.chunks.1.is_empty() {
                self.chunks.1 = part;
            } else {
                self.chunks.1.extend_from_slice(&part);
            }
        }
        Ok(None)
    }

    /// Counts a part of the body, and keeps it for a second attempt.
    fn received(&mut self, part: Option<Bytes>) -> Option<Bytes> {
        self.received += part.as_ref().map_or(0, Bytes::len);
        if let (Some(buffer), Some(part)) = (&mut self.retry_buffer, &part) {
            buffer.append(part);
        }
        part
    }

    /// Reads bytes of the request body, with its framing.
    async fn read_part(&mut self) -> Result<BytesMut> {
        let remaining = self.body_remaining();
        let room = usize::try_from(remaining.min(BODY_READ_BYTES)).unwrap_or(0);
        let connection = self.connection()?;
        let read = poll_fn(|cx| {
            // A response may have started before the end of the body.
            if connection.has_unsent_data()
                && let Poll::Ready(Err(error)) = Pin::new(&mut *connection).poll_flush(cx)
            {
                return Poll::Ready(Err(error));
            }
            // A body that is waited for occupies no buffer.
            let mut part = BytesMut::with_capacity(room);
            let read = ready!(poll_read_buf(Pin::new(&mut *connection), cx, &mut part));
            Poll::Ready(read.map(|_| part))
        });
        let part = read
            .await
            .or_err(ErrorType::ReadError, "reading a request body")
            .map_err(Error::into_down)?;
        if part.is_empty() {
            return Err(Error::new_down(ErrorType::ConnectionClosed));
        }
        Ok(part)
    }

    /// Waits until the client disconnects or a deadline passes. Data that was written for the client
    /// is sent meanwhile. If a body remains, it is not read, and a disconnect is not noticed.
    async fn wait_for_abort(&mut self) -> Box<Error> {
        match self.connection() {
            Ok(connection) => poll_fn(|cx| poll_abort(connection, cx)).await,
            Err(error) => error,
        }
    }

    fn keeps_alive(&self) -> bool {
        let is_closing = self
            .connection
            .as_ref()
            .is_none_or(|connection| connection.deadline().closes_after_response());
        let headers = &self.request.headers;
        let has_option = |wanted| headers::has_member(headers, CONNECTION, wanted);
        // A client that expects an interim response may omit the body after the final one.
        let max_unread = match headers.contains_key(EXPECT) {
            true => 0,
            false => MAX_DRAIN_BYTES,
        };
        !is_closing
            && self.body_remaining() <= max_unread
            && !has_option("close")
            && (self.request.version == Version::HTTP_11 || has_option("keep-alive"))
    }

    async fn write_head(&mut self, mut head: Box<ResponseHeader>, end: bool) -> Result<()> {
        let is_final = !head.status.is_informational();
        let is_http10 = self.request.version == Version::HTTP_10;
        if is_http10 && !is_final {
            return Ok(());
        }
        self.framing = self.framing_of(&head);
        // HTTP/1.0 has no chunked framing (RFC 9112 section 6.1).
        let was_chunked = is_http10 && head.remove_header(&TRANSFER_ENCODING).is_some();
        self.keep_alive = self.keeps_alive() && !was_chunked;
        let keep_alive = self.keep_alive;
        serialize_head(&head, keep_alive, self.connection()?.write_buffer());
        let is_upgrade = head.status == StatusCode::SWITCHING_PROTOCOLS;
        self.response = Some(head);
        if is_upgrade {
            self.flush().await?;
            *self.slot.lock() = self.connection.take();
            return Ok(());
        }
        if end {
            return self.write_end().await;
        }
        match is_final {
            true => Ok(()),
            false => self.flush().await,
        }
    }

    fn framing_of(&self, head: &ResponseHeader) -> ResponseFraming {
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        let has_no_body = self.request.method == Method::HEAD
            || head.status.is_informational()
            || matches!(head.status.as_u16(), 204 | 304);
        match length {
            _ if has_no_body => ResponseFraming::NoBody,
            _ if head.headers.contains_key(TRANSFER_ENCODING) => match self.request.version {
                Version::HTTP_10 => ResponseFraming::UntilClose,
                _ => ResponseFraming::Chunked,
            },
            Some(length) => ResponseFraming::Length(length),
            None => ResponseFraming::NoBody,
        }
    }

    async fn write_data(&mut self, mut data: Bytes, end: bool) -> Result<()> {
        match self.framing {
            ResponseFraming::NoBody => data.clear(),
            ResponseFraming::Length(left) => {
                data.truncate(left);
                self.framing = ResponseFraming::Length(left - data.len());
                self.write(&data).await?;
            }
            ResponseFraming::UntilClose => self.write(&data).await?,
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
        self.sent += data.len();
        match end {
            true => self.write_end().await,
            false => Ok(()),
        }
    }

    /// Writes the end of the response, once.
    async fn write_end(&mut self) -> Result<()> {
        if self.is_response_complete {
            return Ok(());
        }
        match self.framing {
            // The next response would be taken for the missing part of this one.
            ResponseFraming::Length(1..) => {
                return Err(Error::new_in(ErrorType::InternalError));
            }
            ResponseFraming::Chunked => self.write(b"0\r\n\r\n").await?,
            ResponseFraming::Length(0) | ResponseFraming::NoBody | ResponseFraming::UntilClose => {}
        }
        self.is_response_complete = true;
        self.flush().await
    }

    async fn write(&mut self, data: &[u8]) -> Result<()> {
        let written = self.connection()?.write_all(data).await;
        written
            .or_err(ErrorType::WriteError, "writing to a client")
            .map_err(Error::into_down)
    }

    async fn flush(&mut self) -> Result<()> {
        let flushed = self.connection()?.flush().await;
        flushed
            .or_err(ErrorType::WriteError, "writing to a client")
            .map_err(Error::into_down)
    }

    /// Makes an incomplete response that would end with the connection end with a reset.
    fn mark_truncated(&self) {
        if self.framing == ResponseFraming::UntilClose
            && !self.is_response_complete
            && let Some(connection) = &self.connection
        {
            connection.reset_on_drop();
        }
    }

    /// Ends the exchange, once.
    async fn end(&mut self) -> Result<()> {
        if self.connection.is_none() {
            return Ok(());
        }
        self.write_end().await?;
        if !self.keep_alive
            && let Some(mut connection) = self.connection.take()
        {
            let _gone = connection.shutdown().await;
        }
        Ok(())
    }
}

/// Leaves the connection in the slot if the response announced that it stays open. Pingora does not
/// end the session if an HTTP/2 upstream has answered and resets its stream before the end of the
/// request.
impl Drop for Http1Session {
    fn drop(&mut self) {
        if self.keep_alive && self.is_response_complete {
            *self.slot.lock() = self.connection.take();
        }
        self.mark_truncated();
    }
}

/// Appends a response head in HTTP/1.1.
fn serialize_head(head: &ResponseHeader, keep_alive: bool, text: &mut BytesMut) {
    let is_final = !head.status.is_informational();
    text.reserve(512);
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(head.status.as_str().as_bytes());
    text.extend_from_slice(b" ");
    let reason = head.status.canonical_reason().unwrap_or_default();
    text.extend_from_slice(reason.as_bytes());
    text.extend_from_slice(b"\r\n");
    for (name, value) in &head.headers {
        if !(is_final && matches!(*name, CONNECTION | DATE)) {
            headers::append_field(text, name.as_str(), value.as_bytes());
        }
    }
    if is_final {
        headers::append_field(text, DATE.as_str(), get_cached_date().as_bytes());
        let connection: &[u8] = match keep_alive {
            true => b"keep-alive",
            false => b"close",
        };
        headers::append_field(text, CONNECTION.as_str(), connection);
    }
    text.extend_from_slice(b"\r\n");
}

/// Completes with the reason for no longer serving the client.
fn poll_abort(connection: &mut ClientConnection, cx: &mut Context<'_>) -> Poll<Box<Error>> {
    if connection.has_unsent_data()
        && let Poll::Ready(Err(error)) = Pin::new(&mut *connection).poll_flush(cx)
    {
        let error = Error::because(ErrorType::WriteError, "writing to a client", error);
        return Poll::Ready(error.into_down());
    }
    if connection.body_remaining() != 0 {
        let error = ready!(connection.poll_deadline(cx));
        return Poll::Ready(Error::because(ErrorType::ReadError, "waiting", error).into_down());
    }
    let mut space = [0; 1];
    let read = Pin::new(&mut *connection).poll_read(cx, &mut ReadBuf::new(&mut space));
    Poll::Ready(match ready!(read) {
        Ok(()) => Error::new_down(ErrorType::ConnectionClosed),
        Err(error) => Error::because(ErrorType::ReadError, "polling a client", error).into_down(),
    })
}

impl RetryBuffer {
    pub(crate) fn append(&mut self, part: &[u8]) {
        if self.data.len() + part.len() > MAX_RETRY_BYTES {
            self.is_truncated = true;
            self.data = BytesMut::new();
        }
        if !self.is_truncated {
            self.data.extend_from_slice(part);
        }
    }

    /// Returns the data, unless there is none or it is incomplete.
    pub(crate) fn contents(&self) -> Option<Bytes> {
        let is_usable = !self.is_truncated && !self.data.is_empty();
        is_usable.then(|| Bytes::copy_from_slice(&self.data))
    }
}
