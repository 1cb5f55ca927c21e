//! One client connection, as who carries its requests sees it.
//!
//! Requests are read from a [`Wire`], which gives exactly one checked message at a time: the head
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

use crate::config::Limits;
use crate::downstream::connection_permit::Permit;
use crate::downstream::deadline::{Alarm, Fault, Patience, Watch};
use crate::downstream::response_buffers::HeldResponse;
use crate::message::framing::Framing;
pub(crate) use backlog::Backlog;
use http2_frames::Frames;
pub(crate) use preface::Opening;
pub(crate) use read_head::{HeadEvent, YOUNG};
pub(crate) use transport::Transport;
use tunnel_expiry::TunnelExpiry;

/// Small writes are gathered up to this, so that head and body leave in one packet.
const GATHER: usize = 16 << 10;

/// A buffer that is larger than this is given back when the connection turns idle.
const KEEP: usize = 4 << 10;

/// A client connection with its buffers and deadlines.
pub(crate) struct Wire {
    /// `None` only while the connection is being dropped.
    transport: Option<Transport>,
    limits: Arc<Limits>,
    inbound: BytesMut,
    outbound: BytesMut,
    /// Bytes of a checked head at the front of `inbound`.
    head_left: usize,
    framing: Framing,
    patience: Patience,
    watch: Watch,
    tunnel: AtomicBool,
    /// When the token of a tunnel expires, if the tunnel ends with it.
    expires_at: OnceLock<Instant>,
    expiry: Option<Box<TunnelExpiry>>,
    expiry_alarm: Alarm,
    /// Whether the stop has begun.
    stopping: bool,
    /// Whether a head was handed over that no hook has seen yet.
    unheard: AtomicBool,
    /// Whether the connection ends with a reset, so that what was sent does not pass for a whole
    /// answer.
    reset: AtomicBool,
    /// On an HTTP/2 connection: whether a frame that is no body is taking too long, and whether the
    /// client leaves bytes waiting.
    frames: Option<Box<(Frames, Backlog)>>,
    digest: Arc<SocketDigest>,
    permit: Option<Permit>,
    /// While the reader of a response is waited for, over HTTP/1.
    held: Option<HeldResponse>,
}

// === impl Wire ===

impl Wire {
    pub(crate) fn new(
        transport: Transport,
        peer: SocketAddr,
        limits: Arc<Limits>,
        permit: Option<Permit>,
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
            framing: Framing::Done,
            patience: Patience::default(),
            watch: Watch::new(),
            tunnel: AtomicBool::new(false),
            expires_at: OnceLock::new(),
            expiry: None,
            expiry_alarm: Alarm::default(),
            stopping: false,
            unheard: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            frames: None,
            digest: Arc::new(digest),
            permit,
            held: None,
        }
    }

    /// Whether the client speaks TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.transport, Some(Transport::Tls(_)))
    }

    /// Whether the client chose HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.selected_alpn_proto() == Some(ALPN::H2)
    }

    /// The client's address.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        self.digest.peer_addr()?.as_inet().map(SocketAddr::ip)
    }

    /// The head that was checked, and is not read yet.
    pub(crate) fn head(&self) -> &[u8] {
        &self.inbound[..self.head_left]
    }

    /// The head has been read.
    pub(crate) fn take_head(&mut self) {
        self.inbound.advance(self.head_left);
        self.head_left = 0;
    }

    /// How many bytes of a body with a length are still to come; `None` where it is in chunks.
    pub(crate) fn body_left(&self) -> Option<u64> {
        match self.framing {
            Framing::Done => Some(0),
            Framing::Length(left) => Some(left),
            Framing::Chunked(_) | Framing::Tunnel => None,
        }
    }

    /// Whether something was written that has not been sent: here, or within the encryption.
    pub(crate) fn has_unsent(&self) -> bool {
        let is_waiting = |transport: &Transport| match transport {
            Transport::Tcp(_) => false,
            Transport::Tls(stream) => stream.get_ref().1.wants_write(),
        };
        !self.outbound.is_empty() || self.transport.as_ref().is_some_and(is_waiting)
    }

    /// The time of the request that is on its way.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The connection has been upgraded: everything passes, and no deadline ends it.
    pub(crate) fn open_tunnel(&self) {
        self.watch.lift();
        self.tunnel.store(true, Ordering::Release);
    }

    /// The tunnel is a WebSocket that ends at this moment.
    pub(crate) fn expire_tunnel(&self, at: Instant) {
        let _once = self.expires_at.set(at);
    }

    /// The connection is HTTP/2's from now on: everything passes, but no frame may take its time.
    /// The backlog is true to the moment whenever HTTP/2 has nothing to do but wait: it has then
    /// written all that it may.
    pub(crate) fn carry_frames(&mut self) -> Backlog {
        self.open_tunnel();
        let backlog = Backlog::default();
        self.frames = Some(Box::new((Frames::default(), backlog.clone())));
        backlog
    }

    /// What Pingora needs to know about the connection of an HTTP/2 stream.
    pub(crate) fn socket(&self) -> Arc<SocketDigest> {
        Arc::clone(&self.digest)
    }

    /// Makes the connection end with a reset once it is dropped.
    pub(crate) fn reset_on_drop(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    /// A hook has been called for the request.
    pub(crate) fn note_heard(&self) {
        self.unheard.store(false, Ordering::Relaxed);
    }

    fn fail<T>(&self, fault: Fault) -> Poll<io::Result<T>> {
        self.watch.fail(fault);
        let kind = match fault {
            Fault::Framing => io::ErrorKind::InvalidData,
            Fault::NoBuffer => io::ErrorKind::QuotaExceeded,
            Fault::Stalled
            | Fault::Deadline
            | Fault::Upstream
            | Fault::Overdue
            | Fault::Expired => io::ErrorKind::TimedOut,
        };
        Poll::Ready(Err(kind.into()))
    }

    fn io(&mut self) -> io::Result<Pin<&mut Transport>> {
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
                return self.fail(Fault::Framing);
            };
            if let Some((frames, _)) = self.frames.as_deref_mut()
                && frames.advance(&self.inbound[..taken]).is_err()
            {
                return self.fail(Fault::Framing);
            }
            buf.put_slice(&self.inbound[..taken]);
            self.inbound.advance(taken);
            self.note_body();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(done) = self.io()?.poll_read(cx, buf) {
            done?;
            let fresh = buf.filled().len() - before;
            self.patience.received += fresh as u64;
            let Ok(taken) = self.framing.advance(&buf.filled()[before..]) else {
                return self.fail(Fault::Framing);
            };
            if let Some((frames, _)) = self.frames.as_deref_mut()
                && frames.advance(&buf.filled()[before..]).is_err()
            {
                return self.fail(Fault::Framing);
            }
            self.inbound
                .extend_from_slice(&buf.filled()[before + taken..]);
            buf.set_filled(before + taken);
            self.note_body();
            return Poll::Ready(Ok(()));
        }
        let fault = ready!(self.poll_sender(cx));
        self.fail(fault)
    }

    /// While the client sends nothing: whether that has gone on for too long.
    fn poll_sender(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        if self.framing != Framing::Tunnel {
            self.patience.wait_for_body();
            return self.patience.poll(&self.watch, &self.limits, cx);
        }
        match self.frames.as_deref() {
            None => self.patience.poll_tunnel(&self.watch, &self.limits, cx),
            Some((frames, _)) => match frames.due(self.limits.head_timeout) {
                Some(due) => self.patience.alarm.poll(due, cx).map(|()| Fault::Stalled),
                None => self.patience.poll(&self.watch, &self.limits, cx),
            },
        }
    }

    fn note_body(&mut self) {
        if self.framing == Framing::Done {
            self.patience.reading = None;
            self.watch.note_complete();
        }
    }

    /// Nothing more belongs to this request: only whether the client is still there. What it sends
    /// already now is the next request, and waits.
    fn poll_presence(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.inbound.is_empty() {
            let mut space = [0; 512];
            let mut buf = ReadBuf::new(&mut space);
            if let Poll::Ready(done) = self.io()?.poll_read(cx, &mut buf) {
                done?;
                if buf.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
                self.inbound.extend_from_slice(buf.filled());
            }
        }
        let fault = ready!(self.patience.poll_upstream(&self.watch, &self.limits, cx));
        self.fail(fault)
    }
}

impl AsyncRead for Wire {
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
            return this.poll_expiring(cx, buf);
        }
        if this.framing == Framing::Done {
            this.poll_presence(cx)
        } else {
            this.poll_body(cx, buf)
        }
    }
}
