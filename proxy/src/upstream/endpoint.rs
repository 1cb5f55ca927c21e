//! The addresses of an upstream and their load, health and ejection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::upstreams::peer::HttpPeer;
use pingora_load_balancing::{Backend, Extensions};
use postern_http::client_shares::ClientShare;
use postern_http::upstream::{IdlePool, PinnedCertificates};
use serde::Serialize;

use crate::config::OutlierDetection;
use crate::upstream::peer::PeerBuilder;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The address as text, for the access log.
    pub(crate) address_text: Box<str>,
    pub(crate) config_index: usize,
    pub(crate) peer: HttpPeer,
    pub(crate) pins: PinnedCertificates,
    in_flight: AtomicUsize,
    /// Microseconds to the response head: rises at once, decays slowly.
    latency_us: AtomicU64,
    failures: AtomicU32,
    ejections: AtomicU32,
    /// Times in milliseconds of the pool's clock.
    ejected_at: AtomicU64,
    ejected_until: AtomicU64,
    pub(super) ejection_cause: Mutex<&'static str>,
    /// Whether the end of the last ejection has not been logged.
    return_pending: AtomicBool,
    /// Result of the active health checks.
    pub(crate) healthy: AtomicBool,
    /// The error of the last failed health check.
    pub(super) health_error: Mutex<String>,
    /// Requests that were ended before the end of their responses.
    abandoned: AtomicU64,
    /// Idle HTTP/1.1 connections.
    pub(crate) idle: Arc<IdlePool>,
}

/// The state of an endpoint in `/upstreams`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointStatus {
    pub(crate) address: String,
    pub(crate) healthy: bool,
    /// The error of the last failed health check, while the address is unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health_error: Option<String>,
    pub(crate) ejected: bool,
    pub(crate) in_flight: usize,
    pub(crate) latency_us: u64,
}

/// The availability of an address, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Availability {
    /// Neither ejected nor unhealthy.
    Available,
    Ejected,
    /// Failing its health checks.
    Unhealthy,
}

/// A request in flight to an address, until it is released or dropped.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    pub(crate) endpoint: Arc<Endpoint>,
    share: Mutex<Option<ClientShare>>,
    is_released: AtomicBool,
}

/// Requests of which the gateway resets the streams, because clients have ended them, before new
/// streams are opened on other HTTP/2 connections. Upstreams close a connection, with the streams of
/// all clients, after a number of resets: this one and up to 64 open streams are below the hundred of
/// another gateway.
const MAX_ABANDONED_STREAMS: u64 = 32;

/// Each faster sample reduces the latency estimate by this fraction of the difference.
const LATENCY_DECAY_DIVISOR: u64 = 8;

impl Endpoint {
    pub(super) fn new(address: SocketAddr, config_index: usize, peers: &PeerBuilder) -> Self {
        Self {
            peer: peers.build(config_index, address.clone()),
            pins: peers.pins(),
            address_text: address.to_string().into(),
            address,
            config_index,
            in_flight: AtomicUsize::new(0),
            latency_us: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_at: AtomicU64::new(0),
            ejected_until: AtomicU64::new(0),
            ejection_cause: Mutex::default(),
            return_pending: AtomicBool::new(false),
            healthy: AtomicBool::new(true),
            health_error: Mutex::default(),
            abandoned: AtomicU64::new(0),
            idle: Arc::default(),
        }
    }

    /// Returns a backend of Pingora, which carries the endpoint.
    pub(super) fn backend(self: &Arc<Self>) -> Backend {
        let mut ext = Extensions::new();
        ext.insert(Arc::clone(self));
        Backend {
            addr: self.address.clone(),
            weight: 1,
            ext,
        }
    }

    /// Records that a request was ended before the end of its response.
    pub(crate) fn note_abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the group of HTTP/2 connections that a request may use. `client` is that of a request
    /// with a body: an upstream that does not read the bodies of one client closes the window of the
    /// whole connection (RFC 9113 section 6.9), so that it has its own.
    pub(crate) fn connection_group(&self, client: Option<u64>) -> u64 {
        let retired = self.abandoned.load(Ordering::Relaxed) / MAX_ABANDONED_STREAMS;
        // Even, other than the group of tunnels.
        (client.unwrap_or(0) ^ retired) << 1
    }

    pub(super) fn availability(&self, now_ms: u64) -> Availability {
        if !self.healthy.load(Ordering::Relaxed) {
            Availability::Unhealthy
        } else if self.ejected_until.load(Ordering::Relaxed) > now_ms {
            Availability::Ejected
        } else {
            Availability::Available
        }
    }

    /// Returns the load: requests in flight times latency.
    pub(super) fn load(&self) -> u64 {
        let queue = self.in_flight.load(Ordering::Relaxed) as u64 + 1;
        let latency = self.latency_us.load(Ordering::Relaxed).max(100);
        queue.saturating_mul(latency)
    }

    /// Records a success. One after an ejection makes the next ejection as short as the first.
    pub(super) fn note_success(&self, micros: u64, now_ms: u64) {
        let known = self.latency_us.load(Ordering::Relaxed);
        let next = if micros >= known {
            micros
        } else {
            known - (known - micros) / LATENCY_DECAY_DIVISOR
        };
        self.latency_us.store(next, Ordering::Relaxed);
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.ejections.load(Ordering::Relaxed) != 0
            && self.ejected_until.load(Ordering::Relaxed) <= now_ms
        {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure. Returns the milliseconds for which the address is ejected, if it now is.
    pub(super) fn note_failure(&self, outlier: &OutlierDetection, now_ms: u64) -> Option<u64> {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if outlier.failures == 0
            || failures < outlier.failures
            || self.availability(now_ms) != Availability::Available
        {
            return None;
        }
        self.failures.store(0, Ordering::Relaxed);
        let ejections = u64::from(self.ejections.fetch_add(1, Ordering::Relaxed).min(9)) + 1;
        let out_ms = u64::try_from(outlier.ejection.as_millis())
            .unwrap_or(u64::MAX)
            .saturating_mul(ejections);
        self.ejected_at.store(now_ms, Ordering::Relaxed);
        self.ejected_until
            .store(now_ms.saturating_add(out_ms), Ordering::Relaxed);
        self.return_pending.store(true, Ordering::Relaxed);
        Some(out_ms)
    }

    /// Returns the seconds since the address was ejected, once, after its ejection has ended.
    pub(super) fn take_return(&self, now_ms: u64) -> Option<u64> {
        let has_ended = self.ejected_until.load(Ordering::Relaxed) <= now_ms;
        let is_new = has_ended && self.return_pending.swap(false, Ordering::Relaxed);
        let since = self.ejected_at.load(Ordering::Relaxed);
        is_new.then(|| now_ms.saturating_sub(since) / 1000)
    }

    /// Returns the milliseconds for which the address is still ejected, and the cause.
    pub(crate) fn ejection(&self, now_ms: u64) -> Option<(u64, &'static str)> {
        let until = self.ejected_until.load(Ordering::Relaxed);
        let remaining = until.checked_sub(now_ms).filter(|left| *left > 0)?;
        Some((remaining, *self.ejection_cause.lock()))
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn status(&self, now_ms: u64) -> EndpointStatus {
        let healthy = self.healthy.load(Ordering::Relaxed);
        EndpointStatus {
            address: self.address.to_string(),
            healthy,
            health_error: (!healthy).then(|| self.health_error.lock().clone()),
            ejected: self.ejected_until.load(Ordering::Relaxed) > now_ms,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            latency_us: self.latency_us.load(Ordering::Relaxed),
        }
    }
}

impl InFlightPermit {
    /// Acquires a slot in flight, unless the address has `limit` requests.
    pub(super) fn try_acquire(endpoint: &Arc<Endpoint>, limit: usize) -> Option<Self> {
        if endpoint.in_flight.fetch_add(1, Ordering::Relaxed) >= limit {
            endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let endpoint = Arc::clone(endpoint);
        Some(Self {
            endpoint,
            share: Mutex::default(),
            is_released: AtomicBool::new(false),
        })
    }

    /// Attaches the share of the client, which is released together with the permit.
    pub(super) fn with_share(self, share: Option<ClientShare>) -> Self {
        *self.share.lock() = share;
        self
    }

    pub(super) fn take_share(&self) -> Option<ClientShare> {
        self.share.lock().take()
    }

    /// Releases the slot: the upstream has completed its response, even if the client is still
    /// reading it.
    pub(crate) fn release(&self) {
        if !self.is_released.swap(true, Ordering::Relaxed) {
            self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
            drop(self.take_share());
        }
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.release();
    }
}
