use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};

use crate::downstream::client_connection::{KEEP, Wire};
use crate::message::framing::Framing;
use crate::message::head::{Head, HeadFault, Progress};

/// A client that has just connected is about to ask: the stop finds its connection idle only after
/// so long.
pub(crate) const YOUNG: Duration = Duration::from_secs(1);

/// One read; the buffer stands on the stack, so that waiting for a request costs no memory.
const READ: usize = 8 << 10;

/// What came of waiting for a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeadEvent {
    /// A head that passed; Pingora may read.
    Ready,
    /// The client left, was idle for too long, or the process stops.
    Closed,
    /// The head did not arrive in time.
    Late,
    /// The head is refused.
    Refused(HeadFault),
}

impl Wire {
    /// Waits for a whole head and checks it. An idle connection ends when `stop` does.
    pub(crate) async fn read_head<F: Future<Output = ()>>(
        &mut self,
        first: bool,
        mut stop: Pin<&mut F>,
    ) -> HeadEvent {
        self.turn_idle();
        let waiting_since = if first {
            self.watch.born()
        } else {
            Instant::now()
        };
        let mut head_since = first.then_some(waiting_since);
        let mut progress = Progress::default();
        poll_fn(|cx| {
            loop {
                match progress.find_end(&self.inbound, &self.limits.head) {
                    Ok(Some(end)) => return Poll::Ready(self.accept(end)),
                    Ok(None) => {}
                    Err(fault) => return Poll::Ready(HeadEvent::Refused(fault)),
                }
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(HeadEvent::Closed),
                    Poll::Ready(Ok(_)) => continue,
                    Poll::Pending => {}
                }
                let idle = self.inbound.is_empty();
                self.stopping = self.stopping || stop.as_mut().poll(cx).is_ready();
                let young = first.then_some(waiting_since + YOUNG);
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
                if self.patience.alarm.poll(due, cx).is_pending() {
                    return Poll::Pending;
                }
                return Poll::Ready(if idle {
                    HeadEvent::Closed
                } else {
                    HeadEvent::Late
                });
            }
        })
        .await
    }

    fn turn_idle(&mut self) {
        self.patience.begin();
        for buffer in [&mut self.inbound, &mut self.outbound] {
            if buffer.is_empty() && buffer.capacity() > KEEP {
                *buffer = BytesMut::new();
            }
        }
    }

    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [std::mem::MaybeUninit::uninit(); READ];
        let mut buf = ReadBuf::uninit(&mut space);
        std::task::ready!(self.io()?.poll_read(cx, &mut buf))?;
        self.inbound.extend_from_slice(buf.filled());
        self.patience.received += buf.filled().len() as u64;
        Poll::Ready(Ok(buf.filled().len()))
    }

    fn accept(&mut self, end: usize) -> HeadEvent {
        match Head::check(&self.inbound[..end], &self.limits.head) {
            Ok(head) => {
                self.cut(&head);
                self.framing = Framing::begin(head.body);
                self.watch
                    .begin(self.limits.deadline, self.framing == Framing::Done);
                self.unheard.store(true, Ordering::Relaxed);
                HeadEvent::Ready
            }
            Err(fault) => HeadEvent::Refused(fault),
        }
    }

    /// Turns an absolute target into origin form, so that one form is matched and forwarded.
    fn cut(&mut self, head: &Head) {
        let gone = head.authority.len();
        if gone > 0 {
            self.inbound
                .copy_within(head.authority.end.., head.authority.start);
            self.inbound.truncate(self.inbound.len() - gone);
        }
        self.head_left = head.len - gone;
    }

    /// Marks the rest of what the client sends as unread, so that the connection lingers when it is
    /// dropped.
    pub(crate) fn abandon(&mut self) {
        self.framing = Framing::Length(u64::MAX);
    }
}
