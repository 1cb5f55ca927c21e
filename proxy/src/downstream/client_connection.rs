//! One client connection, as who carries its requests sees it.
//!
//! Requests are read from a [`ClientConnection`], which gives exactly one checked message at a time: the head
//! only after
//! [`crate::message::head`] has passed it, the body only as far as [`crate::message::framing`] says that it goes. What comes after
//! waits here, so that an idle connection holds no more than this struct. Deadlines live here too,
//! because Pingora has no hook for them: whoever waits for an upstream keeps asking the client's
//! side whether the client is still there, and that question is answered with an error when the
//! time is over.

mod backlog;
mod close;
mod http2_frames;
mod pingora_io;
mod preface;
mod read_head;
mod transport;
mod tunnel_expiry;
mod write;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, BytesMut};
use pingora_core::protocols::{ALPN, SocketDigest, Ssl};
use tokio::io::{AsyncRead, ReadBuf};

use crate::config::ClientLimits;
use crate::downstream::connection_permit::ConnectionPermit;
use crate::downstream::deadline::{AbortReason, DeadlineTimer, RequestDeadline, SlowClientGuard};
use crate::downstream::response_buffers::BufferReservation;
use crate::message::framing::BodyFraming;
pub(crate) use backlog::WriteBacklog;
use http2_frames::Http2FrameTracker;
pub(crate) use preface::DetectedProtocol;
pub(crate) use read_head::{FIRST_REQUEST_GRACE, HeadEvent};
pub(crate) use transport::ClientTransport;
use tunnel_expiry::TunnelExpiry;

/// Small writes are gathered up to this, so that head and body leave in one packet.
const WRITE_COALESCE_BYTES: usize = 16 << 10;

/// A buffer that is larger than this is given back when the connection turns idle.
const MAX_IDLE_BUFFER_BYTES: usize = 4 << 10;

/// A client connection with its buffers and deadlines.
pub(crate) struct ClientConnection {
    /// `None` only while the connection is being dropped.
    transport: Option<ClientTransport>,
    limits: Arc<ClientLimits>,
    inbound: BytesMut,
    outbound: BytesMut,
    /// Bytes of a checked head at the front of `inbound`.
    head_left: usize,
    framing: BodyFraming,
    slow_client: SlowClientGuard,
    deadline: RequestDeadline,
    tunnel: AtomicBool,
    /// When the token of a tunnel expires, if the tunnel ends with it.
    expires_at: OnceLock<Instant>,
    expiry: Option<Box<TunnelExpiry>>,
    expiry_alarm: DeadlineTimer,
    /// Whether the stop has begun.
    stopping: bool,
    /// Whether a head was handed over that no hook has seen yet.
    awaiting_hook: AtomicBool,
    /// Whether the connection ends with a reset, so that what was sent does not pass for a whole
    /// answer.
    reset_on_close: AtomicBool,
    /// On an HTTP/2 connection: whether a frame that is no body is taking too long, and whether the
    /// client leaves bytes waiting.
    frames: Option<Box<(Http2FrameTracker, WriteBacklog)>>,
    digest: Arc<SocketDigest>,
    permit: Option<ConnectionPermit>,
    /// While the reader of a response is waited for, over HTTP/1.
    buffer_reservation: Option<BufferReservation>,
}

// === impl ClientConnection ===

impl ClientConnection {
    pub(crate) fn new(
        transport: ClientTransport,
        peer: SocketAddr,
        limits: Arc<ClientLimits>,
        permit: Option<ConnectionPermit>,
    ) -> Self {
        let digest = SocketDigest::from_raw_fd(transport.raw_fd());
        let _first =
            digest
                .peer_addr
                .set(Some(pingora_core::protocols::l4::socket::SocketAddr::Inet(
                    peer,
                )));
        Self {
            transport: Some(transport),
            limits,
            inbound: BytesMut::new(),
            outbound: BytesMut::new(),
            head_left: 0,
            framing: BodyFraming::Done,
            slow_client: SlowClientGuard::default(),
            deadline: RequestDeadline::new(),
            tunnel: AtomicBool::new(false),
            expires_at: OnceLock::new(),
            expiry: None,
            expiry_alarm: DeadlineTimer::default(),
            stopping: false,
            awaiting_hook: AtomicBool::new(false),
            reset_on_close: AtomicBool::new(false),
            frames: None,
            digest: Arc::new(digest),
            permit,
            buffer_reservation: None,
        }
    }

    /// Whether the client speaks TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.transport, Some(ClientTransport::Tls(_)))
    }

    /// Whether the client chose HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.selected_alpn_proto() == Some(ALPN::H2)
    }

    /// The client's address.
    pub(crate) fn peer_address(&self) -> Option<IpAddr> {
        self.digest.peer_addr()?.as_inet().map(SocketAddr::ip)
    }

    /// The head that was checked, and is not read yet.
    pub(crate) fn pending_head(&self) -> &[u8] {
        &self.inbound[..self.head_left]
    }

    /// The head has been read.
    pub(crate) fn consume_head(&mut self) {
        self.inbound.advance(self.head_left);
        self.head_left = 0;
    }

    /// How many bytes of a body with a length are still to come; `None` where it is in chunks.
    pub(crate) fn body_remaining(&self) -> Option<u64> {
        match self.framing {
            BodyFraming::Done => Some(0),
            BodyFraming::Length(left) => Some(left),
            BodyFraming::Chunked(_) | BodyFraming::Tunnel => None,
        }
    }

    /// Whether something was written that has not been sent: here, or within the encryption.
    pub(crate) fn has_unsent_data(&self) -> bool {
        let is_waiting = |transport: &ClientTransport| match transport {
            ClientTransport::Tcp(_) => false,
            ClientTransport::Tls(stream) => stream.get_ref().1.wants_write(),
        };
        !self.outbound.is_empty() || self.transport.as_ref().is_some_and(is_waiting)
    }

    /// The time of the request that is on its way.
    pub(crate) fn deadline(&self) -> &RequestDeadline {
        &self.deadline
    }

    /// The connection has been upgraded: everything passes, and no deadline ends it.
    pub(crate) fn open_tunnel(&self) {
        self.deadline.clear();
        self.tunnel.store(true, Ordering::Release);
    }

    /// The tunnel is a WebSocket that ends at this moment.
    pub(crate) fn set_tunnel_expiry(&self, at: Instant) {
        let _once = self.expires_at.set(at);
    }

    /// The connection is HTTP/2's from now on: everything passes, but no frame may take its time.
    /// The backlog is true to the moment whenever HTTP/2 has nothing to do but wait: it has then
    /// written all that it may.
    pub(crate) fn switch_to_http2(&mut self) -> WriteBacklog {
        self.open_tunnel();
        let backlog = WriteBacklog::default();
        self.frames = Some(Box::new((Http2FrameTracker::default(), backlog.clone())));
        backlog
    }

    /// What Pingora needs to know about the connection of an HTTP/2 stream.
    pub(crate) fn socket_digest(&self) -> Arc<SocketDigest> {
        Arc::clone(&self.digest)
    }

    /// Makes the connection end with a reset once it is dropped.
    pub(crate) fn reset_on_drop(&self) {
        self.reset_on_close.store(true, Ordering::Relaxed);
    }

    /// A hook has been called for the request.
    pub(crate) fn note_hook_called(&self) {
        self.awaiting_hook.store(false, Ordering::Relaxed);
    }

    fn abort<T>(&self, reason: AbortReason) -> Poll<io::Result<T>> {
        self.deadline.set_abort_reason(reason);
        let kind = match reason {
            AbortReason::InvalidFraming => io::ErrorKind::InvalidData,
            AbortReason::BufferExhausted => io::ErrorKind::QuotaExceeded,
            AbortReason::ClientStalled
            | AbortReason::ClientDeadline
            | AbortReason::UpstreamTimeout
            | AbortReason::UpstreamDeadline
            | AbortReason::TokenExpired => io::ErrorKind::TimedOut,
        };
        Poll::Ready(Err(kind.into()))
    }

    fn transport_mut(&mut self) -> io::Result<Pin<&mut ClientTransport>> {
        self.transport
            .as_mut()
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Body bytes, from the buffer first and then from the socket, never beyond the end of the
    /// message.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.inbound.is_empty() {
            let available = self.inbound.len().min(buf.remaining());
            let Ok(taken) = self.framing.advance(&self.inbound[..available]) else {
                return self.abort(AbortReason::InvalidFraming);
            };
            if let Some((frames, _)) = self.frames.as_deref_mut()
                && frames.advance(&self.inbound[..taken]).is_err()
            {
                return self.abort(AbortReason::InvalidFraming);
            }
            buf.put_slice(&self.inbound[..taken]);
            self.inbound.advance(taken);
            self.note_body_end();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(done) = self.transport_mut()?.poll_read(cx, buf) {
            done?;
            let fresh = buf.filled().len() - before;
            self.slow_client.bytes_received += fresh as u64;
            let Ok(taken) = self.framing.advance(&buf.filled()[before..]) else {
                return self.abort(AbortReason::InvalidFraming);
            };
            if let Some((frames, _)) = self.frames.as_deref_mut()
                && frames.advance(&buf.filled()[before..]).is_err()
            {
                return self.abort(AbortReason::InvalidFraming);
            }
            self.inbound
                .extend_from_slice(&buf.filled()[before + taken..]);
            buf.set_filled(before + taken);
            self.note_body_end();
            return Poll::Ready(Ok(()));
        }
        let reason = ready!(self.poll_idle_sender(cx));
        self.abort(reason)
    }

    /// While the client sends nothing: whether that has authority_len on for too long.
    fn poll_idle_sender(&mut self, cx: &mut Context<'_>) -> Poll<AbortReason> {
        if self.framing != BodyFraming::Tunnel {
            self.slow_client.wait_for_body();
            return self.slow_client.poll(&self.deadline, &self.limits, cx);
        }
        match self.frames.as_deref() {
            None => self
                .slow_client
                .poll_tunnel(&self.deadline, &self.limits, cx),
            Some((frames, _)) => match frames.deadline(self.limits.head_timeout) {
                Some(due) => self
                    .slow_client
                    .timer
                    .poll(due, cx)
                    .map(|()| AbortReason::ClientStalled),
                None => self.slow_client.poll(&self.deadline, &self.limits, cx),
            },
        }
    }

    fn note_body_end(&mut self) {
        if self.framing == BodyFraming::Done {
            self.slow_client.reading = None;
            self.deadline.note_request_complete();
        }
    }

    /// Nothing more belongs to this request: only whether the client is still there. What it sends
    /// already now is the next request, and waits.
    fn poll_client_presence(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.inbound.is_empty() {
            let mut space = [0; 512];
            let mut buf = ReadBuf::new(&mut space);
            if let Poll::Ready(done) = self.transport_mut()?.poll_read(cx, &mut buf) {
                done?;
                if buf.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
                self.inbound.extend_from_slice(buf.filled());
            }
        }
        let reason = ready!(
            self.slow_client
                .poll_upstream(&self.deadline, &self.limits, cx)
        );
        self.abort(reason)
    }
}

impl AsyncRead for ClientConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.head_left > 0 {
            let taken = this.head_left.min(buf.remaining());
            buf.put_slice(&this.inbound[..taken]);
            this.inbound.advance(taken);
            this.head_left -= taken;
            return Poll::Ready(Ok(()));
        }
        if this.tunnel.load(Ordering::Acquire) {
            this.enter_tunnel();
            return this.poll_read_expiring(cx, buf);
        }
        if this.framing == BodyFraming::Done {
            this.poll_client_presence(cx)
        } else {
            this.poll_body(cx, buf)
        }
    }
}
