//! Detection of HTTP/2 without TLS by prior knowledge (RFC 9113 section 3.3).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::downstream::client_connection::ClientConnection;

/// The HTTP/2 connection preface. `PRI` is not a method of HTTP/1.
const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol that the first bytes of a connection indicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedProtocol {
    /// HTTP/2; the preface has not been consumed.
    Http2,
    /// HTTP/1, or a connection that was closed.
    Http1,
    /// The preface was not complete in time.
    TimedOut,
}

impl ClientConnection {
    /// Waits until the first bytes determine the protocol, without consuming them. If `stop`
    /// completes while no byte has arrived, returns `Http1`, so that the head reader handles the
    /// shutdown.
    pub async fn detect_protocol<F: Future<Output = ()>>(
        &mut self,
        mut stop: Pin<&mut F>,
    ) -> DetectedProtocol {
        let deadline = self.deadline.created_at() + self.limits.head_timeout;
        poll_fn(|cx| {
            loop {
                let compared = self.inbound.len().min(CLIENT_PREFACE.len());
                if self.inbound[..compared] != CLIENT_PREFACE[..compared] {
                    return Poll::Ready(DetectedProtocol::Http1);
                }
                if compared == CLIENT_PREFACE.len() {
                    return Poll::Ready(DetectedProtocol::Http2);
                }
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => continue,
                    // The head reader encounters the same condition.
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(DetectedProtocol::Http1),
                    Poll::Pending => {}
                }
                if self.inbound.is_empty() && stop.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(DetectedProtocol::Http1);
                }
                return self
                    .slow_client
                    .timer
                    .poll(deadline, cx)
                    .map(|()| DetectedProtocol::TimedOut);
            }
        })
        .await
    }
}
