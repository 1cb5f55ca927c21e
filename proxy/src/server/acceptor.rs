//! The accept loop: plain sockets that the caller bound, caps in all and by address, one task per
//! connection.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_common::exit::Exit;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;

use crate::config::Listen;
use crate::downstream::client_address::counted;
use crate::downstream::client_connection::{Transport, Wire};
use crate::downstream::connection_limit::Places;
use crate::downstream::connection_permit::{ByAddress, Permit};
use crate::downstream::tls::TlsFiles;
use crate::server::connections::Connections;

/// How long to wait when the system has no descriptor or memory for another connection.
const BREATH: Duration = Duration::from_millis(20);

/// What a socket's queue holds at most, as it is bound here (tokio's own number).
const BACKLOG: usize = 1024;

/// How a listener speaks to its clients.
#[derive(Clone)]
pub(crate) struct Protocol {
    pub(crate) tls: Option<Arc<TlsFiles>>,
    /// Whether HTTP/2 is spoken without TLS, to clients that begin with it.
    pub(crate) h2c: bool,
}

/// Everything that the accept loops of one gateway share.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) connections: Arc<Connections>,
    pub(crate) places: Arc<Places>,
    pub(crate) by_address: Arc<ByAddress>,
    pub(crate) tasks: TaskTracker,
    /// Begins when idle connections have to leave.
    pub(crate) leaving: CancellationToken,
}

// === impl Protocol ===

impl Protocol {
    /// # Errors
    /// Status 64 with the file that is not good.
    pub(crate) fn load(listen: &Listen) -> Result<Self, Exit> {
        let tls = listen
            .tls
            .clone()
            .map(TlsFiles::load)
            .transpose()?
            .map(Arc::new);
        Ok(Self {
            tls,
            h2c: listen.h2c,
        })
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts until the stop begins.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        protocol: Protocol,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.empty(listener, &protocol),
                accepted = self.accept(&listener) => {
                    if let Some((stream, peer, place)) = accepted {
                        self.take_in(stream, peer, place, &protocol);
                    }
                }
            }
        }
    }

    /// `None` when the system refuses.
    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let place = self.places.take().await.ok()?;
        match listener.accept().await {
            Ok((stream, peer)) => Some((stream, peer, place)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(BREATH).await;
                None
            }
        }
    }

    /// Takes in what waits in the queue of a socket before it is closed: the system would reset it.
    fn empty(&self, listener: TcpListener, protocol: &Protocol) {
        let Ok(listener) = listener.into_std() else {
            return;
        };
        for _ in 0..BACKLOG {
            let Ok(place) = self.places.try_take() else {
                return;
            };
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Of this one alone (accept(2) hands on what befell it in the queue): others wait
                // behind it.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    continue;
                }
            };
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                self.take_in(stream, peer, place, protocol);
            }
        }
    }

    /// Serves a connection, unless its client has too many.
    fn take_in(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
        protocol: &Protocol,
    ) {
        let Some(permit) = self.admit(peer, place) else {
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
            self.leaving.clone(),
        ));
    }

    /// `None` when the cap on one address refuses.
    fn admit(&self, peer: SocketAddr, total: OwnedSemaphorePermit) -> Option<Permit> {
        let client = peer.ip().to_canonical();
        let address = counted(client);
        let metrics = self.connections.metrics();
        let limits = self.connections.limits();
        // A proxy in front brings many clients: the cap on all connections is its cap.
        let trusted = limits
            .trusted_proxies
            .iter()
            .any(|network| network.contains(client));
        let most = if trusted {
            usize::MAX
        } else {
            limits.connections_per_address
        };
        if !self.by_address.enter(address, most) {
            metrics.connections_refused.inc();
            return None;
        }
        metrics.connections.inc();
        let by_address = Arc::clone(&self.by_address);
        let (gauge, unheard) = (metrics.connections.clone(), metrics.unheard.clone());
        let response_buffers = self.connections.response_buffers();
        Some(Permit {
            _total: total,
            by_address,
            address,
            response_buffers,
            gauge,
            unheard,
        })
    }
}

async fn serve(
    connections: Arc<Connections>,
    stream: TcpStream,
    peer: SocketAddr,
    permit: Permit,
    protocol: Protocol,
    leaving: CancellationToken,
) {
    let limits = connections.limits();
    let transport = match protocol.tls {
        None => Transport::Tcp(stream),
        Some(tls) => match tokio::time::timeout(limits.head_timeout, tls.accept(stream)).await {
            Ok(Ok(stream)) => Transport::Tls(Box::new(stream)),
            Ok(Err(_)) | Err(_) => {
                connections.metrics().tls_failed.inc();
                return;
            }
        },
    };
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let wire = Wire::new(transport, peer, limits, Some(permit));
    connections
        .serve(Box::new(wire), protocol.h2c, leaving)
        .await;
}
