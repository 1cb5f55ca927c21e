//! HTTP/2 connections to the addresses of an upstream.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use parking_lot::Mutex;
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::{HttpPeer, Peer};
use pingora_core::{Error, ErrorType, OrErr, Result};

use crate::upstream::pinned_certificates::{PinnedCertificates, connector_options};

/// The error type for an upstream with `http2 = true` that does not speak HTTP/2.
const NOT_HTTP2: ErrorType = ErrorType::new("upstream with http2 = true does not speak HTTP/2");

/// Maximum concurrent streams on one connection.
const MAX_STREAMS: usize = 64;

/// Maximum connections without a stream that are kept.
const MAX_IDLE_CONNECTIONS: usize = 128;

/// Flow-control window of a stream. That of the connection is the sum over all streams, so that slow
/// readers do not block others.
const STREAM_WINDOW_BYTES: u32 = 16 << 10;

/// Maximum size of a frame that the upstream may send.
const MAX_FRAME_BYTES: u32 = 64 << 10;

/// The HTTP/2 connections of an upstream, by the hash of their peers.
pub struct Http2Pool {
    connector: TransportConnector,
    connections: Mutex<HashMap<u64, Vec<Arc<Http2Connection>>>>,
}

/// A connection. It is closed when it was removed from the pool and its streams have ended.
struct Http2Connection {
    requests: SendRequest<Bytes>,
    streams: AtomicUsize,
    /// Time of the last change of `streams`.
    used_at: Mutex<Instant>,
    /// Whether no more streams are opened: the connection has ended, or is unusable.
    is_retired: Arc<AtomicBool>,
}

/// The place of a stream on a connection, until it is dropped.
pub(super) struct StreamPermit(Arc<Http2Connection>);

impl Http2Pool {
    /// Creates the pool of an upstream, whose certificates the system's authorities have signed if
    /// `uses_system_roots`.
    pub fn new(uses_system_roots: bool) -> Self {
        let options = connector_options(MAX_IDLE_CONNECTIONS, uses_system_roots);
        Self {
            connector: TransportConnector::new(Some(options)),
            connections: Mutex::default(),
        }
    }

    /// Returns a place on a connection that can carry another stream, and whether it has carried
    /// one.
    pub(super) async fn acquire(
        &self,
        peer: &HttpPeer,
        pins: &PinnedCertificates,
    ) -> Result<(StreamPermit, SendRequest<Bytes>, bool)> {
        while let Some(permit) = self.take(peer) {
            match permit.0.requests.clone().ready().await {
                Ok(requests) => return Ok((permit, requests, true)),
                Err(_ending) => permit.retire(),
            }
        }
        let permit = self.connect(peer, pins).await?;
        let ready = permit.0.requests.clone().ready().await;
        let requests = ready.or_err(ErrorType::H2Error, "opening a stream")?;
        Ok((permit, requests, false))
    }

    fn take(&self, peer: &HttpPeer) -> Option<StreamPermit> {
        let idle_timeout = peer.options.idle_timeout.unwrap_or(Duration::MAX);
        let connections = self.connections.lock();
        let mut connections = connections.get(&peer.reuse_hash())?.iter();
        connections.find_map(|connection| connection.acquire(idle_timeout))
    }

    async fn connect(&self, peer: &HttpPeer, pins: &PinnedCertificates) -> Result<StreamPermit> {
        let stream = self.connector.new_stream(peer).await?;
        pins.check(stream.get_ssl_digest().as_deref())?;
        let is_http2 = match stream.selected_alpn_proto() {
            Some(protocol) => protocol == ALPN::H2,
            // By prior knowledge, without TLS.
            None => !peer.is_tls(),
        };
        if !is_http2 {
            return Err(Error::new(NOT_HTTP2));
        }
        let (requests, connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(MAX_STREAMS)
            .max_concurrent_streams(1)
            .max_frame_size(MAX_FRAME_BYTES)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(STREAM_WINDOW_BYTES * MAX_STREAMS as u32)
            .handshake(stream)
            .await
            .or_err(ErrorType::HandshakeError, "opening an HTTP/2 connection")?;
        let is_retired = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&is_retired);
        tokio::spawn(async move {
            let _ended_or_failed = connection.await;
            has_ended.store(true, Ordering::Relaxed);
        });
        let connection = Arc::new(Http2Connection {
            requests,
            streams: AtomicUsize::new(1),
            used_at: Mutex::new(Instant::now()),
            is_retired,
        });
        let mut all = self.connections.lock();
        let group = all.entry(peer.reuse_hash()).or_default();
        group.push(Arc::clone(&connection));
        Ok(StreamPermit(connection))
    }

    /// Closes connections that have been idle for this time, and the least recently used ones if
    /// there are too many.
    pub fn evict(&self, idle_timeout: Duration) {
        let mut connections = self.connections.lock();
        let mut idle = 0;
        connections.retain(|_, group| {
            group.retain(|connection| {
                let is_idle = connection.streams.load(Ordering::Relaxed) == 0;
                idle += usize::from(is_idle);
                let is_kept = !is_idle || idle <= MAX_IDLE_CONNECTIONS;
                is_kept && connection.is_usable(idle_timeout)
            });
            !group.is_empty()
        });
    }
}

impl Http2Connection {
    /// Returns whether the connection can carry streams.
    fn is_usable(&self, idle_timeout: Duration) -> bool {
        let is_used = self.streams.load(Ordering::Relaxed) > 0;
        !self.is_retired.load(Ordering::Relaxed)
            && (is_used || self.used_at.lock().elapsed() < idle_timeout)
    }

    fn acquire(self: &Arc<Self>, idle_timeout: Duration) -> Option<StreamPermit> {
        let limit = MAX_STREAMS.min(self.requests.current_max_send_streams());
        let add = |streams: usize| (streams < limit).then_some(streams + 1);
        if !self.is_usable(idle_timeout) {
            return None;
        }
        self.streams
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(StreamPermit(Arc::clone(self)))
    }
}

impl StreamPermit {
    /// Makes the connection carry no more streams. Those that are open continue.
    pub(super) fn retire(&self) {
        self.0.is_retired.store(true, Ordering::Relaxed);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        *self.0.used_at.lock() = Instant::now();
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
