//! HTTP/2 without TLS by prior knowledge (RFC 9113 section 3.3): the first bytes tell it from
//! HTTP/1.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::downstream::client_connection::ClientConnection;

/// How every HTTP/2 connection begins; no method of HTTP/1 is `PRI`.
const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetectedProtocol {
    /// HTTP/2's preface, which is still to be read.
    Http2,
    /// Something else, for the reader of heads.
    Http1,
    /// Too little, for too long.
    TimedOut,
}

impl ClientConnection {
    /// Waits until the first bytes tell the protocol. They stay where they are. A stop leaves a
    /// connection that has said nothing to the reader of heads.
    pub(crate) async fn detect_protocol<F: Future<Output = ()>>(
        &mut self,
        mut stop: Pin<&mut F>,
    ) -> DetectedProtocol {
        let due = self.deadline.created_at() + self.limits.head_timeout;
        poll_fn(|cx| {
            loop {
                let known = self.inbound.len().min(CLIENT_PREFACE.len());
                if self.inbound[..known] != CLIENT_PREFACE[..known] {
                    return Poll::Ready(DetectedProtocol::Http1);
                }
                if known == CLIENT_PREFACE.len() {
                    return Poll::Ready(DetectedProtocol::Http2);
                }
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => continue,
                    // The reader of heads finds the same.
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(DetectedProtocol::Http1),
                    Poll::Pending => {}
                }
                if self.inbound.is_empty() && stop.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(DetectedProtocol::Http1);
                }
                return self
                    .slow_client
                    .timer
                    .poll(due, cx)
                    .map(|()| DetectedProtocol::TimedOut);
            }
        })
        .await
    }
}
