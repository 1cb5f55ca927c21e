//! The accept loop, with limits on connections in total and per client address.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_core::log_limit::LogLimit;
use postern_core::network::{IpNetworks, client_limit_key};
use postern_http::downstream::{ClientConnection, ClientTransport};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::certificates::ServerTls;
use crate::config::HttpsRedirect;
use crate::downstream::connection_permit::{ConnectionsByAddress, CountedConnection};
use crate::downstream::session_ext::ConnectionAttributes;
use crate::downstream::tls;
use crate::server::connection_handler::ConnectionHandler;
use crate::server::proxy_header::{HeaderError, read_source};
use crate::telemetry::metrics::CloseReason;

/// Delay after the system had no file descriptor or memory for a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Maximum length of the accept queue of a listening socket (the default of tokio).
const MAX_QUEUED_CONNECTIONS: usize = 1024;

/// The protocol of a listener.
#[derive(Clone)]
pub(crate) struct ListenerProtocol {
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Whether HTTP/2 with prior knowledge is accepted without TLS.
    pub(crate) h2c: bool,
    /// Whether, and to where, requests are redirected to HTTPS.
    pub(crate) redirect_to_https: Option<Arc<HttpsRedirect>>,
    /// The address in the configuration, by which the access list is found.
    pub(crate) address: SocketAddr,
    /// The load balancers whose connections begin with a PROXY protocol header.
    pub(crate) proxy_protocol: Option<Arc<IpNetworks>>,
}

/// The state that the accept loops share.
#[derive(Clone)]
pub(crate) struct ConnectionAcceptor {
    pub(crate) connections: Arc<ConnectionHandler>,
    pub(crate) connection_limit: Arc<Semaphore>,
    pub(crate) connections_by_address: Arc<ConnectionsByAddress>,
    pub(crate) tasks: TaskTracker,
    /// Cancelled when idle connections must be closed.
    pub(crate) close_idle: CancellationToken,
    /// Rate limit of warnings about connections that cannot be accepted.
    pub(crate) warnings: Arc<LogLimit>,
}

// === impl ConnectionAcceptor ===

impl ConnectionAcceptor {
    /// Accepts connections until `stop`.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        protocol: ListenerProtocol,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.accept_queued(listener, &protocol),
                accepted = self.accept(&listener) => {
                    if let Some((stream, peer, total)) = accepted {
                        self.spawn_connection(stream, peer, total, &protocol);
                    }
                }
            }
        }
    }

    /// Returns `None` if the system refuses the connection.
    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let total = Arc::clone(&self.connection_limit);
        let total = total.acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, peer)) => Some((stream, peer, total)),
            Err(error) => {
                self.warn_of_failed_accept(&error);
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                None
            }
        }
    }

    /// Logs a warning, at most one in ten seconds: without file descriptors, each attempt fails.
    fn warn_of_failed_accept(&self, error: &std::io::Error) {
        if let Some(suppressed) = self.warnings.admit() {
            tracing::warn!(%error, suppressed, "connection accept failed");
        }
    }

    /// Accepts the connections in the queue of a socket before it is closed, because the kernel
    /// would reset them.
    fn accept_queued(&self, listener: TcpListener, protocol: &ListenerProtocol) {
        let Ok(listener) = listener.into_std() else {
            return;
        };
        for _ in 0..MAX_QUEUED_CONNECTIONS {
            let total = Arc::clone(&self.connection_limit).try_acquire_owned();
            let Ok(total) = total else {
                return;
            };
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The error concerns this connection only (accept(2) passes on pending errors of
                // the connection).
                Err(error) => {
                    self.warn_of_failed_accept(&error);
                    continue;
                }
            };
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                self.spawn_connection(stream, peer, total, protocol);
            }
        }
    }

    /// Serves a connection in a new task. From a load balancer, its PROXY protocol header is read
    /// first, and the address in it takes the place of the peer's.
    fn spawn_connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        total: OwnedSemaphorePermit,
        protocol: &ListenerProtocol,
    ) {
        let sends_header = |from: &Arc<IpNetworks>| from.contains(peer.ip());
        if !protocol.proxy_protocol.as_ref().is_some_and(sends_header) {
            return self.spawn_client_connection(stream, peer, total, protocol);
        }
        let (acceptor, protocol, mut stream) = (self.clone(), protocol.clone(), stream);
        self.tasks.spawn(async move {
            if let Some(source) = acceptor.read_proxy_header(&mut stream).await {
                let client = source.unwrap_or(peer);
                acceptor.spawn_client_connection(stream, client, total, &protocol);
            }
        });
    }

    /// Returns the source address of a connection; `Some(None)` if it is that of the peer, and
    /// `None` if the connection is closed.
    async fn read_proxy_header(&self, stream: &mut TcpStream) -> Option<Option<SocketAddr>> {
        let within = self.connections.limits().http.head_timeout;
        let reason = match tokio::time::timeout(within, read_source(stream)).await {
            Ok(Ok(source)) => return Some(source),
            Ok(Err(HeaderError::Disconnected)) => return None,
            Ok(Err(HeaderError::Rejected(reason))) => reason,
            Err(_) => CloseReason::ProxyHeaderTimeout,
        };
        self.connections.close_reason(reason);
        None
    }

    /// Serves a connection in a new task, unless its address is not allowed or has too many.
    fn spawn_client_connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        total: OwnedSemaphorePermit,
        protocol: &ListenerProtocol,
    ) {
        if !self.connections.allows(protocol.address, peer.ip()) {
            return;
        }
        let Some(permit) = self.acquire_permit(peer, total) else {
            return;
        };
        let _best_effort = stream.set_nodelay(true);
        let (connections, protocol) = (Arc::clone(&self.connections), protocol.clone());
        self.tasks.spawn(serve(
            connections,
            stream,
            peer,
            permit,
            protocol,
            self.close_idle.clone(),
        ));
    }

    /// Returns `None` if the limit per address is reached.
    fn acquire_permit(
        &self,
        peer: SocketAddr,
        total: OwnedSemaphorePermit,
    ) -> Option<CountedConnection> {
        let client = peer.ip().to_canonical();
        let address = client_limit_key(client);
        let metrics = self.connections.metrics();
        let limits = self.connections.limits();
        // Trusted proxies carry requests of many clients: only the total limit applies to them.
        let limit = if limits.is_trusted_proxy(client) {
            usize::MAX
        } else {
            limits.connections_per_address
        };
        if !self.connections_by_address.try_add(address, limit) {
            metrics.connections_refused.inc();
            return None;
        }
        metrics.connections.inc();
        let connections_by_address = Arc::clone(&self.connections_by_address);
        let gauge = metrics.connections.clone();
        let response_buffers = self.connections.response_buffers();
        Some(CountedConnection {
            _total: total,
            connections_by_address,
            address,
            response_buffers,
            gauge,
        })
    }
}

async fn serve(
    connections: Arc<ConnectionHandler>,
    stream: TcpStream,
    peer: SocketAddr,
    permit: CountedConnection,
    protocol: ListenerProtocol,
    close_idle: CancellationToken,
) {
    let limits = connections.limits();
    let (transport, client) = match &protocol.tls {
        None => (ClientTransport::Tcp(stream), None),
        Some(tls) => {
            let handshake = Box::pin(tls::accept(tls, stream));
            match tokio::time::timeout(limits.http.head_timeout, handshake).await {
                Ok(Ok(None)) => return,
                Ok(Ok(Some(accepted))) => (
                    ClientTransport::Tls(Box::new(accepted.stream)),
                    accepted.client,
                ),
                Ok(Err(_)) | Err(_) => {
                    connections.metrics().tls_failed.inc();
                    return;
                }
            }
        }
    };
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let http = Arc::clone(&limits.http);
    let attributes = ConnectionAttributes::if_any(protocol.redirect_to_https, client);
    let connection = ClientConnection::new(transport, peer, http, Some(Box::new(permit)))
        .with_attributes(attributes);
    connections
        .serve(Box::new(connection), protocol.h2c, close_idle)
        .await;
}
