//! The accept loop: plain sockets that the caller bound, caps in all and by address, one task per connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postern_common::Shutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::client::counted;
use crate::connection::Connections;
use crate::tls::TlsFiles;
use crate::wire::{Transport, Wire};

/// How long to wait when the system has no descriptor or memory for another connection.
const BREATH: Duration = Duration::from_millis(20);

/// A place among the open connections; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _total: OwnedSemaphorePermit,
    by_address: Arc<ByAddress>,
    address: IpAddr,
    gauge: prometheus::IntGauge,
    /// Requests that Pingora answered before any hook was called.
    pub(crate) unheard: prometheus::IntCounter,
}

/// Open connections of each client address.
#[derive(Debug, Default)]
pub(crate) struct ByAddress(Mutex<HashMap<IpAddr, usize, ahash::RandomState>>);

/// Everything that the accept loops of one gateway share.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) connections: Arc<Connections>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) by_address: Arc<ByAddress>,
    pub(crate) tasks: TaskTracker,
}

// === impl ByAddress ===

impl ByAddress {
    /// One more of this address, unless it has `most` already.
    fn enter(&self, address: IpAddr, most: usize) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        let may = *count < most;
        if may {
            *count += 1;
        }
        may
    }

    fn leave(&self, address: IpAddr) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.by_address.leave(self.address);
        self.gauge.dec();
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts until the stop begins.
    pub(crate) async fn run(self, listener: TcpListener, tls: Option<Arc<TlsFiles>>, stop: Shutdown) {
        loop {
            let accepted = tokio::select! {
                () = stop.begun() => return,
                accepted = self.accept(&listener) => accepted,
            };
            if let Some((stream, peer, permit)) = accepted {
                let _best_effort = stream.set_nodelay(true);
                self.tasks.spawn(serve(
                    Arc::clone(&self.connections),
                    stream,
                    peer,
                    permit,
                    tls.clone(),
                    stop.clone(),
                ));
            }
        }
    }

    /// `None` when the system or the caps refuse.
    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, Permit)> {
        let total = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(BREATH).await;
                return None;
            }
        };
        let client = peer.ip().to_canonical();
        let address = counted(client);
        let metrics = self.connections.metrics();
        let limits = self.connections.limits();
        // A proxy in front brings many clients: the cap on all connections is its cap.
        let trusted = limits.trusted_proxies.iter().any(|network| network.contains(client));
        let most = if trusted { usize::MAX } else { limits.connections_per_address };
        if !self.by_address.enter(address, most) {
            metrics.connections_refused.inc();
            return None;
        }
        metrics.connections.inc();
        let by_address = Arc::clone(&self.by_address);
        let (gauge, unheard) = (metrics.connections.clone(), metrics.unheard.clone());
        Some((stream, peer, Permit { _total: total, by_address, address, gauge, unheard }))
    }
}

async fn serve(
    connections: Arc<Connections>,
    stream: TcpStream,
    peer: SocketAddr,
    permit: Permit,
    tls: Option<Arc<TlsFiles>>,
    stop: Shutdown,
) {
    let limits = connections.limits();
    let transport = match tls {
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
    connections.serve(Box::new(wire), stop).await;
}
