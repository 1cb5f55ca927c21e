//! The end of a tunnel whose token expires: close frames with code 1008 (policy violation) are sent
//! to both sides of the WebSocket, at a frame boundary.

use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};

use crate::downstream::client_connection::ClientConnection;
use crate::downstream::deadline::AbortReason;
use crate::message::framing::BodyFraming;

/// Time for both sides to complete the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A close frame with code 1008 (policy violation) and the reason `token expired` (RFC 6455 section
/// 7.4.1).
const CLOSE_TO_CLIENT: &[u8] = b"\x88\x0f\x03\xf0token expired";

/// The same frame as sent by a client, with a mask (section 5.3). The mask is zero, because the
/// text is not controlled by a client.
const CLOSE_TO_UPSTREAM: &[u8] = b"\x88\x8f\0\0\0\0\x03\xf0token expired";

/// The state of a tunnel that ends with its token.
#[derive(Debug)]
pub(super) struct TunnelExpiry {
    expires_at: Instant,
    to_client: WebSocketFrameTracker,
    to_upstream: WebSocketFrameTracker,
    /// Time by which both sides must have closed, once the token has expired.
    close_deadline: Option<Instant>,
    /// Whether the close frame to the upstream is pending.
    notify_upstream: bool,
}

/// The position in a stream of WebSocket frames (RFC 6455 section 5.2).
#[derive(Clone, Debug)]
struct WebSocketFrameTracker {
    position: FramePosition,
}

#[derive(Clone, Debug)]
enum FramePosition {
    /// In the head of the 101 response: matched bytes of the empty line.
    ResponseHead(u8),
    /// In a frame header: received bytes and their number.
    FrameHeader([u8; 14], u8),
    /// In a payload: remaining bytes.
    Payload(u64),
}

// === impl TunnelExpiry ===

impl TunnelExpiry {
    pub(super) fn new(expires_at: Instant) -> Self {
        let to_client = WebSocketFrameTracker {
            position: FramePosition::ResponseHead(0),
        };
        let to_upstream = WebSocketFrameTracker {
            position: FramePosition::FrameHeader([0; 14], 0),
        };
        Self {
            expires_at,
            to_client,
            to_upstream,
            close_deadline: None,
            notify_upstream: true,
        }
    }

    /// Returns how many bytes of `data` may be sent to the client: no frame follows the one during
    /// which the token expired.
    pub(super) fn writable_len(&self, data: &[u8]) -> usize {
        if self.close_deadline.is_none() {
            return data.len();
        }
        self.to_client.clone().advance_to_boundary(data)
    }

    /// Records that `data` was sent to the client. Returns the bytes to send after it.
    pub(super) fn note_written(&mut self, data: &[u8]) -> &'static [u8] {
        let was_within = !self.to_client.is_at_boundary();
        self.to_client.advance(data);
        let is_last =
            self.close_deadline.is_some() && was_within && self.to_client.is_at_boundary();
        if is_last { CLOSE_TO_CLIENT } else { b"" }
    }
}

// === impl ClientConnection ===

impl ClientConnection {
    /// Switches to tunnel framing after a hook has opened the tunnel.
    pub(super) fn enter_tunnel(&mut self) {
        if self.framing != BodyFraming::Tunnel {
            self.framing = BodyFraming::Tunnel;
            self.expiry = self
                .expires_at
                .get()
                .map(|at| Box::new(TunnelExpiry::new(*at)));
        }
    }

    /// Reads from the client of a tunnel that ends with its token.
    pub(super) fn poll_read_expiring(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.expiry.is_none() {
            return self.poll_body(cx, buf);
        }
        if self.poll_expiry(cx) {
            return self.poll_read_close(cx, buf);
        }
        let before = buf.filled().len();
        let read = self.poll_body(cx, buf);
        if let Some(expiry) = self.expiry.as_deref_mut() {
            expiry.to_upstream.advance(&buf.filled()[before..]);
        }
        read
    }

    /// Returns whether the token has expired. On expiry, queues the close frame for the client,
    /// unless another frame is being sent.
    fn poll_expiry(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(expiry) = self.expiry.as_deref_mut() else {
            return false;
        };
        if expiry.close_deadline.is_some() {
            return true;
        }
        if self.expiry_timer.poll(expiry.expires_at, cx).is_pending() {
            return false;
        }
        expiry.close_deadline = Some(Instant::now() + CLOSE_TIMEOUT);
        if expiry.to_client.is_at_boundary() {
            self.outbound.extend_from_slice(CLOSE_TO_CLIENT);
        }
        self.deadline.set_abort_reason(AbortReason::TokenExpired);
        true
    }

    /// Returns the close frame for the upstream, unless another frame is being sent, then waits for
    /// the client to close.
    fn poll_read_close(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(expiry) = self.expiry.as_deref_mut()
            && std::mem::take(&mut expiry.notify_upstream)
            && expiry.to_upstream.is_at_boundary()
            && buf.remaining() >= CLOSE_TO_UPSTREAM.len()
        {
            buf.put_slice(CLOSE_TO_UPSTREAM);
            return Poll::Ready(Ok(()));
        }
        self.poll_close(cx)
    }

    /// Returns an error when the time for the closing handshake is over.
    fn poll_close_timeout<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let until = self
            .expiry
            .as_deref()
            .and_then(|expiry| expiry.close_deadline)
            .unwrap_or_else(Instant::now);
        match self.expiry_timer.poll(until, cx) {
            Poll::Ready(()) => self.abort(AbortReason::TokenExpired),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Checks the expiry of the token during a write, which suspends reading. Ready with the error
    /// when the time for the closing handshake is over.
    pub(super) fn poll_expired<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.poll_expiry(cx) {
            self.poll_close_timeout(cx)
        } else {
            Poll::Pending
        }
    }

    /// Waits until the client has closed the connection, discarding its input.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(Err(error)) = self.poll_drain(cx) {
            return Poll::Ready(Err(error));
        }
        let mut space = [0; 1024];
        loop {
            let mut rest = ReadBuf::new(&mut space);
            match self.transport_mut()?.poll_read(cx, &mut rest) {
                Poll::Ready(Ok(())) if rest.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        self.poll_close_timeout(cx)
    }

    /// Writes to the client of a tunnel that ends with its token.
    pub(super) fn poll_write_expiring(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(expired) = self.poll_expired(cx) {
            return Poll::Ready(expired);
        }
        let allowed = self
            .expiry
            .as_deref()
            .map_or(data.len(), |expiry| expiry.writable_len(data));
        if allowed == 0 {
            return Poll::Ready(Ok(data.len()));
        }
        let written = std::task::ready!(self.poll_send(cx, &data[..allowed]))?;
        let after = self
            .expiry
            .as_deref_mut()
            .map_or(&b""[..], |expiry| expiry.note_written(&data[..written]));
        self.outbound.extend_from_slice(after);
        Poll::Ready(Ok(written))
    }
}

// === impl WebSocketFrameTracker ===

impl WebSocketFrameTracker {
    fn is_at_boundary(&self) -> bool {
        matches!(self.position, FramePosition::FrameHeader(_, 0))
    }

    fn advance(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let taken = self.step(data);
            data = &data[taken..];
        }
    }

    /// Advances to the end of the current frame. Returns the number of bytes.
    fn advance_to_boundary(&mut self, data: &[u8]) -> usize {
        let mut taken = 0;
        while taken < data.len() && !self.is_at_boundary() {
            taken += self.step(&data[taken..]);
        }
        taken
    }

    /// Processes bytes of one part. `data` must not be empty.
    fn step(&mut self, data: &[u8]) -> usize {
        match &mut self.position {
            FramePosition::ResponseHead(seen) => {
                *seen = match (data[0], *seen) {
                    (b'\r', 2) => 3,
                    (b'\r', _) => 1,
                    (b'\n', 1) => 2,
                    (b'\n', 3) => 4,
                    _ => 0,
                };
                if *seen == 4 {
                    self.position = FramePosition::FrameHeader([0; 14], 0);
                }
                1
            }
            FramePosition::FrameHeader(header, have) => {
                header[usize::from(*have)] = data[0];
                *have += 1;
                if let Some(payload) = payload_length(&header[..usize::from(*have)]) {
                    self.position = if payload == 0 {
                        FramePosition::FrameHeader([0; 14], 0)
                    } else {
                        FramePosition::Payload(payload)
                    };
                }
                1
            }
            FramePosition::Payload(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                *left -= taken as u64;
                if *left == 0 {
                    self.position = FramePosition::FrameHeader([0; 14], 0);
                }
                taken
            }
        }
    }
}

/// Returns the payload length once the header is complete.
fn payload_length(header: &[u8]) -> Option<u64> {
    let second = *header.get(1)?;
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    if header.len() < 2 + extended + mask {
        return None;
    }
    Some(match extended {
        0 => u64::from(second & 0x7f),
        _ => header[2..2 + extended]
            .iter()
            .fold(0, |length, byte| length << 8 | u64::from(*byte)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_boundaries_follow_the_headers() {
        let frames: [(&[u8], usize); 5] = [
            (b"\x81\x05", 5),
            (b"\x81\x85mask", 5),
            (b"\x82\x7e\x01\x00", 256),
            (b"\x82\xff\0\0\0\0\0\x01\0\0mask", 65_536),
            (b"\x8a\x00", 0),
        ];
        let mut all = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n".to_vec();
        let mut ends = vec![all.len()];
        for (header, payload) in frames {
            all.extend_from_slice(header);
            all.resize(all.len() + payload, b'x');
            ends.push(all.len());
        }
        for cut in 0..all.len() {
            let mut tracker = WebSocketFrameTracker {
                position: FramePosition::ResponseHead(0),
            };
            tracker.advance(&all[..cut]);
            assert_eq!(tracker.is_at_boundary(), ends.contains(&cut), "{cut}");
            let next = ends.iter().find(|end| **end >= cut).expect("an end");
            assert_eq!(
                tracker.advance_to_boundary(&all[cut..]),
                next - cut,
                "{cut}"
            );
        }
    }
}
