//! Connections over which Pingora speaks HTTP/1.1 to an upstream, with or without TLS.
//!
//! Pingora parses responses more leniently than [`super::response`]; for example, it takes an empty
//! chunk size for the end of a body. Each byte is therefore checked here before Pingora reads it.
//! To Pingora, these connections are plain and serve one request: TLS is handled inside, and after
//! the response the connection returns to the idle pool, which the fast path shares, and appears
//! closed to Pingora.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use memchr::{memchr, memmem};
use pingora_core::Result;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::upstreams::peer::{HttpPeer, Scheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::UpstreamConfig;
use crate::message::framing::BodyFraming;
use crate::message::head;
use crate::message::head::BodyKind;
use crate::message::headers::names_websocket;
use crate::upstream::endpoint::{Endpoint, InFlightPermit};
use crate::upstream::http1_connection::{IdleCheck, MAX_RESPONSE_HEAD_BYTES, UpstreamConnection};
use crate::upstream::proxied::ConnectionHeader;
use crate::upstream::response::{ResponseBody, UpstreamResponse};

/// Size of one body read. Pingora buffers up to ten reads of a response while its reader is slow.
const BODY_READ_BYTES: usize = 4 << 10;

/// Makes a peer use checked connections to the address of `permit`, which is released when the
/// response has ended. Returns a flag that is set if the connection was reused.
pub(crate) fn prepare(
    peer: &mut HttpPeer,
    permit: &Arc<InFlightPermit>,
    config: &UpstreamConfig,
    header: Option<ConnectionHeader>,
) -> Arc<AtomicBool> {
    let connector = CheckedConnector::new(peer, permit, config, header);
    let is_reused = Arc::clone(&connector.is_reused);
    peer.options.custom_l4 = Some(Arc::new(connector));
    is_reused
}

#[derive(Debug)]
pub(super) struct CheckedConnector {
    /// The peer as configured, with TLS if the upstream uses it.
    peer: Box<HttpPeer>,
    endpoint: Arc<Endpoint>,
    /// The permit of the current request.
    permit: Weak<InFlightPermit>,
    connect_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    header: Option<ConnectionHeader>,
    is_reused: Arc<AtomicBool>,
}

/// A connection for one request.
#[derive(Debug)]
pub(super) struct CheckedConnection {
    /// `None` once the exchange has ended.
    connection: Option<UpstreamConnection>,
    endpoint: Arc<Endpoint>,
    permit: Weak<InFlightPermit>,
    /// Whether the request asks for a WebSocket upgrade.
    allows_upgrade: bool,
    sent: RequestProgress,
    received: ResponseProgress,
    /// Whether the method is HEAD.
    is_head_request: bool,
    /// Whether the connection may be reused.
    keep_alive: bool,
    is_faulty: bool,
    /// Whether no byte of a response has been received.
    is_response_empty: bool,
}

/// The progress of sending the request.
#[derive(Debug)]
enum RequestProgress {
    Head(BytesMut),
    Body(BodyFraming),
}

/// The progress of receiving the response.
#[derive(Debug)]
enum ResponseProgress {
    Head(BytesMut),
    Body(ResponseBody),
    Ended,
    /// After a 101 response: bytes are not HTTP messages.
    Tunnel,
}

#[async_trait]
impl Connect for CheckedConnector {
    async fn connect(&self, _address: &SocketAddr) -> Result<Stream> {
        let (pool, header) = (&self.endpoint.idle, self.header.as_ref());
        let idle = pool.take(self.idle_timeout, IdleCheck::Now, header);
        self.is_reused.store(idle.is_some(), Ordering::Relaxed);
        let connection = match idle {
            Some(connection) => connection,
            None => self.open().await?,
        };
        Ok(VirtualSocketStream::new(Box::new(self.guard(connection))).into())
    }
}

impl CheckedConnector {
    /// Creates a connector and makes the peer plain to Pingora.
    pub(super) fn new(
        peer: &mut HttpPeer,
        permit: &Arc<InFlightPermit>,
        config: &UpstreamConfig,
        header: Option<ConnectionHeader>,
    ) -> Self {
        let configured = Box::new(peer.clone());
        peer.scheme = Scheme::HTTP;
        Self {
            peer: configured,
            endpoint: Arc::clone(&permit.endpoint),
            permit: Arc::downgrade(permit),
            connect_timeout: config.connect_timeout,
            idle_timeout: config.idle_timeout,
            write_timeout: config.write_timeout,
            header,
            is_reused: Arc::default(),
        }
    }

    /// Opens a connection for a WebSocket upgrade; it is not reused.
    pub(super) async fn connect_for_upgrade(&self) -> Result<CheckedConnection> {
        Ok(CheckedConnection {
            allows_upgrade: true,
            keep_alive: false,
            ..self.guard(self.open().await?)
        })
    }

    fn guard(&self, connection: UpstreamConnection) -> CheckedConnection {
        connection.set_write_stall_timeout(self.write_timeout);
        CheckedConnection {
            connection: Some(connection),
            endpoint: Arc::clone(&self.endpoint),
            permit: Weak::clone(&self.permit),
            allows_upgrade: false,
            sent: RequestProgress::Head(BytesMut::new()),
            received: ResponseProgress::Head(BytesMut::new()),
            is_head_request: false,
            keep_alive: true,
            is_faulty: false,
            is_response_empty: true,
        }
    }

    async fn open(&self) -> Result<UpstreamConnection> {
        let (pins, header) = (&self.endpoint.pins, self.header.clone());
        UpstreamConnection::connect(&self.peer, pins, self.connect_timeout, header).await
    }
}

// === impl CheckedConnection ===

impl CheckedConnection {
    /// Tracks the bytes of the request that were sent.
    fn track_request(&mut self, mut bytes: &[u8]) {
        if let RequestProgress::Head(head) = &mut self.sent {
            head.extend_from_slice(bytes);
            let Some(end) = memmem::find(head, b"\r\n\r\n") else {
                return;
            };
            bytes = &bytes[bytes.len() - (head.len() - end - 4)..];
            let Some(request) = head::to_request(&head[..end + 4]) else {
                self.keep_alive = false;
                // Never complete, so that the connection is not reused.
                self.sent = RequestProgress::Body(BodyFraming::Tunnel);
                return;
            };
            self.is_head_request = request.method == Method::HEAD;
            if let Some(connection) = &mut self.connection {
                connection.note_request(&request.headers);
            }
            self.sent = RequestProgress::Body(BodyFraming::begin(body_kind(&request.headers)));
        }
        if let RequestProgress::Body(framing) = &mut self.sent
            && framing.advance(bytes) != Ok(bytes.len())
        {
            // Excess bytes would precede the next request.
            self.keep_alive = false;
        }
    }

    /// Tracks the bytes of the response that were received.
    ///
    /// # Errors
    /// The number of bytes before the fault.
    fn track_response(&mut self, bytes: &[u8]) -> std::result::Result<(), usize> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.received {
                ResponseProgress::Head(head) => {
                    head.extend_from_slice(&bytes[at..]);
                    let is_other = !head.starts_with(&b"HTTP/"[..head.len().min(5)]);
                    if is_other || head.len() > MAX_RESPONSE_HEAD_BYTES {
                        return Err(at);
                    }
                    if memchr(b'\n', &bytes[at..]).is_none() {
                        return Ok(());
                    }
                    let Some(response) =
                        UpstreamResponse::take(head, self.is_head_request).map_err(|_| at)?
                    else {
                        return Ok(());
                    };
                    if response.head.status == StatusCode::SWITCHING_PROTOCOLS {
                        if self.allows_upgrade && names_websocket(&response.head.headers) {
                            self.received = ResponseProgress::Tunnel;
                            return Ok(());
                        }
                        return Err(at);
                    }
                    at = bytes.len() - head.len();
                    if response.head.status.is_informational() {
                        head.clear();
                        continue;
                    }
                    self.keep_alive &= response.keep_alive;
                    if let (true, Some(connection)) = (response.is_challenge, &mut self.connection)
                    {
                        connection.note_challenge();
                    }
                    self.received = ResponseProgress::Body(response.body);
                }
                ResponseProgress::Body(body) => {
                    let (taken, fault) = body.skip(&bytes[at..]);
                    at += taken;
                    if fault.is_some() {
                        return Err(at);
                    }
                }
                ResponseProgress::Ended => {
                    self.keep_alive = false;
                    return Ok(());
                }
                ResponseProgress::Tunnel => return Ok(()),
            }
            if matches!(self.received, ResponseProgress::Body(ResponseBody::Done)) {
                self.received = ResponseProgress::Ended;
                // After an early answer, the upstream may take the rest of the request for another.
                self.keep_alive &= matches!(self.sent, RequestProgress::Body(BodyFraming::Done));
            }
        }
        Ok(())
    }

    /// Releases the connection and the permit when the exchange is complete.
    fn release_if_complete(&mut self) {
        let is_over = matches!(
            (&self.sent, &self.received),
            (
                RequestProgress::Body(BodyFraming::Done),
                ResponseProgress::Ended
            )
        );
        if !is_over {
            return;
        }
        if let Some(permit) = self.permit.upgrade() {
            permit.release();
        }
        if (self.keep_alive || self.allows_upgrade)
            && let Some(connection) = self.connection.take()
            && self.keep_alive
        {
            self.endpoint.idle.put(connection, Instant::now());
        }
    }
}

/// Returns the body framing of a request that has been checked.
fn body_kind(headers: &HeaderMap) -> BodyKind {
    if headers.contains_key(TRANSFER_ENCODING) {
        return BodyKind::Chunked;
    }
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    BodyKind::Length(length.unwrap_or(0))
}

impl VirtualSocket for CheckedConnection {
    fn set_socket_option(&self, _option: VirtualSockOpt) -> io::Result<()> {
        // Options are set when the connection is opened.
        Ok(())
    }
}

impl AsyncRead for CheckedConnection {
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
        let is_body = matches!(
            this.received,
            ResponseProgress::Body(_) | ResponseProgress::Ended
        );
        let limit = if is_body {
            BODY_READ_BYTES.min(buf.remaining())
        } else {
            buf.remaining()
        };
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(limit));
        match ready!(connection.stream().poll_read(cx, &mut part)) {
            // A TLS connection that was closed while idle: no response was truncated.
            Err(error)
                if this.is_response_empty && error.kind() == io::ErrorKind::UnexpectedEof =>
            {
                return Poll::Ready(Ok(()));
            }
            read => read?,
        }
        let mut good = part.filled().len();
        this.is_response_empty &= good == 0;
        if let Err(before_fault) = this.track_response(part.filled()) {
            this.is_faulty = true;
            if before_fault == 0 {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            good = before_fault;
        }
        buf.advance(good);
        this.release_if_complete();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CheckedConnection {
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
        this.track_request(&data[..written]);
        this.release_if_complete();
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
