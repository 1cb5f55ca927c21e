//! One client connection, as Pingora sees it.
//!
//! Pingora reads requests from a [`Wire`] and gets exactly one checked message at a time: the head only after
//! [`crate::head`] has passed it, the body only as far as [`crate::framing`] says that it goes. What comes after
//! waits here, so that an idle connection holds no more than this struct. Deadlines live here too, because
//! Pingora has no hook for them: while it waits for its upstream it keeps asking the client's side whether the
//! client is still there, and that question is answered with an error when the time is over.

mod alarm;
mod pingora_io;
mod read_head;
mod transport;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use pingora_core::protocols::{ALPN, SocketDigest, Ssl};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::Limits;
use crate::framing::Framing;
use crate::listener::Permit;
use alarm::{Alarm, Stall};
pub(crate) use read_head::HeadEvent;
pub(crate) use transport::Transport;

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
    alarm: Alarm,
    reading: Option<Stall>,
    writing: Option<Stall>,
    received: u64,
    sent: u64,
    born: Instant,
    /// Milliseconds after `born` at which the request must be over; the gateway sets it by route.
    deadline_ms: AtomicU64,
    /// How long the upstream may keep this side waiting, in milliseconds; 0 for no limit.
    upstream_ms: AtomicU64,
    /// Milliseconds after `born` since when it does: the choice of its address, or what it sent last.
    waiting_ms: AtomicU64,
    tunnel: AtomicBool,
    /// Whether a head was handed over that no hook has seen yet.
    unheard: AtomicBool,
    fault: AtomicU8,
    digest: Arc<SocketDigest>,
    permit: Option<Permit>,
}

/// Why reading or writing was ended from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireFault {
    /// The body is not framed as it should be.
    Framing = 1,
    /// The client sends or reads too slowly.
    Stalled = 2,
    /// The request took too long.
    Deadline = 3,
    /// The upstream sent nothing for too long.
    Upstream = 4,
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
        let _first = digest.peer_addr.set(Some(pingora_core::protocols::l4::socket::SocketAddr::Inet(peer)));
        Self {
            transport: Some(transport),
            limits,
            inbound: BytesMut::new(),
            outbound: BytesMut::new(),
            head_left: 0,
            framing: Framing::Done,
            alarm: Alarm::default(),
            reading: None,
            writing: None,
            received: 0,
            sent: 0,
            born: Instant::now(),
            deadline_ms: AtomicU64::new(u64::MAX),
            upstream_ms: AtomicU64::new(0),
            waiting_ms: AtomicU64::new(0),
            tunnel: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            fault: AtomicU8::new(0),
            digest: Arc::new(digest),
            permit,
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

    /// The request must be over `after` from now on.
    pub(crate) fn set_deadline(&self, after: Duration) {
        let at = self.born.elapsed() + after;
        self.deadline_ms.store(u64::try_from(at.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The upstream must send something at least every `within` from now on.
    pub(crate) fn expect_upstream(&self, within: Duration) {
        self.upstream_ms
            .store(u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        self.waiting_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The connection has been upgraded: everything passes, and no deadline ends it.
    pub(crate) fn open_tunnel(&self) {
        self.deadline_ms.store(u64::MAX, Ordering::Relaxed);
        self.upstream_ms.store(0, Ordering::Relaxed);
        self.tunnel.store(true, Ordering::Release);
    }

    /// A hook has been called for the request.
    pub(crate) fn note_heard(&self) {
        self.unheard.store(false, Ordering::Relaxed);
    }

    /// Why this side ended the request, if it did.
    pub(crate) fn fault(&self) -> Option<WireFault> {
        match self.fault.load(Ordering::Relaxed) {
            1 => Some(WireFault::Framing),
            2 => Some(WireFault::Stalled),
            3 => Some(WireFault::Deadline),
            4 => Some(WireFault::Upstream),
            _ => None,
        }
    }

    /// Whether the whole request has arrived.
    pub(crate) fn is_request_complete(&self) -> bool {
        self.framing == Framing::Done && self.head_left == 0
    }

    fn fail<T>(&self, fault: WireFault) -> Poll<io::Result<T>> {
        self.fault.store(fault as u8, Ordering::Relaxed);
        let kind = match fault {
            WireFault::Framing => io::ErrorKind::InvalidData,
            WireFault::Stalled | WireFault::Deadline | WireFault::Upstream => io::ErrorKind::TimedOut,
        };
        Poll::Ready(Err(kind.into()))
    }

    fn io(&mut self) -> io::Result<Pin<&mut Transport>> {
        self.transport.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Called when the other side keeps us waiting: whether that has gone on for too long.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<WireFault> {
        let deadline = match self.deadline_ms.load(Ordering::Relaxed) {
            u64::MAX => None,
            millis => Some(self.born + Duration::from_millis(millis)),
        };
        loop {
            let window = self.limits.stall_timeout;
            let stalls = [self.reading, self.writing].into_iter().flatten().map(|stall| stall.since + window);
            let Some(due) = stalls.chain(deadline).min() else { return Poll::Pending };
            ready!(self.alarm.poll(due, cx));
            if deadline.is_some_and(|deadline| deadline <= due) {
                return Poll::Ready(WireFault::Deadline);
            }
            let (now, least) = (Instant::now(), u64::from(self.limits.min_rate) * window.as_secs().max(1));
            for (stall, moved) in [(&mut self.reading, self.received), (&mut self.writing, self.sent)] {
                match stall {
                    Some(stall) if stall.since + window <= now => {
                        if moved - stall.moved < least {
                            return Poll::Ready(WireFault::Stalled);
                        }
                        *stall = Stall { since: now, moved };
                    }
                    Some(_) | None => {}
                }
            }
        }
    }

    /// Body bytes, from the buffer first and then from the socket, never beyond the end of the message.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.inbound.is_empty() {
            let available = self.inbound.len().min(buf.remaining());
            let Ok(taken) = self.framing.advance(&self.inbound[..available]) else {
                return self.fail(WireFault::Framing);
            };
            buf.put_slice(&self.inbound[..taken]);
            self.inbound.advance(taken);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(done) = self.io()?.poll_read(cx, buf) {
            done?;
            let fresh = buf.filled().len() - before;
            self.received += fresh as u64;
            let Ok(taken) = self.framing.advance(&buf.filled()[before..]) else {
                return self.fail(WireFault::Framing);
            };
            self.inbound.extend_from_slice(&buf.filled()[before + taken..]);
            buf.set_filled(before + taken);
            if self.framing == Framing::Done {
                self.reading = None;
            }
            return Poll::Ready(Ok(()));
        }
        if self.framing != Framing::Tunnel && self.reading.is_none() {
            self.reading = Some(Stall { since: Instant::now(), moved: self.received });
        }
        let fault = ready!(self.poll_patience(cx));
        self.fail(fault)
    }

    /// Nothing more belongs to this request: only whether the client is still there. What it sends already now
    /// is the next request, and waits.
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
        let fault = ready!(self.poll_upstream(cx));
        self.fail(fault)
    }

    /// While the upstream is waited for: whether it, or the request as a whole, has taken too long.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<WireFault> {
        loop {
            let within = self.upstream_ms.load(Ordering::Relaxed);
            if within == 0 {
                return self.poll_patience(cx);
            }
            let due = self.waiting_ms.load(Ordering::Relaxed).saturating_add(within);
            if self.deadline_ms.load(Ordering::Relaxed) <= due {
                return self.poll_patience(cx);
            }
            ready!(self.alarm.poll(self.born + Duration::from_millis(due), cx));
            if self.age_ms() >= due {
                return Poll::Ready(WireFault::Upstream);
            }
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
                    self.sent += written as u64;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_slow_reader(cx),
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn poll_slow_reader<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.writing.is_none() {
            self.writing = Some(Stall { since: Instant::now(), moved: self.sent });
        }
        let fault = ready!(self.poll_patience(cx));
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
            this.framing = Framing::Tunnel;
        }
        if this.framing == Framing::Done { this.poll_presence(cx) } else { this.poll_body(cx, buf) }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.upstream_ms.load(Ordering::Relaxed) != 0 {
            this.waiting_ms.store(this.age_ms(), Ordering::Relaxed);
        }
        if this.outbound.len() + data.len() <= GATHER {
            this.outbound.extend_from_slice(data);
            return Poll::Ready(Ok(data.len()));
        }
        ready!(this.poll_drain(cx))?;
        match this.io()?.poll_write(cx, data) {
            Poll::Ready(written) => {
                this.writing = None;
                this.sent += *written.as_ref().unwrap_or(&0) as u64;
                Poll::Ready(written)
            }
            Poll::Pending => this.poll_slow_reader(cx),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.io()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.io()?.poll_shutdown(cx)
    }
}

/// A client that was answered while it was still sending gets a moment to read the answer: closing at once
/// would reset the connection under it.
impl Drop for Wire {
    fn drop(&mut self) {
        let unread = !matches!(self.framing, Framing::Done | Framing::Tunnel);
        let (Some(transport), permit) = (self.transport.take(), self.permit.take()) else { return };
        if let (true, Some(permit)) = (self.unheard.load(Ordering::Relaxed), &permit) {
            permit.unheard.inc();
        }
        if unread && self.sent > 0 && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                transport.linger().await;
                drop(permit);
            });
        }
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("framing", &self.framing).finish_non_exhaustive()
    }
}
