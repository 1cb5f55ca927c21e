//! HTTP/1.1 connections to upstream addresses, with or without TLS, and the pool of idle ones.

use std::future::Future;
use std::io;
use std::net::SocketAddr as InetAddress;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use memchr::memchr_iter;
use parking_lot::{Mutex, MutexGuard};
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::Stream;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::upstreams::peer::{HttpPeer, Peer as _, Scheme};
use pingora_core::{Error, ErrorType, OrErr, Result, RetryType};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::io::poll_write_buf;

use crate::message::MAX_FRAME_DATA_BYTES;
use crate::message::headers::authenticates_connection;
use crate::upstream::pinned_certificates::{PinnedCertificates, connector_options};
use crate::upstream::response::{ResponseBody, ResponseFault, UpstreamResponse};

/// Maximum bytes of a response head (the limit of Pingora).
const MAX_RESPONSE_HEAD_BYTES: usize = 1 << 20;

/// Size of one read while waiting for a head.
const HEAD_READ_BYTES: usize = 4 << 10;

/// Size of one read of a body: whole frames, which together with a frame that waits to be sent are at most
/// `downstream::RESPONSE_BUFFER_BYTES`.
const BODY_READ_BYTES: usize = 3 * MAX_FRAME_DATA_BYTES;

const MAX_IDLE_CONNECTIONS: usize = 512;

/// The connector for TLS with the system's certificate authorities. It pools no connections.
/// Pingora panics if the system has none, which the gateway has checked.
static WITH_SYSTEM_ROOTS: LazyLock<TransportConnector> =
    LazyLock::new(|| TransportConnector::new(None));

/// The connector for TLS with the upstream's own certificate authorities, and for Unix sockets.
static WITH_OWN_ROOTS: LazyLock<TransportConnector> =
    LazyLock::new(|| TransportConnector::new(Some(connector_options(1, false))));

/// A connection. Its errors are Pingora errors of an upstream.
#[derive(Debug)]
pub struct UpstreamConnection {
    transport: Transport,
    inbound: BytesMut,
    /// Bytes of `inbound` that were searched for the end of a head.
    searched: usize,
    /// Whether `inbound` was enlarged for a body.
    has_body_buffer: bool,
    /// Whether a request may have authenticated the connection, which then carries no request of
    /// another client.
    is_authenticated: bool,
}

#[derive(Debug)]
enum Transport {
    Tcp(TcpStream),
    /// TLS, or a Unix socket, with a buffer of its own.
    Buffered(Stream),
}

/// A bidirectional byte stream.
pub trait DuplexStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<D: AsyncRead + AsyncWrite + Unpin + Send + Sync> DuplexStream for D {}

/// How to find out that the upstream has closed an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleCheck {
    /// From the last poll of the sockets, without a system call, for requests that are repeated if
    /// the connection turns out to be closed.
    LastPoll,
    /// From the kernel.
    Now,
}

/// A pool of idle connections to one address with their idle times, most recently used first, so
/// that unneeded connections expire.
#[derive(Debug, Default)]
pub struct IdlePool {
    connections: Mutex<Vec<(UpstreamConnection, Instant)>>,
    /// Whether connections are closed instead of pooled.
    is_closed: AtomicBool,
}

/// The upstream connection that one client connection has authenticated, as by NTLM, and that is
/// closed with it.
#[derive(Debug, Default)]
pub struct BoundConnection(Mutex<Option<Box<Bound>>>);

/// A connection with the pool of its address and the time since which it is idle.
type Bound = (UpstreamConnection, Arc<IdlePool>, Instant);

impl BoundConnection {
    /// Returns the pool of the connection's address.
    pub fn pool(&self) -> Option<Arc<IdlePool>> {
        let bound = self.0.lock();
        bound.as_ref().map(|bound| Arc::clone(&bound.1))
    }

    /// Returns the connection if it leads to the address of this pool and can carry a request now.
    pub fn take(&self, pool: &Arc<IdlePool>, idle: Duration) -> Option<UpstreamConnection> {
        let is_same = |bound: &mut Box<Bound>| Arc::ptr_eq(&bound.1, pool);
        let (mut connection, _, since) = *self.0.lock().take_if(is_same)?;
        (since.elapsed() < idle && connection.is_reusable(IdleCheck::Now)).then_some(connection)
    }

    /// Keeps a connection to the address of this pool, whose last response was read completely at
    /// `now`.
    pub fn put(&self, mut connection: UpstreamConnection, pool: &Arc<IdlePool>, now: Instant) {
        if connection.prepare_for_idle() {
            *self.0.lock() = Some(Box::new((connection, Arc::clone(pool), now)));
        }
    }
}

impl UpstreamConnection {
    /// Opens a connection to a peer, with TLS if it uses it.
    pub async fn connect(
        peer: &HttpPeer,
        pins: &PinnedCertificates,
        within: Duration,
    ) -> Result<Self> {
        let transport = match (&peer.scheme, peer.address()) {
            (Scheme::HTTP, SocketAddr::Inet(address)) => {
                let connected = connect_tcp(*address, within).await;
                let stream = connected.map_err(Error::into_up)?;
                let _best_effort = stream.set_nodelay(true);
                Transport::Tcp(stream)
            }
            (scheme, _) => {
                let connector = match (scheme, &peer.options.ca) {
                    (Scheme::HTTPS, None) => &WITH_SYSTEM_ROOTS,
                    (Scheme::HTTPS, Some(_)) | (Scheme::HTTP, _) => &WITH_OWN_ROOTS,
                };
                let connected = connector.new_stream(peer).await;
                let stream = connected.map_err(Error::into_up)?;
                pins.check(stream.get_ssl_digest().as_deref())?;
                Transport::Buffered(stream)
            }
        };
        Ok(Self {
            transport,
            inbound: BytesMut::new(),
            searched: 0,
            has_body_buffer: false,
            is_authenticated: false,
        })
    }

    /// Records the header fields of a request that is sent.
    pub fn note_request(&mut self, headers: &HeaderMap) {
        self.is_authenticated |= authenticates_connection(headers, AUTHORIZATION);
    }

    /// Returns whether the connection carries requests of one client only.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Takes the received bytes after an upgrade.
    pub fn take_received(&mut self) -> BytesMut {
        std::mem::take(&mut self.inbound)
    }

    /// Returns the byte stream, for a tunnel.
    pub fn stream(&mut self) -> Pin<&mut dyn DuplexStream> {
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream),
            Transport::Buffered(stream) => Pin::new(stream),
        }
    }

    /// Makes the kernel close the connection if the peer accepts no data for `within`.
    pub fn set_write_stall_timeout(&self, within: Duration) {
        if let Transport::Tcp(stream) = &self.transport {
            let millis = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
            let _best_effort = rustix::net::sockopt::set_tcp_user_timeout(stream, millis);
        }
    }

    /// Sends all of `data`.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, data: &mut impl Buf) -> Poll<Result<()>> {
        while data.has_remaining() {
            // A vectored write costs more than a write.
            let sent = match data.chunk().len() == data.remaining() {
                true => self.stream().poll_write(cx, data.chunk()).map_ok(|sent| {
                    data.advance(sent);
                    sent
                }),
                false => poll_write_buf(self.stream(), cx, data),
            };
            let error = match ready!(sent) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(_) => continue,
                Err(error) => error,
            };
            return Poll::Ready(Err(self.io_error(ErrorType::WriteError, error)));
        }
        match &mut self.transport {
            // TCP has no buffer of its own.
            Transport::Tcp(_) => Poll::Ready(Ok(())),
            Transport::Buffered(stream) => Pin::new(stream)
                .poll_flush(cx)
                .map_err(|error| self.io_error(ErrorType::WriteError, error)),
        }
    }

    /// Reads the next response head.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        is_head_request: bool,
    ) -> Poll<Result<UpstreamResponse>> {
        loop {
            if self.has_head()
                && let Some(response) = UpstreamResponse::take(&mut self.inbound, is_head_request)
                    .map_err(malformed_response)?
            {
                self.searched = 0;
                self.is_authenticated |= response.is_challenge;
                return Poll::Ready(Ok(response));
            }
            if self.inbound.len() > MAX_RESPONSE_HEAD_BYTES {
                return Poll::Ready(Err(malformed_response(ResponseFault)));
            }
            if ready!(self.poll_fill(cx, HEAD_READ_BYTES))? == 0 {
                let gone = io::ErrorKind::UnexpectedEof.into();
                return Poll::Ready(Err(self.io_error(ErrorType::ConnectionClosed, gone)));
            }
        }
    }

    /// Returns whether the buffer may contain a complete head: an empty line, or bytes that cannot
    /// begin a response. Each byte is examined once, independent of the read sizes.
    fn has_head(&mut self) -> bool {
        let from = self.searched.saturating_sub(2);
        let unsearched = &self.inbound[from..];
        let is_end = |at: usize| {
            let rest = &unsearched[at + 1..];
            rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
        };
        let found = memchr_iter(b'\n', unsearched).any(is_end);
        let is_other = !self
            .inbound
            .starts_with(&b"HTTP/"[..self.inbound.len().min(5)]);
        self.searched = self.inbound.len();
        found || is_other
    }

    /// Returns the next part of a body; `None` at its end.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ResponseBody,
    ) -> Poll<Result<Option<Bytes>>> {
        loop {
            if let Some(data) = body.take(&mut self.inbound).map_err(malformed_response)? {
                return Poll::Ready(Ok(Some(data)));
            }
            if *body == ResponseBody::Done {
                return Poll::Ready(Ok(None));
            }
            self.has_body_buffer = true;
            // The head has been forwarded, so that the request cannot be retried.
            let read = ready!(self.poll_fill(cx, BODY_READ_BYTES)).map_err(|mut error| {
                error.set_retry(false);
                error
            });
            if read? == 0 {
                if *body == ResponseBody::UntilClose {
                    *body = ResponseBody::Done;
                    return Poll::Ready(Ok(None));
                }
                return Poll::Ready(Err(truncated_body()));
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<usize>> {
        self.inbound.reserve(room);
        let read = match &mut self.transport {
            Transport::Tcp(stream) => pin!(stream.read_buf(&mut self.inbound)).poll(cx),
            Transport::Buffered(stream) => pin!(stream.read_buf(&mut self.inbound)).poll(cx),
        };
        Poll::Ready(ready!(read).map_err(|error| self.io_error(ErrorType::ReadError, error)))
    }

    /// Converts an I/O error. If no byte of a response was received, the request may be retried,
    /// because the upstream may close an idle connection at any time.
    fn io_error(&self, kind: ErrorType, error: io::Error) -> Box<Error> {
        let mut error = Error::because(kind, "on an upstream connection", error).into_up();
        if self.inbound.is_empty() {
            error.retry = RetryType::ReusedOnly;
        }
        error
    }

    /// Prepares the connection for the time until its next request. Returns whether it may carry one:
    /// no unsolicited data was received.
    fn prepare_for_idle(&mut self) -> bool {
        if std::mem::take(&mut self.has_body_buffer) && self.inbound.is_empty() {
            self.inbound = BytesMut::new();
        }
        match self.transport {
            Transport::Tcp(_) => self.inbound.is_empty(),
            Transport::Buffered(_) => self.is_reusable(IdleCheck::Now),
        }
    }

    /// Returns whether nothing was received while idle, including the end of the connection.
    fn is_reusable(&mut self, check: IdleCheck) -> bool {
        let mut space = [0; 1];
        self.inbound.is_empty()
            && match &mut self.transport {
                Transport::Tcp(stream) if check == IdleCheck::LastPoll => stream
                    .try_read(&mut space)
                    .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
                Transport::Tcp(stream) => {
                    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                    recv(stream, &mut space, flags).is_err_and(|error| error == Errno::WOULDBLOCK)
                }
                Transport::Buffered(stream) => tokio::task::unconstrained(stream.read(&mut space))
                    .now_or_never()
                    .is_none(),
            }
    }
}

/// Connects within a timeout.
async fn connect_tcp(address: InetAddress, within: Duration) -> Result<TcpStream> {
    tokio::time::timeout(within, TcpStream::connect(address))
        .await
        .or_err(ErrorType::ConnectTimedout, "connecting to an upstream")?
        .map_err(|error| {
            let kind = match error.kind() == io::ErrorKind::ConnectionRefused {
                true => ErrorType::ConnectRefused,
                false => ErrorType::ConnectError,
            };
            Error::because(kind, "connecting to an upstream", error)
        })
}

pub(super) fn malformed_response(_fault: ResponseFault) -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, "malformed response").into_up()
}

fn truncated_body() -> Box<Error> {
    Error::explain(
        ErrorType::ConnectionClosed,
        "connection closed before the end of the response",
    )
    .into_up()
}

impl IdlePool {
    /// Returns a connection that can carry a request now.
    pub fn take(&self, idle: Duration, check: IdleCheck) -> Option<UpstreamConnection> {
        loop {
            let (mut connection, since) = self.lock().pop()?;
            if since.elapsed() < idle && connection.is_reusable(check) {
                return Some(connection);
            }
        }
    }

    /// Adds a connection whose last response was read completely at `now`, unless it belongs to one
    /// client.
    pub fn put(&self, mut connection: UpstreamConnection, now: Instant) {
        if connection.is_authenticated || !connection.prepare_for_idle() {
            return;
        }
        let mut connections = self.lock();
        if connections.len() < MAX_IDLE_CONNECTIONS && !self.is_closed.load(Ordering::Relaxed) {
            connections.push((connection, now));
        }
    }

    /// Closes connections that have expired or were closed by the upstream.
    pub fn evict(&self, idle: Duration) {
        let mut connections = std::mem::take(&mut *self.lock());
        connections.retain_mut(|(connection, since)| {
            since.elapsed() < idle && connection.is_reusable(IdleCheck::Now)
        });
        let mut now = self.lock();
        if self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        let newer = std::mem::replace(&mut *now, connections);
        now.extend(newer);
    }

    /// Closes all connections, and those that are added later.
    pub fn close(&self) {
        let mut connections = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        connections.clear();
    }

    /// Returns the number of idle connections.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(UpstreamConnection, Instant)>> {
        self.connections.lock()
    }
}
