//! A client connection (HTTP/1, or the transport of HTTP/2) with its buffers and deadlines.
//!
//! Reading from a [`ClientConnection`] returns exactly one checked message: the head after
//! [`crate::message::head`] has accepted it, and the body up to the end that
//! [`crate::message::framing`] determines. Later bytes are buffered here, so that an idle
//! connection uses no other memory than this struct.
//!
//! Deadlines are enforced here: while an exchange waits for an upstream, it polls the client
//! connection for reading, and that poll returns an error when a deadline has passed.

mod close;
mod http2_frames;
mod http2_io;
mod preface;
mod read_head;
mod transport;
mod write;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use pingora_core::protocols::SocketDigest;
use tokio::io::{AsyncRead, ReadBuf};

use crate::client_shares::{BudgetPermit, SharedBudget};
use crate::downstream::client_handle::Attributes;
use crate::downstream::deadline::{AbortReason, RequestDeadline, SlowClientGuard};
use crate::downstream::limits::HttpLimits;
use crate::message::framing::BodyFraming;
use crate::upstream::BoundConnection;
use http2_io::Http2Io;
pub use preface::DetectedProtocol;
pub use read_head::{FIRST_REQUEST_GRACE, HeadEvent};
pub use transport::ClientTransport;
pub(super) use transport::{LINGER_TIMEOUT, MAX_LINGER_BYTES};

/// Writes up to this size are coalesced, so that head and body are sent in one packet.
const WRITE_COALESCE_BYTES: usize = 16 << 10;

/// Buffers with a larger capacity are freed when the connection becomes idle.
const MAX_IDLE_BUFFER_BYTES: usize = 4 << 10;

/// A client connection.
pub struct ClientConnection {
    /// `None` only while the connection is being dropped.
    transport: Option<ClientTransport>,
    limits: Arc<HttpLimits>,
    inbound: BytesMut,
    outbound: BytesMut,
    /// Bytes of a checked head at the beginning of `inbound`.
    head_left: usize,
    framing: BodyFraming,
    slow_client: SlowClientGuard,
    deadline: Arc<RequestDeadline>,
    /// Whether the connection has become a tunnel.
    tunnel: AtomicBool,
    /// Whether the process is shutting down.
    stopping: bool,
    /// Whether the connection is closed with a reset, so that a truncated response is not taken for
    /// a complete one.
    reset_on_close: AtomicBool,
    /// HTTP/2 only.
    http2: Option<Box<Http2Io>>,
    digest: Arc<SocketDigest>,
    /// What the server knows of the connection.
    attributes: Option<Attributes>,
    /// HTTP/1 only: the upstream connection that is closed with this one.
    bound_upstream: Arc<BoundConnection>,
    permit: Option<Box<dyn Send + Sync>>,
    /// The budget of responses whose readers are slow.
    response_buffers: Arc<SharedBudget>,
    /// HTTP/1 only: the reservation for a response while its reader is slow.
    buffer_reservation: Option<BudgetPermit>,
}

impl ClientConnection {
    /// Creates a connection from `peer`. The permit is dropped when it is closed.
    pub fn new(
        transport: ClientTransport,
        peer: SocketAddr,
        limits: Arc<HttpLimits>,
        response_buffers: Arc<SharedBudget>,
        permit: Box<dyn Send + Sync>,
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
            deadline: Arc::new(RequestDeadline::new()),
            tunnel: AtomicBool::new(false),
            stopping: false,
            reset_on_close: AtomicBool::new(false),
            http2: None,
            digest: Arc::new(digest),
            attributes: None,
            bound_upstream: Arc::default(),
            permit: Some(permit),
            response_buffers,
            buffer_reservation: None,
        }
    }

    /// Sets what the server knows of the connection.
    pub fn with_attributes(mut self, attributes: Option<Attributes>) -> Self {
        self.attributes = attributes;
        self
    }

    /// Returns what the server knows of the connection.
    pub fn attributes(&self) -> Option<&Attributes> {
        self.attributes.as_ref()
    }

    pub(crate) fn response_buffers(&self) -> Arc<SharedBudget> {
        Arc::clone(&self.response_buffers)
    }

    /// Returns the place of the upstream connection that is closed with this one.
    pub fn bound_upstream(&self) -> Arc<BoundConnection> {
        Arc::clone(&self.bound_upstream)
    }

    /// Returns whether the connection uses TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self.transport, Some(ClientTransport::Tls(_)))
    }

    /// Returns whether HTTP/2 was negotiated with ALPN.
    pub fn is_http2(&self) -> bool {
        let protocol = match &self.transport {
            Some(ClientTransport::Tls(stream)) => stream.get_ref().1.alpn_protocol(),
            Some(ClientTransport::Tcp(_)) | None => None,
        };
        protocol == Some(b"h2")
    }

    /// Returns the IP address of the peer.
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.digest.peer_addr()?.as_inet().map(SocketAddr::ip)
    }

    /// Returns the checked head that has not been consumed yet.
    pub(crate) fn pending_head(&self) -> &[u8] {
        &self.inbound[..self.head_left]
    }

    pub(crate) fn consume_head(&mut self) {
        self.inbound.advance(self.head_left);
        self.head_left = 0;
    }

    /// Returns the remaining bytes of the body, or the maximum while their number is not known.
    pub(crate) fn body_remaining(&self) -> u64 {
        match self.framing {
            BodyFraming::Done => 0,
            BodyFraming::Length(left) => left,
            BodyFraming::Chunked(_) | BodyFraming::Tunnel => u64::MAX,
        }
    }

    /// Returns whether the body is chunked and has not been read to its end.
    pub(crate) fn is_chunked(&self) -> bool {
        matches!(self.framing, BodyFraming::Chunked(_))
    }

    /// Returns whether data waits to be sent, in the write buffer or in the TLS layer.
    pub(crate) fn has_unsent_data(&self) -> bool {
        let is_waiting = |transport: &ClientTransport| match transport {
            ClientTransport::Tcp(_) => false,
            ClientTransport::Tls(stream) => stream.get_ref().1.wants_write(),
        };
        !self.outbound.is_empty() || self.transport.as_ref().is_some_and(is_waiting)
    }

    /// Returns the deadline of the current request.
    pub fn deadline(&self) -> &RequestDeadline {
        &self.deadline
    }

    /// Returns the deadline, which all requests of the connection share.
    pub fn shared_deadline(&self) -> Arc<RequestDeadline> {
        Arc::clone(&self.deadline)
    }

    /// Polls the deadlines of the request while its body is not read, because the upstream does not
    /// accept more of it.
    pub(crate) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.slow_client.reading = None;
        let reason = ready!(
            self.slow_client
                .poll_upstream(&self.deadline, &self.limits, cx)
        );
        Poll::Ready(self.abort_error(reason))
    }

    /// Switches to tunnel mode after an upgrade: all bytes pass, without a request deadline.
    pub fn open_tunnel(&self) {
        self.deadline.clear();
        self.tunnel.store(true, Ordering::Release);
    }

    /// Switches to HTTP/2: all bytes pass, and the time per frame is limited. `is_shared` if many
    /// clients share the connection. Returns whether written data waits for the client, which is exact
    /// whenever the HTTP/2 layer is waiting, because it has then written all that it may.
    pub fn switch_to_http2(&mut self, is_shared: bool) -> Arc<AtomicBool> {
        self.open_tunnel();
        let mut http2 = Box::<Http2Io>::default();
        http2.filter = is_shared.then(Default::default);
        let backlog = Arc::clone(&http2.has_backlog);
        self.http2 = Some(http2);
        backlog
    }

    /// Returns the socket digest, which contains the addresses of the connection.
    pub fn socket_digest(&self) -> &Arc<SocketDigest> {
        &self.digest
    }

    /// Makes the connection be closed with a reset when it is dropped.
    pub(crate) fn reset_on_drop(&self) {
        self.reset_on_close.store(true, Ordering::Relaxed);
    }

    fn abort<T>(&self, reason: AbortReason) -> Poll<io::Result<T>> {
        Poll::Ready(Err(self.abort_error(reason)))
    }

    fn abort_error(&self, reason: AbortReason) -> io::Error {
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
        kind.into()
    }

    fn transport_mut(&mut self) -> io::Result<Pin<&mut ClientTransport>> {
        self.transport
            .as_mut()
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Reads body bytes from the buffer, then from the socket, up to the end of the message.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Poll::Ready(buffered) = self.poll_buffered(cx) else {
            let reason = ready!(self.poll_idle_sender(cx));
            return self.abort(reason);
        };
        let buffered = buffered?.min(buf.remaining());
        let before = buf.filled().len();
        if buffered > 0 {
            buf.put_slice(&self.inbound[..buffered]);
        } else if let Poll::Ready(done) = self.transport_mut()?.poll_read(cx, buf) {
            done?;
            self.slow_client.bytes_received += (buf.filled().len() - before) as u64;
        } else {
            let reason = ready!(self.poll_idle_sender(cx));
            return self.abort(reason);
        }
        let received = &buf.filled()[before..];
        let Ok(taken) = self.framing.advance(received) else {
            return self.abort(AbortReason::InvalidFraming);
        };
        if let Some(http2) = self.http2.as_deref_mut()
            && http2.pass(received).is_err()
        {
            return self.abort(AbortReason::InvalidFraming);
        }
        match buffered {
            0 => self.inbound.extend_from_slice(&received[taken..]),
            _ => self.inbound.advance(taken),
        }
        buf.set_filled(before + taken);
        self.note_body_end();
        Poll::Ready(Ok(()))
    }

    /// Polls the limits that apply while the client sends nothing.
    fn poll_idle_sender(&mut self, cx: &mut Context<'_>) -> Poll<AbortReason> {
        if self.framing != BodyFraming::Tunnel {
            self.slow_client.wait_for_body();
            return self.slow_client.poll(&self.deadline, &self.limits, cx);
        }
        match self.http2.as_deref() {
            None => self
                .slow_client
                .poll_tunnel(&self.deadline, &self.limits, cx),
            Some(http2) => match http2.tracker.deadline(self.limits.head_timeout) {
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

    /// Polls for a disconnect of the client after the end of the request. Bytes that arrive belong
    /// to the next request and are buffered.
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
        if this.tunnel.load(Ordering::Acquire) {
            this.framing = BodyFraming::Tunnel;
            this.note_http2_poll();
            return this.poll_body(cx, buf);
        }
        if this.framing == BodyFraming::Done {
            this.poll_client_presence(cx)
        } else {
            this.poll_body(cx, buf)
        }
    }
}

impl std::fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnection")
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}
