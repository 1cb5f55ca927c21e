//! The accept loop, with limits on connections in total and per client address.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use postern_core::network::IpNetworks;
use postern_http::client_shares::ClientShares;
use postern_http::downstream::{ClientConnection, ClientTransport};
use postern_service::accept::accept_connections;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::certificates::ServerTls;
use crate::downstream::session_ext::ConnectionAttributes;
use crate::downstream::tls;
use crate::server::connection_handler::ConnectionHandler;
use crate::server::proxy_header::read_source;
use crate::state::request_context::GaugeGuard;
use crate::telemetry::metrics::CloseReason;

/// Keeps the keys of connections apart from those of rate limits.
const CONNECTION_SALT: u64 = 50;

/// What an open connection holds, until it is dropped.
type ConnectionPermit = Box<dyn Send + Sync>;

#[derive(Clone)]
pub(crate) struct ListenerProtocol {
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Whether HTTP/2 with prior knowledge is accepted without TLS.
    pub(crate) h2c: bool,
    pub(crate) redirect_to_https: Option<u16>,
    /// The address in the configuration, by which the access list is found.
    pub(crate) address: SocketAddr,
    /// The load balancers whose connections begin with a PROXY protocol header.
    pub(crate) proxy_protocol: Option<Arc<IpNetworks>>,
}

#[derive(Clone)]
pub(crate) struct ConnectionAcceptor {
    pub(crate) connections: Arc<ConnectionHandler>,
    pub(crate) connection_limit: Arc<Semaphore>,
    pub(crate) connections_by_address: Arc<ClientShares>,
    pub(crate) tasks: TaskTracker,
    pub(crate) close_idle: CancellationToken,
}

impl ConnectionAcceptor {
    /// Accepts connections until `stop`.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        protocol: ListenerProtocol,
        stop: CancellationToken,
    ) {
        let spawn = |stream, peer, total| self.spawn_connection(stream, peer, total, &protocol);
        accept_connections(listener, &self.connection_limit, &stop, spawn).await;
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
                acceptor.spawn_client_connection(stream, source.unwrap_or(peer), total, &protocol);
            }
        });
    }

    /// Returns the source address of a connection; `Some(None)` if it is that of the peer, and
    /// `None` if the connection is closed.
    async fn read_proxy_header(&self, stream: &mut TcpStream) -> Option<Option<SocketAddr>> {
        let within = self.connections.limits().http.head_timeout;
        let read = tokio::time::timeout(within, read_source(stream)).await;
        match read.unwrap_or(Err(Some(CloseReason::ProxyHeaderTimeout))) {
            Ok(source) => return Some(source),
            Err(Some(reason)) => self.connections.close_reason(reason),
            Err(None) => {}
        }
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
        let close_idle = self.close_idle.clone();
        let serving = serve(connections, stream, peer, permit, protocol, close_idle);
        self.tasks.spawn(serving);
    }

    /// Returns `None` if the limit per address is reached.
    fn acquire_permit(
        &self,
        peer: SocketAddr,
        total: OwnedSemaphorePermit,
    ) -> Option<ConnectionPermit> {
        let address = peer.ip().to_canonical();
        let metrics = &self.connections.state.metrics;
        let limits = self.connections.limits();
        // Trusted proxies carry requests of many clients: only the total limit applies to them.
        let limit = if limits.http.is_trusted_proxy(address) {
            usize::MAX
        } else {
            limits.connections_per_address
        };
        let key = self.connections.state.address_key(address, CONNECTION_SALT);
        let Some(share) = self.connections_by_address.try_add(key, 1, limit) else {
            metrics.connections_refused.inc();
            return None;
        };
        let open = GaugeGuard::new(&metrics.connections);
        Some(Box::new((total, share, open)))
    }
}

async fn serve(
    connections: Arc<ConnectionHandler>,
    stream: TcpStream,
    peer: SocketAddr,
    permit: ConnectionPermit,
    protocol: ListenerProtocol,
    close_idle: CancellationToken,
) {
    let limits = connections.limits();
    let (transport, client) = match &protocol.tls {
        None => (ClientTransport::Tcp(stream), None),
        Some(tls) => {
            let handshake = Box::pin(tls::accept(tls, stream));
            let accepted = tokio::time::timeout(limits.http.head_timeout, handshake).await;
            let Ok(Ok(accepted)) = accepted else {
                return connections.state.metrics.tls_failed.inc();
            };
            let Some(tls::AcceptedTls { stream, client }) = accepted else {
                return;
            };
            (ClientTransport::Tls(Box::new(stream)), client)
        }
    };
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let http = Arc::clone(&limits.http);
    let attributes = ConnectionAttributes::if_any(protocol.redirect_to_https, client);
    let buffers = Arc::clone(&connections.state.response_buffers);
    let connection =
        ClientConnection::new(transport, peer, http, buffers, permit).with_attributes(attributes);
    connections
        .serve(Box::new(connection), protocol.h2c, close_idle)
        .await;
}
