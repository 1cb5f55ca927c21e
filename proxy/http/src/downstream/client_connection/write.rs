//! Writing to a client connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;

use crate::downstream::client_connection::{ClientConnection, WRITE_COALESCE_BYTES};
use crate::downstream::deadline::AbortReason;
use crate::downstream::limits::RESPONSE_BUFFER_BYTES;
use crate::message::framing::BodyFraming;

impl ClientConnection {
    /// Returns the buffer of coalesced writes, to append a response head to it.
    pub(crate) fn write_buffer(&mut self) -> &mut BytesMut {
        self.deadline.note_progress();
        &mut self.outbound
    }

    /// Coalesces small writes. A large write goes to the socket, as far as that accepts it.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.deadline.note_progress();
        if self.outbound.len() + data.len() <= WRITE_COALESCE_BYTES {
            self.outbound.extend_from_slice(data);
            return Poll::Ready(Ok(data.len()));
        }
        ready!(self.poll_drain(cx))?;
        match self.transport_mut()?.poll_write(cx, data) {
            Poll::Ready(written) => {
                let length = *written.as_ref().unwrap_or(&0);
                self.slow_client.bytes_sent += length as u64;
                if length == data.len() {
                    self.buffer_reservation = None;
                    self.slow_client.pause_reader_wait(&self.deadline);
                }
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_slow_reader(cx),
        }
    }

    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An empty buffer is not progress: a stalled write stays stalled.
        if self.outbound.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !self.outbound.is_empty() {
            let Some(transport) = self.transport.as_mut() else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            match Pin::new(transport).poll_write(cx, &self.outbound) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    self.outbound.advance(written);
                    self.slow_client.bytes_sent += written as u64;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_slow_reader(cx),
            }
        }
        self.release_http2_buffer();
        self.buffer_reservation = None;
        // The upstream was not waited for while the reader was slow.
        if self.slow_client.pause_reader_wait(&self.deadline) {
            self.deadline.note_progress();
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_slow_reader<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.set_backlog(true);
        self.slow_client.wait_for_reader();
        // HTTP/2 reservations are made per stream.
        if self.http2.is_none() && self.buffer_reservation.is_none() {
            let client = self.deadline.client_share();
            let reserved = self.response_buffers.reserve(client, RESPONSE_BUFFER_BYTES);
            if reserved.is_none() {
                return self.abort(AbortReason::BufferExhausted);
            }
            self.buffer_reservation = reserved;
        }
        let reason = ready!(self.slow_client.poll(&self.deadline, &self.limits, cx));
        self.abort(reason)
    }

    /// Handles the result of flushing the transport. The last data may still be in the buffer of
    /// the TLS layer, so that the reader is waited for. Plain TCP has no such buffer, and its flush
    /// has no meaning.
    fn poll_tls_flush(
        &mut self,
        flushed: Poll<io::Result<()>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if flushed.is_pending() {
            return self.poll_slow_reader(cx);
        }
        if self.is_tls() {
            self.buffer_reservation = None;
            self.slow_client.pause_reader_wait(&self.deadline);
            self.set_backlog(false);
        }
        flushed
    }

    fn set_backlog(&self, waits: bool) {
        if let Some(http2) = self.http2.as_deref() {
            http2.has_backlog.store(waits, Ordering::Relaxed);
        }
    }
}

impl AsyncWrite for ClientConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.tunnel.load(Ordering::Acquire) {
            this.framing = BodyFraming::Tunnel;
        }
        this.poll_send(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.http2.is_some() {
            return self.poll_send_frames(cx, parts);
        }
        let first = parts.iter().find(|part| !part.is_empty());
        self.poll_write(cx, first.map_or(&[], |part| part))
    }

    /// Only HTTP/2 frames: a response of HTTP/1 is written in one piece.
    fn is_write_vectored(&self) -> bool {
        self.http2.is_some()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.defers_flush(cx) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(cx))?;
        let flushed = self.transport_mut()?.poll_flush(cx);
        self.poll_tls_flush(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        let closed = self.transport_mut()?.poll_shutdown(cx);
        self.poll_tls_flush(closed, cx)
    }
}
