//! Upstreams: pools of addresses, load balancing, health and connections.
//!
//! - **Enters:** an upstream of the configuration; a client hash per request.
//! - **Leaves:** an [`InFlightPermit`] for an address, and connections to it; parsed responses.
//! - **May depend on:** [`crate::config`], [`crate::message`] for framing, and [`crate::telemetry`]
//!   for metrics.

pub(crate) mod checked_connection;
mod client_shares;
mod endpoint;
mod health;
mod http1_connection;
mod log_throttle;
mod resolve;
mod response;
mod retry_budget;
mod tls_material;
pub(crate) mod tunnel;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pingora_core::protocols::{ALPN, TcpKeepalive};
use pingora_core::upstreams::peer::{HttpPeer, PeerOptions};
use postern_common::exit::Exit;
use prometheus::{Histogram, IntCounter};

use crate::config::{LoadBalancing, UpstreamConfig};
use crate::telemetry::metrics::GatewayMetrics;
use client_shares::ClientShares;
use endpoint::Availability;
pub(crate) use endpoint::{Endpoint, EndpointStatus, InFlightPermit};
pub(crate) use http1_connection::UpstreamConnection;
use log_throttle::LogThrottle;
pub(crate) use response::ResponseBody;
use retry_budget::RetryBudget;
pub(crate) use tls_material::NO_ROOTS;
use tls_material::TlsMaterial;

/// Idle time after which TCP keep-alive probes are sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Interval between keep-alive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered keep-alive probes after which a connection is closed.
const KEEPALIVE_PROBES: usize = 3;

/// Maximum concurrent streams on one HTTP/2 connection to an upstream.
const MAX_UPSTREAM_STREAMS: u16 = 64;

/// Flow-control window of an HTTP/2 stream from an upstream. The connection window is the sum over
/// all streams, so that slow readers do not block others. It also bounds the frame size: Pingora
/// allows frames of 64 KiB and buffers ten frames per response.
const UPSTREAM_STREAM_WINDOW_BYTES: u32 = 16 << 10;

/// Fraction of the requests in flight that one client may have once half of them are in use.
const CLIENT_SHARE_DIVISOR: usize = 8;

/// An upstream with its addresses. Kept across reloads that do not change it.
#[derive(Debug)]
pub(crate) struct UpstreamPool {
    pub(crate) config: UpstreamConfig,
    endpoints: ArcSwap<Vec<Arc<Endpoint>>>,
    turn: AtomicU64,
    retry_budget: RetryBudget,
    client_shares: Arc<ClientShares>,
    created_at: Instant,
    tls: Option<TlsMaterial>,
    pub(crate) latency: Histogram,
    retries: IntCounter,
    retries_denied: IntCounter,
    ejections: IntCounter,
    /// Rate limit of warnings that no address is available.
    pub(crate) warnings: LogThrottle,
}

/// The reason for which no address is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoEndpoint {
    /// No name has been resolved yet, or all addresses are excluded.
    Unavailable,
    /// All addresses have the maximum number of requests in flight.
    AtCapacity,
    /// At least half of the requests in flight are in use, and the client has used its share.
    ClientShareUsed,
}

impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "no name is resolved, or every address is unhealthy or ejected",
            Self::AtCapacity => "every address has as many requests in flight as in_flight allows",
            Self::ClientShareUsed => {
                "half of in_flight is taken, and the client has an eighth of it"
            }
        })
    }
}

// === impl UpstreamPool ===

impl UpstreamPool {
    /// Creates a pool. IP addresses are available at once; names are resolved in the background.
    ///
    /// # Errors
    /// Status 64 if a TLS file cannot be read.
    pub(crate) fn new(config: UpstreamConfig, metrics: &GatewayMetrics) -> Result<Self, Exit> {
        let label = [config.name.as_str()];
        let pool = Self {
            endpoints: ArcSwap::default(),
            turn: AtomicU64::new(0),
            retry_budget: RetryBudget::new(config.retry_budget),
            client_shares: Arc::default(),
            created_at: Instant::now(),
            tls: config.tls.as_ref().map(TlsMaterial::load).transpose()?,
            latency: metrics.upstream.latency.with_label_values(&label),
            retries: metrics.upstream.retries.with_label_values(&label),
            retries_denied: metrics.upstream.retries_denied.with_label_values(&label),
            ejections: metrics.upstream.ejections.with_label_values(&label),
            warnings: LogThrottle::default(),
            config,
        };
        let literal = |at: usize| {
            let address = &pool.config.addresses[at];
            address
                .host
                .parse()
                .ok()
                .map(|ip| (at, SocketAddr::new(ip, address.port)))
        };
        pool.set_addresses(
            (0..pool.config.addresses.len())
                .filter_map(literal)
                .collect(),
        );
        Ok(pool)
    }

    /// Returns whether a TLS file was modified since it was read. Files that could not be read are
    /// tried again.
    pub(crate) fn has_changed_files(&self) -> bool {
        let tls = self.tls.as_ref().zip(self.config.tls.as_ref());
        tls.is_some_and(|(material, config)| material.has_changed(config))
    }

    /// Replaces the addresses; each has the position of its entry in the configuration. The state
    /// of unchanged addresses is kept.
    pub(crate) fn set_addresses(&self, mut addresses: Vec<(usize, SocketAddr)>) {
        addresses.sort_unstable();
        addresses.dedup_by_key(|(_, address)| *address);
        let old = self.endpoints.load();
        let endpoints = addresses.into_iter().map(|(at, address)| {
            let known = old
                .iter()
                .find(|endpoint| endpoint.address == address && endpoint.config_index == at);
            known
                .cloned()
                .unwrap_or_else(|| Arc::new(Endpoint::new(address, at, self.peer(at, address))))
        });
        self.endpoints.store(Arc::new(endpoints.collect()));
    }

    /// Returns the current addresses.
    pub(crate) fn endpoints(&self) -> Arc<Vec<Arc<Endpoint>>> {
        self.endpoints.load_full()
    }

    /// Returns whether the upstream is spoken to in plain HTTP/1.1.
    pub(crate) fn is_plain_http1(&self) -> bool {
        self.config.tls.is_none() && !self.config.http2
    }

    /// Closes expired idle connections.
    pub(crate) fn evict_idle_connections(&self) {
        for endpoint in &*self.endpoints() {
            endpoint.idle_plain.evict(self.config.idle_timeout);
            endpoint.idle_tls.evict(self.config.idle_timeout);
        }
    }

    /// Returns milliseconds of this pool's clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    pub(crate) fn ms_at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.created_at).as_millis())
            .unwrap_or(u64::MAX)
    }

    /// Chooses an address as [`Self::pick`] does, for a client that is subject to a share: once
    /// half of the requests in flight are in use, it may have one [`CLIENT_SHARE_DIVISOR`]th of
    /// them.
    pub(crate) fn pick_for_client(
        &self,
        client: u64,
        avoid: Option<&Endpoint>,
        now: Instant,
    ) -> Result<InFlightPermit, NoEndpoint> {
        let share = self
            .client_shares
            .try_add(client, self.client_limit(now))
            .ok_or(NoEndpoint::ClientShareUsed)?;
        let permit = self.pick(client, avoid, now)?;
        permit.attach_client_share(share);
        Ok(permit)
    }

    /// Returns the maximum requests in flight of one client.
    fn client_limit(&self, now: Instant) -> usize {
        let (endpoints, now) = (self.endpoints.load(), self.ms_at(now));
        let weighing = endpoints
            .iter()
            .filter(|endpoint| endpoint.weight_in(&self.config) > 0);
        let (taken, available) = weighing.fold((0, 0), |(taken, available), endpoint| {
            let is_available = endpoint.availability(now) == Availability::Available;
            (
                taken + endpoint.in_flight(),
                available + usize::from(is_available),
            )
        });
        let all = self.config.in_flight.saturating_mul(available.max(1));
        if taken < all / 2 {
            usize::MAX
        } else {
            (all / CLIENT_SHARE_DIVISOR).max(1)
        }
    }

    /// Chooses an address, other than `avoid` if possible. `client` is a hash of the client
    /// address.
    ///
    /// Available addresses are preferred to ejected ones, and those to unhealthy ones. If more than
    /// `panic_percent` of the addresses are excluded, a first attempt may use any (panic mode), so
    /// that the remaining ones are not overloaded; a retry prefers available addresses.
    pub(crate) fn pick(
        &self,
        client: u64,
        avoid: Option<&Endpoint>,
        now: Instant,
    ) -> Result<InFlightPermit, NoEndpoint> {
        let endpoints = self.endpoints.load();
        let now = self.ms_at(now);
        let weighs = |endpoint: &Endpoint| endpoint.weight_in(&self.config) > 0;
        let (total, out) = endpoints.iter().filter(|endpoint| weighs(endpoint)).fold(
            (0, 0),
            |(total, out), endpoint| {
                (
                    total + 1,
                    out + usize::from(endpoint.availability(now) != Availability::Available),
                )
            },
        );
        let panic =
            avoid.is_none() && out * 100 > total * self.config.outlier.panic_percent as usize;
        let rank = |endpoint: &Endpoint| match panic {
            true => Availability::Available,
            false => endpoint.availability(now),
        };
        let candidate = |endpoint: &Endpoint| {
            weighs(endpoint)
                && !avoid.is_some_and(|avoid| total > 1 && avoid.address == endpoint.address)
        };
        let candidates = || endpoints.iter().filter(|endpoint| candidate(endpoint));
        let best = candidates()
            .map(|endpoint| rank(endpoint))
            .min()
            .ok_or(NoEndpoint::Unavailable)?;
        let usable = |endpoint: &Endpoint| candidate(endpoint) && rank(endpoint) == best;
        let chosen = self.balance(&endpoints, usable, client);
        if let Some(permit) =
            chosen.and_then(|chosen| InFlightPermit::try_acquire(chosen, self.config.in_flight))
        {
            return Ok(permit);
        }
        // The address is at capacity; or a concurrent request has changed its state, and any
        // address is acceptable.
        let has_changed = chosen.is_none();
        candidates()
            .filter(|endpoint| has_changed || usable(endpoint))
            .find_map(|endpoint| InFlightPermit::try_acquire(endpoint, self.config.in_flight))
            .ok_or(NoEndpoint::AtCapacity)
    }

    /// Applies the configured load balancing algorithm to the usable addresses.
    fn balance<'e>(
        &self,
        endpoints: &'e [Arc<Endpoint>],
        usable: impl Fn(&Endpoint) -> bool,
        client: u64,
    ) -> Option<&'e Arc<Endpoint>> {
        let count = endpoints.iter().filter(|endpoint| usable(endpoint)).count();
        let nth = |at: u64| {
            let at = usize::try_from(at % count.max(1) as u64).unwrap_or(0);
            endpoints.iter().filter(|endpoint| usable(endpoint)).nth(at)
        };
        match self.config.balance {
            LoadBalancing::RoundRobin => self.weighted(
                endpoints,
                &usable,
                self.turn.fetch_add(1, Ordering::Relaxed),
            ),
            LoadBalancing::ClientHash => self.rendezvous(endpoints, &usable, client),
            LoadBalancing::LeastLoaded if count == 1 => nth(0),
            LoadBalancing::LeastLoaded => {
                let random = self.random();
                let (one, other) = (nth(random), nth(random.rotate_left(32)));
                let other = if one.map(Arc::as_ptr) == other.map(Arc::as_ptr) {
                    nth(random + 1)
                } else {
                    other
                };
                one.into_iter()
                    .chain(other)
                    .min_by_key(|endpoint| endpoint.load(&self.config))
            }
        }
    }

    /// Returns the address at `turn` of a sequence in which each occurs as often as its weight.
    fn weighted<'e>(
        &self,
        endpoints: &'e [Arc<Endpoint>],
        usable: impl Fn(&Endpoint) -> bool,
        turn: u64,
    ) -> Option<&'e Arc<Endpoint>> {
        let weight = |endpoint: &Endpoint| u64::from(endpoint.weight_in(&self.config));
        let usable: Vec<&Arc<Endpoint>> = endpoints
            .iter()
            .filter(|endpoint| usable(endpoint))
            .collect();
        let total: u64 = usable.iter().map(|endpoint| weight(endpoint)).sum();
        let mut left = turn % total.max(1);
        usable
            .into_iter()
            .find(|endpoint| match left.checked_sub(weight(endpoint)) {
                Some(rest) => {
                    left = rest;
                    false
                }
                None => true,
            })
    }

    /// Returns the address with the highest weighted score for this client (rendezvous hashing):
    /// when an address is removed, only its own clients move.
    fn rendezvous<'e>(
        &self,
        endpoints: &'e [Arc<Endpoint>],
        usable: impl Fn(&Endpoint) -> bool,
        client: u64,
    ) -> Option<&'e Arc<Endpoint>> {
        let score = |endpoint: &Endpoint| {
            let unit = ((mix(client ^ endpoint.key) >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
            f64::from(endpoint.weight_in(&self.config)) / -unit.ln().min(-f64::MIN_POSITIVE)
        };
        endpoints
            .iter()
            .filter(|endpoint| usable(endpoint))
            .max_by(|one, other| score(one).total_cmp(&score(other)))
    }

    /// Returns a pseudo-random number, sufficient for load balancing.
    fn random(&self) -> u64 {
        mix(self
            .turn
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
            >> 1
    }

    /// Records a response head, received `micros` after the choice of its address.
    pub(crate) fn note_response(
        &self,
        endpoint: &Endpoint,
        status: u16,
        micros: u64,
        now: Instant,
    ) {
        self.retry_budget.deposit();
        if (502..=504).contains(&status) {
            self.note_failure(endpoint, now);
        } else {
            endpoint.note_success(micros, &self.config.outlier, self.ms_at(now));
        }
    }

    /// Records a failed attempt at the upstream.
    pub(crate) fn note_failure(&self, endpoint: &Endpoint, now: Instant) {
        if endpoint.note_failure(&self.config.outlier, self.ms_at(now)) {
            self.ejections.inc();
            tracing::warn!(upstream = %self.config.name, address = %endpoint.address, "upstream address ejected");
        }
    }

    /// Returns whether another attempt may be made after `attempts`, of which `limit` may be
    /// retries. A retry of a request that was not sent does not use the budget, because it adds no
    /// load to the upstream.
    pub(crate) fn may_retry(&self, attempts: u32, limit: u32, was_sent: bool) -> bool {
        if attempts > limit {
            return false;
        }
        let may = !was_sent || self.retry_budget.try_withdraw();
        let counter = if may {
            &self.retries
        } else {
            &self.retries_denied
        };
        counter.inc();
        may
    }

    /// Builds the Pingora peer of an address. All timeouts are set, because Pingora's defaults are
    /// unlimited.
    fn peer(&self, at: usize, address: SocketAddr) -> HttpPeer {
        let config = &self.config;
        let name = match &config.tls {
            None => String::new(),
            Some(tls) => tls
                .name
                .clone()
                .unwrap_or_else(|| config.addresses[at].host.clone()),
        };
        let mut peer = HttpPeer::new(address, config.tls.is_some(), name);
        let mut options = PeerOptions::new();
        options.tcp_keepalive = Some(TcpKeepalive {
            idle: KEEPALIVE_IDLE,
            interval: KEEPALIVE_INTERVAL,
            count: KEEPALIVE_PROBES,
            // Pingora waits for a response even after a body write has timed out. The kernel closes
            // the connection, which ends the wait.
            #[cfg(target_os = "linux")]
            user_timeout: config.write_timeout,
        });
        options.connection_timeout = Some(config.connect_timeout);
        options.total_connection_timeout = Some(config.connect_timeout);
        options.read_timeout = Some(config.read_timeout);
        options.write_timeout = Some(config.write_timeout);
        options.idle_timeout = Some(config.idle_timeout);
        // A negotiated HTTP/1.1 response would bypass the response check of [`checked_connection`].
        options.alpn = if config.http2 { ALPN::H2 } else { ALPN::H1 };
        options.max_h2_streams = if config.http2 {
            usize::from(MAX_UPSTREAM_STREAMS)
        } else {
            1
        };
        options.h2_stream_window_size = Some(UPSTREAM_STREAM_WINDOW_BYTES);
        options.h2_connection_window_size =
            Some(UPSTREAM_STREAM_WINDOW_BYTES * u32::from(MAX_UPSTREAM_STREAMS));
        if let Some(tls) = &self.tls {
            options.ca.clone_from(&tls.ca);
            peer.client_cert_key.clone_from(&tls.certificate);
        }
        peer.options = options;
        peer
    }
}

/// The finalizer of splitmix64, in which every input bit affects every output bit.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests;
