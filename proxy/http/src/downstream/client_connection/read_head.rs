//! Reading and checking of request heads.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::downstream::client_connection::{ClientConnection, MAX_IDLE_BUFFER_BYTES};
use crate::message::framing::BodyFraming;
use crate::message::head::{HeadFault, HeadScanner, RequestHead};

/// During shutdown, a new connection without a request is closed only after this time, because its
/// client is about to send one.
pub const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);

/// Size of one read. The buffer is on the stack, so that waiting for a request uses no memory.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// The result of waiting for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum HeadEvent {
    /// A checked head is available.
    Ready,
    /// The client disconnected or was idle for too long, or the process is shutting down.
    Closed,
    /// The head was not complete in time.
    TimedOut,
    /// The head was rejected.
    Rejected(HeadFault),
}

impl ClientConnection {
    /// Waits for a complete head and checks it. An idle connection is closed when `stop` completes.
    pub async fn read_head<F: Future<Output = ()>>(
        &mut self,
        first: bool,
        mut stop: Pin<&mut F>,
    ) -> HeadEvent {
        self.release_idle_buffers();
        let waiting_since = if first {
            self.deadline.created_at()
        } else {
            Instant::now()
        };
        let mut head_since = first.then_some(waiting_since);
        let mut progress = HeadScanner::default();
        let mut may_skip_line = true;
        poll_fn(|cx| {
            loop {
                // Old clients send an empty line after a body (RFC 9112 section 2.2).
                if may_skip_line && self.inbound.starts_with(b"\r\n") {
                    self.inbound.advance(2);
                    (may_skip_line, progress) = (false, HeadScanner::default());
                }
                match progress.find_end(&self.inbound, &self.limits.head) {
                    Ok(Some(end)) => return Poll::Ready(self.accept_head(end)),
                    Ok(None) => {}
                    Err(fault) => return Poll::Ready(HeadEvent::Rejected(fault)),
                }
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(HeadEvent::Closed),
                    Poll::Ready(Ok(_)) => continue,
                    Poll::Pending => {}
                }
                let idle = self.inbound.is_empty();
                self.stopping = self.stopping || stop.as_mut().poll(cx).is_ready();
                let young = first.then_some(waiting_since + FIRST_REQUEST_GRACE);
                if idle && self.stopping && young.is_none_or(|until| until <= Instant::now()) {
                    return Poll::Ready(HeadEvent::Closed);
                }
                if !idle && head_since.is_none() {
                    head_since = Some(Instant::now());
                }
                let due = match (head_since, young) {
                    (Some(_), Some(young)) if idle && self.stopping => young,
                    (Some(since), _) => since + self.limits.head_timeout,
                    (None, _) => waiting_since + self.limits.idle_timeout,
                };
                if self.slow_client.timer.poll(due, cx).is_pending() {
                    return Poll::Pending;
                }
                return Poll::Ready(if idle {
                    HeadEvent::Closed
                } else {
                    HeadEvent::TimedOut
                });
            }
        })
        .await
    }

    fn release_idle_buffers(&mut self) {
        self.slow_client.reset();
        for buffer in [&mut self.inbound, &mut self.outbound] {
            if buffer.is_empty() && buffer.capacity() > MAX_IDLE_BUFFER_BYTES {
                *buffer = BytesMut::new();
            }
        }
    }

    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [std::mem::MaybeUninit::uninit(); READ_BUFFER_BYTES];
        let mut buf = ReadBuf::uninit(&mut space);
        ready!(self.transport_mut()?.poll_read(cx, &mut buf))?;
        self.inbound.extend_from_slice(buf.filled());
        self.slow_client.bytes_received += buf.filled().len() as u64;
        Poll::Ready(Ok(buf.filled().len()))
    }

    fn accept_head(&mut self, end: usize) -> HeadEvent {
        match RequestHead::check(&self.inbound[..end], &self.limits.head) {
            Ok(head) => {
                self.make_canonical(&head);
                self.framing = BodyFraming::begin(head.body);
                self.deadline
                    .start_request(self.limits.deadline, self.framing == BodyFraming::Done);
                HeadEvent::Ready
            }
            Err(fault) => HeadEvent::Rejected(fault),
        }
    }

    /// Replaces the head by its canonical form, so that only this is matched and forwarded.
    fn make_canonical(&mut self, head: &RequestHead) {
        self.head_left = head.len;
        let local = || self.digest.local_addr()?.as_inet().copied();
        if let Some(mut canonical) = head.canonical_form(&self.inbound[..head.len], local) {
            self.head_left = canonical.len();
            canonical.extend_from_slice(&self.inbound[head.len..]);
            self.inbound = canonical;
        }
    }

    /// Reads the rest of a request body.
    pub async fn skip_body(&mut self) -> io::Result<()> {
        poll_fn(|cx| {
            while self.framing != BodyFraming::Done {
                let mut space = [0; 4 << 10];
                let mut part = ReadBuf::new(&mut space);
                ready!(self.poll_body(cx, &mut part))?;
                if part.filled().is_empty() {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Marks the remaining input as unread, so that the connection lingers when it is dropped.
    pub fn linger_on_close(&mut self) {
        self.framing = BodyFraming::Length(u64::MAX);
    }
}
