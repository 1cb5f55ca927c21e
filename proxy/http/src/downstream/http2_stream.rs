//! An HTTP/2 stream as a Pingora session.
//!
//! Pingora waits without a limit for the body of a stream and for its flow-control window. It
//! therefore gets a [`ClientStream`] instead of its own session: a wrapper whose reads and writes
//! are subject to the limits of [`crate::downstream::deadline`], as they are for HTTP/1.

mod exchange;
mod session;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::{HeaderMap, HeaderValue};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;

use crate::client_shares::{BudgetPermit, SharedBudget};
use crate::downstream::client_connection::ClientConnection;
use crate::downstream::client_handle::{Attributes, ClientHandle};
use crate::downstream::deadline::{AbortReason, RequestDeadline, SlowClientGuard};
use crate::downstream::http1_session::RetryBuffer;
use crate::downstream::limits::{HttpLimits, RESPONSE_BUFFER_BYTES};
use crate::message::MAX_FRAME_DATA_BYTES;
pub use exchange::Http2Exchange;

/// The chunk of a client that reads fast, in windows at the minimum rate.
const LARGE_CHUNK_WINDOWS: usize = 2;

/// A client reads fast if it accepts a chunk within this fraction of a window.
const FAST_DIVISOR: u32 = 10;

/// Properties of the connection that its streams share.
#[derive(Clone, Debug)]
pub struct Http2ConnectionInfo {
    /// Whether the connection uses TLS.
    is_tls: bool,
    /// What the server knows of the connection.
    attributes: Option<Attributes>,
    /// The budget of responses to slow readers.
    buffers: Arc<SharedBudget>,
}

/// A stream with its deadlines.
pub struct ClientStream {
    exchange: Http2Exchange,
    limits: Arc<HttpLimits>,
    slow_client: SlowClientGuard,
    deadline: Arc<RequestDeadline>,
    buffers: Arc<SharedBudget>,
    /// The reservation while the reader of the response is slow.
    buffer_reservation: Option<BudgetPermit>,
    /// Whether the client accepted the last chunk of the response quickly.
    reads_fast: bool,
    /// Received data that has not been forwarded.
    pending_data: Bytes,
    retry_buffer: Option<RetryBuffer>,
    /// `Content-Length`. The HTTP/2 library resets a stream with more or less.
    content_length: Option<u64>,
    /// Whether the end of the body was read. Before trailers (RFC 9113 section 8.1), the body ends
    /// and the stream does not.
    is_body_read: bool,
}

impl Http2ConnectionInfo {
    /// Creates the properties of a connection, whose streams share the budget `buffers` with others.
    pub fn new(connection: &ClientConnection) -> Self {
        Self {
            is_tls: connection.is_tls(),
            attributes: connection.attributes().cloned(),
            buffers: connection.response_buffers(),
        }
    }
}

impl ClientStream {
    /// Creates a stream whose deadline starts now. Hooks find its [`RequestDeadline`] in the
    /// request extensions.
    pub fn new(
        mut exchange: Http2Exchange,
        limits: Arc<HttpLimits>,
        connection: &Http2ConnectionInfo,
    ) -> Self {
        let deadline = Arc::new(RequestDeadline::new());
        deadline.start_request(limits.deadline, exchange.is_body_done());
        let empty = http::Request::new(()).into_parts().0;
        let header = std::mem::replace(&mut exchange.request, RequestHeader::from(empty));
        let mut parts = http::request::Parts::from(header);
        parts.extensions.insert(ClientHandle {
            deadline: Arc::clone(&deadline),
            is_tls: connection.is_tls,
            attributes: connection.attributes.clone(),
            bound_upstream: None,
            connection: None,
        });
        join_cookies(&mut parts.headers);
        set_host(&mut parts);
        let length = parts.headers.get(CONTENT_LENGTH);
        let content_length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        exchange.request = RequestHeader::from(parts);
        let buffers = Arc::clone(&connection.buffers);
        Self {
            exchange,
            limits,
            slow_client: SlowClientGuard::default(),
            deadline,
            buffers,
            buffer_reservation: None,
            reads_fast: false,
            pending_data: Bytes::new(),
            retry_buffer: None,
            content_length,
            is_body_read: false,
        }
    }

    /// Returns the deadline of this stream.
    pub fn deadline(&self) -> Arc<RequestDeadline> {
        Arc::clone(&self.deadline)
    }

    /// Returns the next part of the body, which is never empty, and `None` at its end. (Pingora
    /// would encode an empty part for an HTTP/1 upstream as the last chunk, and then send the last
    /// chunk again.)
    ///
    /// # Errors
    /// The client reset the stream or was too slow.
    async fn read(&mut self) -> Result<Option<Bytes>> {
        loop {
            if !self.pending_data.is_empty() && !self.awaits_end() {
                let part = std::mem::take(&mut self.pending_data);
                if let Some(buffer) = &mut self.retry_buffer {
                    buffer.append(&part);
                }
                return Ok(Some(part));
            }
            let frame = self.read_frame().await?;
            if frame.is_none() || self.exchange.is_body_done() {
                self.is_body_read = true;
                self.slow_client.reading = None;
                self.deadline.note_request_complete();
            }
            match frame.filter(|data| !data.is_empty()) {
                Some(data) => self.pending_data = data,
                None if self.is_body_read && self.pending_data.is_empty() => return Ok(None),
                None => {}
            }
        }
    }

    /// Returns whether the body is complete by its length and the stream has not ended: more data
    /// would be a stream error (RFC 9113 section 8.1.1).
    fn awaits_end(&self) -> bool {
        let is_complete = |length: u64| length <= self.exchange.received as u64;
        !self.is_body_read && self.content_length.is_some_and(is_complete)
    }

    /// Returns the payload of the next DATA frame, which may be empty, or an error if the client is
    /// too slow.
    async fn read_frame(&mut self) -> Result<Option<Bytes>> {
        let Self {
            exchange,
            limits,
            slow_client,
            deadline,
            ..
        } = self;
        let mut reading = pin!(exchange.read_data());
        let read = poll_fn(|cx| match reading.as_mut().poll(cx) {
            Poll::Ready(read) => {
                deadline.note_client_aborted(read.is_err());
                Poll::Ready(read)
            }
            Poll::Pending => {
                slow_client.wait_for_body();
                slow_client
                    .poll(deadline, limits, cx)
                    .map(|reason| Err(abort_error(deadline, reason)))
            }
        })
        .await?;
        slow_client.bytes_received += read.as_ref().map_or(0, Bytes::len) as u64;
        Ok(read)
    }

    /// Waits, after the end of the request, until the client resets the stream or a deadline
    /// passes.
    async fn wait_for_abort(&mut self) -> Box<Error> {
        // The client is not waited for, although its request may not have ended.
        self.slow_client.reading = None;
        let Self {
            exchange,
            limits,
            slow_client,
            deadline,
            ..
        } = self;
        poll_fn(|cx: &mut Context<'_>| match exchange.poll_reset(cx) {
            Poll::Ready(end) => {
                deadline.note_client_aborted(true);
                Poll::Ready(end.map_or_else(
                    |error| error,
                    |reason| {
                        Error::explain(
                            ErrorType::H2Error,
                            format!("the client reset the stream: {reason}"),
                        )
                    },
                ))
            }
            Poll::Pending => slow_client
                .poll_upstream(deadline, limits, cx)
                .map(|reason| abort_error(deadline, reason)),
        })
        .await
    }

    /// Writes data in chunks, each of which must be accepted within the time that the minimum rate
    /// allows.
    async fn write(&mut self, mut data: Bytes, end: bool) -> Result<()> {
        self.deadline.note_progress();
        loop {
            let chunk_len = self.chunk_len();
            if data.len() <= chunk_len {
                return self.write_chunk(data, end).await;
            }
            let part = data.split_to(chunk_len);
            self.write_chunk(part, false).await?;
        }
    }

    /// Returns the size of the next chunk.
    fn chunk_len(&self) -> usize {
        let chunk_len = usize::try_from(self.limits.bytes_at_min_rate()).unwrap_or(usize::MAX);
        match self.reads_fast {
            true => chunk_len.saturating_mul(LARGE_CHUNK_WINDOWS),
            false => chunk_len,
        }
        .min(MAX_FRAME_DATA_BYTES)
    }

    async fn write_chunk(&mut self, data: Bytes, end: bool) -> Result<()> {
        let Self {
            exchange,
            limits,
            slow_client,
            deadline,
            buffers,
            buffer_reservation,
            reads_fast,
            ..
        } = self;
        let client = deadline.client_share();
        let length = data.len() as u64;
        slow_client.write_windows = match length > limits.bytes_at_min_rate() {
            true => {
                // Chunks before it, which were read fast, do not extend its time.
                slow_client.restart_reader_wait();
                LARGE_CHUNK_WINDOWS as u32
            }
            false => 1,
        };
        let mut waiting_since = None;
        let mut writing = pin!(exchange.write_data(data, end));
        poll_fn(|cx| match writing.as_mut().poll(cx) {
            Poll::Ready(written) => {
                deadline.note_client_aborted(written.is_err());
                Poll::Ready(written)
            }
            Poll::Pending => {
                waiting_since.get_or_insert_with(Instant::now);
                slow_client.wait_for_reader();
                if buffer_reservation.is_none() {
                    *buffer_reservation = buffers.reserve(client, RESPONSE_BUFFER_BYTES);
                }
                if buffer_reservation.is_none() {
                    return Poll::Ready(Err(abort_error(deadline, AbortReason::BufferExhausted)));
                }
                slow_client
                    .poll(deadline, limits, cx)
                    .map(|reason| Err(abort_error(deadline, reason)))
            }
        })
        .await?;
        *buffer_reservation = None;
        *reads_fast = waiting_since
            .is_none_or(|since: Instant| since.elapsed() < limits.stall_timeout / FAST_DIVISOR);
        slow_client.bytes_sent += length;
        deadline.note_response_complete(end);
        // The upstream was not waited for while the reader was slow.
        if slow_client.pause_reader_wait(deadline) {
            deadline.note_progress();
        }
        Ok(())
    }

    /// Writes data that is not subject to flow control, possibly the end of the response. Fails
    /// only if the client has reset the stream.
    fn write_control(
        &mut self,
        last: bool,
        write: impl FnOnce(&mut Http2Exchange) -> Result<()>,
    ) -> Result<()> {
        let written = write(&mut self.exchange);
        self.deadline.note_client_aborted(written.is_err());
        self.deadline
            .note_response_complete(last && written.is_ok() && self.exchange.response.is_some());
        written
    }
}

/// Records the reason and returns the error of a request that the gateway aborted.
fn abort_error(deadline: &RequestDeadline, reason: AbortReason) -> Box<Error> {
    deadline.set_abort_reason(reason);
    Error::explain(ErrorType::ReadTimedout, "request aborted by the gateway").into_down()
}

/// Sets `Host` to the authority, which Pingora keeps in the target only, where a rewrite would lose
/// it, and which an HTTP/1.1 upstream expects in `Host`.
fn set_host(head: &mut http::request::Parts) {
    if let (None, Some(authority)) = (head.headers.get(HOST), head.uri.authority())
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(HOST, host);
    }
}

/// Joins split `Cookie` fields, which HTTP/1 does not allow (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, whole);
    }
}
