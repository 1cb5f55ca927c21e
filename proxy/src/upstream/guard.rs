//! The connections over which Pingora speaks HTTP/1.1 to an upstream, within TLS or not.
//!
//! Pingora reads answers more leniently than [`super::answer`]: an empty chunk size, for one, ends
//! a body. So each byte that it reads has passed the parser of the fast path before. To Pingora a
//! connection is plain and good for one request: TLS is within, and as soon as the answer has ended
//! the connection goes back to the idle ones, which it shares with the fast path, and Pingora finds
//! it closed.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::FutureExt;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use memchr::{memchr, memmem};
use pingora_core::Result;
use pingora_core::connectors::l4::Connect;
use pingora_core::connectors::{ConnectorOptions, TransportConnector};
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::upstreams::peer::{HttpPeer, Scheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::config::Upstream;
use crate::message::framing::Framing;
use crate::message::head;
use crate::message::head::BodyKind;
use crate::message::headers::names_websocket;
use crate::upstream::answer::{Answer, Body};
use crate::upstream::endpoint::{Endpoint, Ticket};
use crate::upstream::link::{Idle, Link, MOST_HEAD};
use crate::upstream::tls::NO_ROOTS;

/// Bytes of one read of a body. Pingora holds up to ten reads of a response while its reader is
/// waited for.
const READ_BYTES: usize = 4 << 10;

/// Makes a peer use guarded connections to the address of this ticket, which is released as soon as
/// the answer has ended. Returns whether the one that it gets had been idle before.
pub(crate) fn prepare(
    peer: &mut HttpPeer,
    ticket: &Arc<Ticket>,
    config: &Upstream,
) -> Arc<AtomicBool> {
    let connector = Connector::new(peer, ticket, config);
    let is_reused = Arc::clone(&connector.is_reused);
    peer.options.custom_l4 = Some(Arc::new(connector));
    is_reused
}

/// Pingora's way to TLS connections whose authorities are those of the machine; none waits here.
/// That the machine has some is known from [`super::tls`].
static WITH_SYSTEM_ROOTS: LazyLock<TransportConnector> =
    LazyLock::new(|| TransportConnector::new(None));

/// The same where the upstream has authorities of its own: those of the machine need not be there.
static WITH_OWN_ROOTS: LazyLock<TransportConnector> = LazyLock::new(|| {
    let mut options = ConnectorOptions::new(1);
    options.ca_file = Some(NO_ROOTS.to_owned());
    TransportConnector::new(Some(options))
});

#[derive(Debug)]
pub(super) struct Connector {
    /// How TLS is spoken to the address, if it is.
    encrypted: Option<Box<HttpPeer>>,
    endpoint: Arc<Endpoint>,
    /// The request that the connection is for, until it is over.
    ticket: Weak<Ticket>,
    connect_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    is_reused: Arc<AtomicBool>,
}

/// A connection within TLS.
#[derive(Debug)]
pub(crate) struct Encrypted(pingora_core::protocols::Stream);

#[derive(Debug)]
enum Connection {
    Plain(Link),
    Encrypted(Encrypted),
}

/// A connection for one request.
#[derive(Debug)]
pub(super) struct Guarded {
    /// `None` once the exchange is over.
    connection: Option<Connection>,
    endpoint: Arc<Endpoint>,
    ticket: Weak<Ticket>,
    /// Whether the request asks for a WebSocket.
    may_upgrade: bool,
    sent: Sent,
    received: Received,
    /// Whether HEAD was asked.
    to_head: bool,
    /// Whether the connection may carry another request.
    keep: bool,
    is_faulty: bool,
    /// Whether nothing of an answer has come.
    is_silent: bool,
}

/// How far the request has been sent.
#[derive(Debug)]
enum Sent {
    Head(BytesMut),
    Body(Framing),
}

/// How far the answer has been received.
#[derive(Debug)]
enum Received {
    Head(BytesMut),
    Body(Body),
    Ended,
    /// What follows a 101 is no message of HTTP.
    Tunnel,
}

#[async_trait]
impl Connect for Connector {
    async fn connect(&self, _address: &SocketAddr) -> Result<Stream> {
        let idle = match &self.encrypted {
            None => self
                .endpoint
                .kept
                .take(self.idle_timeout)
                .map(Connection::Plain),
            Some(_) => self
                .endpoint
                .encrypted
                .take(self.idle_timeout)
                .map(Connection::Encrypted),
        };
        self.is_reused.store(idle.is_some(), Ordering::Relaxed);
        let connection = match idle {
            Some(connection) => connection,
            None => self.open().await?,
        };
        Ok(VirtualSocketStream::new(Box::new(self.guard(connection))).into())
    }
}

impl Connector {
    /// Makes the peer plain to Pingora.
    pub(super) fn new(peer: &mut HttpPeer, ticket: &Arc<Ticket>, config: &Upstream) -> Self {
        let encrypted = peer.is_tls().then(|| Box::new(peer.clone()));
        peer.scheme = Scheme::HTTP;
        Self {
            encrypted,
            endpoint: Arc::clone(&ticket.endpoint),
            ticket: Arc::downgrade(ticket),
            connect_timeout: config.connect_timeout,
            idle_timeout: config.idle_timeout,
            write_timeout: config.write_timeout,
            is_reused: Arc::default(),
        }
    }

    /// Connects for a request that asks for a WebSocket, and for no other.
    pub(super) async fn connect_for_upgrade(&self) -> Result<Guarded> {
        Ok(Guarded {
            may_upgrade: true,
            keep: false,
            ..self.guard(self.open().await?)
        })
    }

    fn guard(&self, mut connection: Connection) -> Guarded {
        if let Connection::Plain(link) = &mut connection {
            link.end_if_nothing_is_taken_for(self.write_timeout);
        }
        Guarded {
            connection: Some(connection),
            endpoint: Arc::clone(&self.endpoint),
            ticket: Weak::clone(&self.ticket),
            may_upgrade: false,
            sent: Sent::Head(BytesMut::new()),
            received: Received::Head(BytesMut::new()),
            to_head: false,
            keep: true,
            is_faulty: false,
            is_silent: true,
        }
    }

    async fn open(&self) -> Result<Connection> {
        let Some(peer) = &self.encrypted else {
            let link = Link::connect(self.endpoint.address, self.connect_timeout).await?;
            return Ok(Connection::Plain(link));
        };
        let transport = if peer.options.ca.is_some() {
            &WITH_OWN_ROOTS
        } else {
            &WITH_SYSTEM_ROOTS
        };
        Ok(Connection::Encrypted(Encrypted(
            transport.new_stream(&**peer).await?,
        )))
    }
}

impl Idle for Encrypted {
    fn rest(&mut self) -> bool {
        self.is_quiet()
    }

    fn is_quiet(&mut self) -> bool {
        let mut space = [0; 1];
        tokio::task::unconstrained(self.0.read(&mut space))
            .now_or_never()
            .is_none()
    }
}

impl Connection {
    fn stream(&mut self) -> Pin<&mut dyn Duplex> {
        match self {
            Self::Plain(link) => link.stream(),
            Self::Encrypted(encrypted) => Pin::new(&mut encrypted.0),
        }
    }
}

/// Both directions of a connection.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<D: AsyncRead + AsyncWrite + Unpin> Duplex for D {}

// === impl Guarded ===

impl Guarded {
    /// Follows what has been sent of the request.
    fn follow_request(&mut self, mut bytes: &[u8]) {
        if let Sent::Head(head) = &mut self.sent {
            head.extend_from_slice(bytes);
            let Some(end) = memmem::find(head, b"\r\n\r\n") else {
                return;
            };
            bytes = &bytes[bytes.len() - (head.len() - end - 4)..];
            let Some(request) = head::to_request(&head[..end + 4]) else {
                self.keep = false;
                // It never ends, so that the connection is never kept.
                self.sent = Sent::Body(Framing::Tunnel);
                return;
            };
            self.to_head = request.method == Method::HEAD;
            self.sent = Sent::Body(Framing::begin(body_kind(&request.headers)));
        }
        if let Sent::Body(framing) = &mut self.sent
            && framing.advance(bytes) != Ok(bytes.len())
        {
            // What is too much would stand in front of the next request.
            self.keep = false;
        }
    }

    /// Follows what has been received of the answer.
    ///
    /// # Errors
    /// How many of the bytes stand before the fault.
    fn follow_answer(&mut self, bytes: &[u8]) -> std::result::Result<(), usize> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.received {
                Received::Head(head) => {
                    head.extend_from_slice(&bytes[at..]);
                    let is_other = !head.starts_with(&b"HTTP/"[..head.len().min(5)]);
                    if is_other || head.len() > MOST_HEAD {
                        return Err(at);
                    }
                    if memchr(b'\n', &bytes[at..]).is_none() {
                        return Ok(());
                    }
                    let Some(answer) = Answer::take(head, self.to_head).map_err(|_| at)? else {
                        return Ok(());
                    };
                    if answer.head.status == StatusCode::SWITCHING_PROTOCOLS {
                        if self.may_upgrade && names_websocket(&answer.head.headers) {
                            self.received = Received::Tunnel;
                            return Ok(());
                        }
                        return Err(at);
                    }
                    at = bytes.len() - head.len();
                    if answer.head.status.is_informational() {
                        head.clear();
                        continue;
                    }
                    self.keep &= answer.keep;
                    self.received = Received::Body(answer.body);
                }
                Received::Body(body) => {
                    let (taken, fault) = body.skip(&bytes[at..]);
                    at += taken;
                    if fault.is_some() {
                        return Err(at);
                    }
                }
                Received::Ended => {
                    self.keep = false;
                    return Ok(());
                }
                Received::Tunnel => return Ok(()),
            }
            if matches!(self.received, Received::Body(Body::Done)) {
                self.received = Received::Ended;
            }
        }
        Ok(())
    }

    /// Lets the next request have the connection, and the place in flight, once this one is over.
    fn give_back(&mut self) {
        let is_over = matches!(
            (&self.sent, &self.received),
            (Sent::Body(Framing::Done), Received::Ended)
        );
        if !is_over {
            return;
        }
        if let Some(ticket) = self.ticket.upgrade() {
            ticket.release();
        }
        if (self.keep || self.may_upgrade)
            && let Some(connection) = self.connection.take()
            && self.keep
        {
            let now = Instant::now();
            match connection {
                Connection::Plain(link) => self.endpoint.kept.keep(link, now),
                Connection::Encrypted(encrypted) => self.endpoint.encrypted.keep(encrypted, now),
            }
        }
    }
}

/// How the body of a request is framed that has been checked before.
fn body_kind(headers: &HeaderMap) -> BodyKind {
    if headers.contains_key(TRANSFER_ENCODING) {
        return BodyKind::Chunked;
    }
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    BodyKind::Length(length.unwrap_or(0))
}

impl VirtualSocket for Guarded {
    fn set_socket_option(&self, _option: VirtualSockOpt) -> io::Result<()> {
        // The connection has what it needs.
        Ok(())
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_faulty {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let Some(connection) = &mut this.connection else {
            return Poll::Ready(Ok(()));
        };
        let is_body = matches!(this.received, Received::Body(_) | Received::Ended);
        let most = if is_body {
            READ_BYTES.min(buf.remaining())
        } else {
            buf.remaining()
        };
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        match ready!(connection.stream().poll_read(cx, &mut part)) {
            // TLS that was closed while it was idle: no answer has been cut.
            Err(error) if this.is_silent && error.kind() == io::ErrorKind::UnexpectedEof => {
                return Poll::Ready(Ok(()));
            }
            read => read?,
        }
        let mut good = part.filled().len();
        this.is_silent &= good == 0;
        if let Err(before_fault) = this.follow_answer(part.filled()) {
            this.is_faulty = true;
            if before_fault == 0 {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            good = before_fault;
        }
        buf.advance(good);
        this.give_back();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let Some(connection) = &mut this.connection else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let written = ready!(connection.stream().poll_write(cx, data))?;
        this.follow_request(&data[..written]);
        this.give_back();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.connection {
            Some(connection) => connection.stream().poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.connection {
            Some(connection) => connection.stream().poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
