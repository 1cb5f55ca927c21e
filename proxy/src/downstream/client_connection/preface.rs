//! HTTP/2 without TLS by prior knowledge (RFC 9113 section 3.3): the first bytes tell it from
//! HTTP/1.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::downstream::client_connection::Wire;

/// How every HTTP/2 connection begins; no method of HTTP/1 is `PRI`.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// HTTP/2's preface, which is still to be read.
    Http2,
    /// Something else, for the reader of heads.
    Http1,
    /// Too little, for too long.
    Late,
}

impl Wire {
    /// Waits until the first bytes tell the protocol. They stay where they are. A stop leaves a
    /// connection that has said nothing to the reader of heads.
    pub(crate) async fn opening<F: Future<Output = ()>>(
        &mut self,
        mut stop: Pin<&mut F>,
    ) -> Opening {
        let due = self.watch.born() + self.limits.head_timeout;
        poll_fn(|cx| {
            loop {
                let known = self.inbound.len().min(PREFACE.len());
                if self.inbound[..known] != PREFACE[..known] {
                    return Poll::Ready(Opening::Http1);
                }
                if known == PREFACE.len() {
                    return Poll::Ready(Opening::Http2);
                }
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => continue,
                    // The reader of heads finds the same.
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Opening::Http1),
                    Poll::Pending => {}
                }
                if self.inbound.is_empty() && stop.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Opening::Http1);
                }
                return self.patience.alarm.poll(due, cx).map(|()| Opening::Late);
            }
        })
        .await
    }
}
