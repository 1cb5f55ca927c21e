//! The half of a connection that writes.

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::AsyncWrite;

use crate::downstream::client_connection::{GATHER, Wire};
use crate::downstream::deadline::Fault;

impl Wire {
    /// Gathers small writes; a large one goes to the socket, or as much of it as that takes.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.watch.note_progress();
        if self.outbound.len() + data.len() <= GATHER {
            self.outbound.extend_from_slice(data);
            return Poll::Ready(Ok(data.len()));
        }
        ready!(self.poll_drain(cx))?;
        match self.io()?.poll_write(cx, data) {
            Poll::Ready(written) => {
                let length = *written.as_ref().unwrap_or(&0);
                self.patience.sent += length as u64;
                if length == data.len() {
                    self.held = None;
                    self.patience.rest_from_reader();
                }
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_slow_reader(cx),
        }
    }

    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing to drain is no progress: a write that is stalled stays so.
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
                    self.patience.sent += written as u64;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_slow_reader(cx),
            }
        }
        self.held = None;
        // While a slow reader took its time, the upstream was not waited for.
        if self.patience.rest_from_reader() {
            self.watch.note_progress();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_slow_reader<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.note_backlog(true);
        self.patience.wait_for_reader();
        // Those of HTTP/2 are the streams' own.
        if let (None, None, Some(permit)) = (&self.frames, &self.held, &self.permit) {
            self.held = permit.hold_response(&self.limits, self.watch.buffer_units());
            if self.held.is_none() {
                return self.fail(Fault::NoBuffer);
            }
        }
        let fault = ready!(self.patience.poll(&self.watch, &self.limits, cx));
        self.fail(fault)
    }

    /// What was written last may have got no further than the encryption's own buffer: it is waited
    /// for as long as anything else. Plain TCP has none, so that there a flush says nothing.
    fn poll_last(
        &mut self,
        flushed: Poll<io::Result<()>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if flushed.is_pending() {
            return self.poll_slow_reader(cx);
        }
        if self.is_tls() {
            self.held = None;
            self.patience.rest_from_reader();
            self.note_backlog(false);
        }
        flushed
    }

    fn note_backlog(&self, waits: bool) {
        if let Some((_, backlog)) = self.frames.as_deref() {
            backlog.note(waits);
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.tunnel.load(Ordering::Acquire) {
            this.enter_tunnel();
            return this.poll_write_expiring(cx, data);
        }
        this.poll_send(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        let flushed = self.io()?.poll_flush(cx);
        self.poll_last(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        let closed = self.io()?.poll_shutdown(cx);
        self.poll_last(closed, cx)
    }
}
