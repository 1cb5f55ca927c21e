//! The addresses of an upstream and their load, health and ejection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::upstreams::peer::HttpPeer;
use postern_core::log_limit::LogLimit;
use postern_http::client_shares::ClientShare;
use postern_http::upstream::{IdlePool, PinnedCertificates};
use serde::Serialize;

use crate::config::OutlierDetection;
use crate::upstream::drain::{Abortable, DrainList};
use crate::upstream::operator_control::OperatorControl;
use crate::upstream::peer::PeerBuilder;

/// An address of an upstream and its state.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The address as text, for the access log.
    pub(crate) address_text: Box<str>,
    /// Position of its entry in the configuration.
    pub(crate) config_index: usize,
    /// Addresses with a greater number are used only if none with a lesser one is available.
    priority: AtomicU32,
    /// Weight relative to the other addresses; 0 for none of the requests.
    pub(super) weight: AtomicU32,
    /// What an operator has changed.
    pub(super) operator: OperatorControl,
    /// The Pingora peer.
    pub(crate) peer: HttpPeer,
    pub(crate) pins: PinnedCertificates,
    in_flight: AtomicUsize,
    /// Microseconds to the response head: rises at once, decays slowly.
    latency_us: AtomicU64,
    pub(super) failures: AtomicU32,
    /// Consecutive ejections.
    pub(super) ejections: AtomicU32,
    /// Times in milliseconds of the pool's clock.
    pub(super) ejected_at: AtomicU64,
    pub(super) ejected_until: AtomicU64,
    /// Whether the end of the last ejection has not been logged.
    pub(super) return_pending: AtomicBool,
    /// Consecutive successes of requests that started during the ejection.
    successes_while_ejected: AtomicU32,
    /// Result of the active health checks.
    pub(crate) healthy: AtomicBool,
    /// The error of the last failed health check.
    pub(super) health_error: Mutex<String>,
    /// Beginning and end of the slow start, in milliseconds of the pool's clock.
    ramp_from: AtomicU64,
    ramp_until: AtomicU64,
    /// Requests that were ended before the end of their responses.
    abandoned: AtomicU64,
    /// Idle HTTP/1.1 connections.
    pub(crate) idle: Arc<IdlePool>,
    /// Requests in flight, which are aborted some time after the address was removed.
    drain_list: DrainList,
    /// Rate limit of warnings about failed attempts.
    pub(crate) warnings: LogLimit,
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
    /// The part of its share that the address gets during its slow start, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slow_start_percent: Option<u64>,
}

/// The availability of an address, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Availability {
    /// Neither ejected nor unhealthy.
    Available,
    /// Ejected by outlier detection.
    Ejected,
    /// Failing its health checks.
    Unhealthy,
}

/// A request in flight to an address, until it is released or dropped.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The client share of the request.
    share: Mutex<Option<ClientShare>>,
    /// The key in the drain list plus one; 0 if the request is not in it.
    drain_key: AtomicUsize,
    is_released: AtomicBool,
}

/// The part of its share that an address gets at the beginning of its slow start, as in Envoy.
const MIN_RAMP_PERMILLE: u64 = 100;

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
            priority: AtomicU32::new(0),
            weight: AtomicU32::new(1),
            operator: OperatorControl::default(),
            in_flight: AtomicUsize::new(0),
            latency_us: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_at: AtomicU64::new(0),
            ejected_until: AtomicU64::new(0),
            return_pending: AtomicBool::new(false),
            successes_while_ejected: AtomicU32::new(0),
            healthy: AtomicBool::new(true),
            health_error: Mutex::default(),
            ramp_from: AtomicU64::new(0),
            ramp_until: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            idle: Arc::default(),
            drain_list: DrainList::default(),
            warnings: LogLimit::default(),
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

    /// Sets the priority and the weight, which SRV records may change.
    pub(super) fn set_share(&self, priority: u16, weight: u32) {
        self.priority.store(priority.into(), Ordering::Relaxed);
        let weight = self.operator.effective_weight(weight);
        self.weight.store(weight, Ordering::Relaxed);
    }

    pub(super) fn priority(&self) -> u32 {
        self.priority.load(Ordering::Relaxed)
    }

    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
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

    /// Starts a slow start of this duration.
    pub(super) fn start_ramp(&self, now_ms: u64, duration: Duration) {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.ramp_from.store(now_ms, Ordering::Relaxed);
        let until = now_ms.saturating_add(duration_ms);
        self.ramp_until.store(until, Ordering::Relaxed);
    }

    /// Returns the part of its share that the address gets, in thousandths: the elapsed part of the
    /// slow start, and at least a tenth.
    pub(super) fn ramp_permille(&self, now_ms: u64) -> u64 {
        let until = self.ramp_until.load(Ordering::Relaxed);
        if now_ms >= until {
            return 1000;
        }
        let from = self.ramp_from.load(Ordering::Relaxed);
        let elapsed = now_ms.saturating_sub(from).saturating_mul(1000);
        (elapsed / (until - from).max(1)).max(MIN_RAMP_PERMILLE)
    }

    /// Returns the load: requests in flight times latency, divided by weight.
    pub(super) fn load(&self) -> u64 {
        let queue = self.in_flight.load(Ordering::Relaxed) as u64 + 1;
        let latency = self.latency_us.load(Ordering::Relaxed).max(100);
        queue.saturating_mul(latency).saturating_mul(1000) / u64::from(self.weight().max(1))
    }

    /// Records a success. An ejected address that is still used becomes available after as many
    /// consecutive successes as failures had ejected it. Responses to requests from before the
    /// ejection do not count.
    pub(super) fn note_success(&self, micros: u64, outlier: &OutlierDetection, now_ms: u64) {
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
        if self.ejections.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.ejected_until.load(Ordering::Relaxed) > now_ms {
            let began = now_ms.saturating_sub(micros.div_ceil(1000));
            if began <= self.ejected_at.load(Ordering::Relaxed)
                || self.successes_while_ejected.fetch_add(1, Ordering::Relaxed) + 1
                    < outlier.failures
            {
                return;
            }
            self.ejected_until.store(now_ms, Ordering::Relaxed);
        }
        self.ejections.store(0, Ordering::Relaxed);
    }

    /// Records a failure. Returns the milliseconds for which the address is ejected, if it now is.
    pub(super) fn note_failure(&self, outlier: &OutlierDetection, now_ms: u64) -> Option<u64> {
        self.successes_while_ejected.store(0, Ordering::Relaxed);
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

    /// Aborts the requests in flight of a removed address. Returns their number.
    pub(super) fn abort_requests(&self) -> usize {
        self.drain_list.abort_all()
    }

    /// Returns the number of requests in flight.
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
            slow_start_percent: Some(self.ramp_permille(now_ms) / 10)
                .filter(|percent| *percent < 100),
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
            drain_key: AtomicUsize::new(0),
            is_released: AtomicBool::new(false),
        })
    }

    /// Attaches the share of the client, which is released together with the permit.
    pub(super) fn attach_client_share(&self, share: ClientShare) {
        *self.share.lock() = Some(share);
    }

    /// Takes the share of the client over from another permit.
    pub(super) fn with_share_of(self, other: &Self) -> Self {
        *self.share.lock() = other.share.lock().take();
        self
    }

    /// Makes the request end when its address was removed and the time to drain is over. `waker` wakes
    /// its task. Replaces what an earlier call has named.
    pub(crate) fn abort_when_drained(&self, request: Arc<dyn Abortable>, waker: Waker) {
        let drain_list = &self.endpoint.drain_list;
        let key = drain_list.insert(request, waker).map_or(0, |key| key + 1);
        let replaced = self.drain_key.swap(key, Ordering::Relaxed);
        if let Some(replaced) = replaced.checked_sub(1) {
            drain_list.remove(replaced);
        }
    }

    /// Releases the slot: the upstream has completed its response, even if the client is still
    /// reading it.
    pub(crate) fn release(&self) {
        if !self.is_released.swap(true, Ordering::Relaxed) {
            self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.share.lock().take();
            if let Some(key) = self.drain_key.load(Ordering::Relaxed).checked_sub(1) {
                self.endpoint.drain_list.remove(key);
            }
        }
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.release();
    }
}
