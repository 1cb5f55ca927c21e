//! The transport of HTTP/2 frames.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;

use crate::downstream::client_connection::http2_frames::{
    EmptyDataFilter, Http2FrameTracker, PrefaceFault,
};
use crate::downstream::client_connection::{
    ClientConnection, MAX_IDLE_BUFFER_BYTES, WRITE_COALESCE_BYTES,
};

/// The state of a connection that carries HTTP/2.
#[derive(Debug, Default)]
pub(super) struct Http2Io {
    /// Finds frames that arrive too slowly.
    pub(super) tracker: Http2FrameTracker,
    /// For the connection of a trusted proxy.
    pub(super) filter: Option<EmptyDataFilter>,
    /// Whether written data waits for the client to read it.
    pub(super) has_backlog: Arc<AtomicBool>,
    flush: DeferredFlush,
}

/// The HTTP/2 layer flushes after every frame with much data. A flush is therefore deferred to the
/// next poll of the connection's task: what its streams write until then is sent together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DeferredFlush {
    /// Nothing was deferred.
    #[default]
    None,
    /// Deferred to the next poll, for which the task was woken.
    Deferred,
    /// The next poll has started: the next flush is carried out.
    Due,
}

impl Http2Io {
    /// Follows bytes that are passed on.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<(), PrefaceFault> {
        if let Some(filter) = &mut self.filter {
            filter.checked = filter.checked.saturating_sub(bytes.len());
        }
        self.tracker.advance(bytes)
    }
}

impl ClientConnection {
    /// Returns how many buffered bytes may be passed on. Reads more until there are some, if the
    /// frames of the connection are filtered.
    pub(super) fn poll_buffered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let filter = self.http2.as_deref_mut().and_then(|it| it.filter.as_mut());
            let Some(filter) = filter else {
                return Poll::Ready(Ok(self.inbound.len()));
            };
            filter.check(&mut self.inbound);
            let checked = filter.checked;
            if checked > 0 || ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(checked));
            }
        }
    }

    /// Sends HTTP/2 frames. Small ones are coalesced; large ones are sent together with what was
    /// coalesced, so that the header of a frame occupies no TLS record of its own. A frame that
    /// fills a record is not copied.
    pub(super) fn poll_send_frames(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.outbound.len() + length < WRITE_COALESCE_BYTES {
            for part in parts {
                self.outbound.extend_from_slice(part);
            }
            return Poll::Ready(Ok(length));
        }
        loop {
            let Some(transport) = self.transport.as_mut() else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            let mut all = [&self.outbound[..], &[], &[]].map(IoSlice::new);
            for (slot, part) in all[1..].iter_mut().zip(parts) {
                *slot = *part;
            }
            let written = match Pin::new(transport).poll_write_vectored(cx, &all) {
                Poll::Ready(written) => written?,
                Poll::Pending => return self.poll_slow_reader(cx),
            };
            self.slow_client.bytes_sent += written as u64;
            let coalesced = written.min(self.outbound.len());
            self.outbound.advance(coalesced);
            ready!(self.poll_drain(cx))?;
            self.release_http2_buffer();
            if written > coalesced {
                self.slow_client.pause_reader_wait(&self.deadline);
                return Poll::Ready(Ok(written - coalesced));
            }
        }
    }

    /// Records that a poll of the connection's task has started: the HTTP/2 layer reads first.
    pub(super) fn note_http2_poll(&mut self) {
        if let Some(http2) = self.http2.as_deref_mut()
            && http2.flush == DeferredFlush::Deferred
        {
            http2.flush = DeferredFlush::Due;
        }
    }

    /// Returns whether a flush is deferred. During the handshake none is, because the HTTP/2 layer
    /// then waits for the client and does not flush again. While the client reads slowly none is, so
    /// that no more frames are written.
    pub(super) fn defers_flush(&mut self, cx: &Context<'_>) -> bool {
        let must_wait = self.outbound.is_empty() || self.slow_client.is_waiting_for_reader();
        let Some(http2) = self.http2.as_deref_mut() else {
            return false;
        };
        if must_wait || !http2.tracker.has_settings() || http2.flush == DeferredFlush::Due {
            http2.flush = DeferredFlush::None;
            return false;
        }
        if http2.flush == DeferredFlush::None {
            http2.flush = DeferredFlush::Deferred;
            cx.waker().wake_by_ref();
        }
        true
    }

    /// Frees the buffer of coalesced frames, which an idle connection does not need.
    pub(super) fn release_http2_buffer(&mut self) {
        let is_large = self.outbound.capacity() > MAX_IDLE_BUFFER_BYTES;
        if self.http2.is_some() && self.outbound.is_empty() && is_large {
            self.outbound = BytesMut::new();
        }
    }
}
