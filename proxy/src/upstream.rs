//! Upstreams: pools of addresses, load balancing and health. Connections are
//! [`postern_http::upstream`]'s.
//!
//! - **Enters:** an upstream of the configuration; a hash of the client per request.
//! - **Leaves:** an [`InFlightPermit`] for an address, with the peer and the idle connections of it.
//! - **May depend on:** [`crate::config`], [`crate::certificates`] for PEM files, and
//!   [`crate::telemetry`] for metrics.

mod discovery;
mod endpoint;
mod health;
mod name_resolver;
mod observation;
mod peer;
mod retry_budget;
mod selection;
mod tls_material;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use arc_swap::ArcSwap;
use pingora_load_balancing::selection::RoundRobin;
use postern_core::exit::Exit;
use postern_core::log_outage_state;
use postern_http::client_shares::{ClientShares, client_limit};
use postern_http::upstream::{Http2Pool, IdlePool};
use prometheus::{Histogram, IntCounter, IntCounterVec};
use tokio_util::sync::CancellationToken;

use crate::config::UpstreamConfig;
use crate::telemetry::failure_cause::FailureCause;
use crate::telemetry::metrics::GatewayMetrics;
use discovery::Discovery;
pub(crate) use discovery::{NameResolution, NameStatus};
pub(crate) use endpoint::{Endpoint, EndpointStatus, InFlightPermit};
pub(crate) use name_resolver::NameResolver;
use peer::PeerBuilder;
use retry_budget::RetryBudget;
use selection::{Candidates, count_excluded, rotation};

/// An upstream with its addresses. Kept across reloads that do not change it.
pub(crate) struct UpstreamPool {
    pub(crate) config: UpstreamConfig,
    discovery: Discovery,
    endpoints: ArcSwap<Vec<Arc<Endpoint>>>,
    rotation: ArcSwap<RoundRobin>,
    /// Number of choices among the addresses.
    turn: AtomicU64,
    retry_budget: RetryBudget,
    client_shares: Arc<ClientShares>,
    created_at: Instant,
    peers: Arc<PeerBuilder>,
    /// The HTTP/2 connections, if the upstream uses them.
    pub(crate) http2: Option<Http2Pool>,
    pub(crate) latency: Histogram,
    /// Attempts to which an address was assigned.
    pub(crate) attempts: IntCounter,
    failures: IntCounterVec,
    retries: IntCounter,
    retries_denied: IntCounter,
    ejections: IntCounter,
    /// Whether the last observation found the pool in panic mode.
    is_in_panic: AtomicBool,
}

/// The reason for which no address is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoEndpoint {
    /// No name has been resolved yet, or all addresses are excluded.
    #[error("no name is resolved, or every address is unhealthy or ejected")]
    Unavailable,
    #[error("every address has as many requests in flight as in_flight allows")]
    AtCapacity,
    #[error("half of in_flight is taken, and the client has an eighth of it")]
    ClientShareUsed,
}

impl UpstreamPool {
    /// Creates a pool. IP addresses are available at once; names are resolved in the background.
    ///
    /// # Errors
    /// Status 64 if a TLS file cannot be read.
    pub(crate) fn new(
        config: UpstreamConfig,
        resolver: &Arc<NameResolver>,
        metrics: &GatewayMetrics,
    ) -> Result<Self, Exit> {
        let label = [config.name.as_str()];
        let peers = Arc::new(PeerBuilder::new(&config)?);
        let discovery = Discovery::new(
            &config.name,
            &config.addresses,
            Arc::clone(resolver),
            Arc::clone(&peers),
        );
        let endpoints = discovery.endpoints(&[]);
        Ok(Self {
            rotation: ArcSwap::from_pointee(rotation(&endpoints)),
            endpoints: ArcSwap::from_pointee(endpoints),
            discovery,
            turn: AtomicU64::new(0),
            retry_budget: RetryBudget::new(config.retry_budget),
            client_shares: Arc::default(),
            created_at: Instant::now(),
            peers,
            http2: config
                .http2
                .then(|| Http2Pool::new(config.uses_system_roots())),
            latency: metrics.upstream.latency.with_label_values(&label),
            attempts: metrics.upstream.attempts.with_label_values(&label),
            failures: metrics.upstream.failures.clone(),
            retries: metrics.upstream.retries.with_label_values(&label),
            retries_denied: metrics.upstream.retries_denied.with_label_values(&label),
            ejections: metrics.upstream.ejections.with_label_values(&label),
            is_in_panic: AtomicBool::new(false),
            config,
        })
    }

    /// Returns whether a TLS file was modified since it was read.
    pub(crate) fn has_changed_files(&self) -> bool {
        self.peers.has_changed_files()
    }

    /// Returns whether the pool can be used for this configuration, with its state.
    pub(crate) fn is_reusable(&self, config: &UpstreamConfig) -> bool {
        self.config == *config && !self.has_changed_files()
    }

    /// Looks expired names up and keeps the addresses up to date until `stop`.
    pub(crate) async fn run_discovery(self: Arc<Self>, stop: CancellationToken) {
        while self.discovery.has_names() {
            let update = async {
                self.discovery.look_up_due(Instant::now()).await;
                self.update_endpoints();
                tokio::time::sleep(self.discovery.wait(Instant::now())).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = update => {}
            }
        }
    }

    /// Takes the last answers over. The state of unchanged addresses is kept.
    fn update_endpoints(&self) {
        let before = self.endpoints.load_full();
        let after = self.discovery.endpoints(&before);
        let is_removed = |one: &&Arc<Endpoint>| !after.iter().any(|it| Arc::ptr_eq(it, one));
        for endpoint in before.iter().filter(is_removed) {
            self.drain(endpoint);
        }
        self.rotation.store(Arc::new(rotation(&after)));
        self.endpoints.store(Arc::new(after));
    }

    /// Drains the addresses that a reload has removed: those that `successor`, the pool with the same
    /// name, does not have. While it has none, because its names are being looked up, all are kept.
    pub(crate) fn drain_removed(&self, successor: Option<&Self>) {
        let current = successor.map(Self::endpoints).unwrap_or_default();
        if successor.is_some() && current.is_empty() {
            return;
        }
        let is_removed = |endpoint: &&Arc<Endpoint>| {
            let mut current = current.iter();
            current.all(|one| one.address != endpoint.address)
        };
        for endpoint in self.endpoints().iter().filter(is_removed) {
            self.drain(endpoint);
        }
    }

    /// Drains a removed address: its idle connections are closed. Its requests in flight are
    /// completed, within their own time limits.
    fn drain(&self, endpoint: &Endpoint) {
        endpoint.idle.close();
        let (upstream, address) = (&self.config.name, &endpoint.address);
        let in_flight = endpoint.in_flight();
        tracing::info!(%upstream, %address, in_flight, "upstream address removed, draining");
    }

    pub(crate) fn names(&self) -> Vec<NameStatus> {
        self.discovery.names(Instant::now())
    }

    pub(crate) fn endpoints(&self) -> Arc<Vec<Arc<Endpoint>>> {
        self.endpoints.load_full()
    }

    pub(crate) fn available_retries(&self) -> i64 {
        self.retry_budget.available()
    }

    pub(crate) fn evict_idle_connections(&self) {
        for endpoint in self.endpoints().iter() {
            endpoint.idle.evict(self.config.idle_timeout);
        }
        if let Some(http2) = &self.http2 {
            http2.evict(self.config.idle_timeout);
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

    /// Moves a request to the address of `idle`, to which its client has a connection of its own, if
    /// it can take another.
    pub(crate) fn move_to(&self, idle: &Arc<IdlePool>, permit: InFlightPermit) -> InFlightPermit {
        let endpoints = self.endpoints();
        let mut same = endpoints.iter().filter(|one| Arc::ptr_eq(&one.idle, idle));
        match same.find_map(|one| InFlightPermit::try_acquire(one, self.config.in_flight)) {
            Some(moved) => moved.with_share(permit.take_share()),
            None => permit,
        }
    }

    fn client_limit(&self, endpoints: &[Arc<Endpoint>], now_ms: u64) -> usize {
        let taken = endpoints.iter().map(|endpoint| endpoint.in_flight()).sum();
        let available = endpoints.len() - count_excluded(endpoints, now_ms);
        let all = self.config.in_flight.saturating_mul(available.max(1));
        client_limit(taken, all)
    }

    /// Chooses an address, other than `avoid` if possible. `client` is that of a request which is
    /// subject to a share: once half of the requests in flight are in use, it may have an eighth of
    /// them.
    pub(crate) fn pick(
        &self,
        client: Option<u64>,
        avoid: Option<&Endpoint>,
        now: Instant,
    ) -> Result<InFlightPermit, NoEndpoint> {
        let (endpoints, now_ms) = (self.endpoints.load(), self.ms_at(now));
        let share = match client {
            Some(client) => {
                let limit = self.client_limit(&endpoints, now_ms);
                let share = self.client_shares.try_add(client, 1, limit);
                Some(share.ok_or(NoEndpoint::ClientShareUsed)?)
            }
            None => None,
        };
        let panic_percent = self.config.outlier.panic_percent;
        let candidates = Candidates::new(&endpoints, avoid, panic_percent, now_ms)
            .ok_or(NoEndpoint::Unavailable)?;
        let (algorithm, limit) = (self.config.load_balancing, self.config.in_flight);
        let permit = candidates.acquire(algorithm, &self.rotation.load(), &self.turn, limit);
        let permit = permit.ok_or(NoEndpoint::AtCapacity)?;
        Ok(permit.with_share(share))
    }

    /// Records a response head, received `micros` after the choice of its address, and whether it
    /// counts as a failure of the address.
    pub(crate) fn note_response(
        &self,
        endpoint: &Endpoint,
        is_failure: bool,
        micros: u64,
        now: Instant,
    ) {
        self.retry_budget.deposit();
        if is_failure {
            self.note_failure(endpoint, FailureCause::UpstreamStatus, now);
        } else {
            endpoint.note_success(micros, self.ms_at(now));
        }
    }

    /// Records a failed attempt at the upstream. Ejects the address after the configured number of
    /// consecutive failures.
    pub(crate) fn note_failure(&self, endpoint: &Endpoint, cause: FailureCause, now: Instant) {
        self.count_failure(cause);
        let outlier = &self.config.outlier;
        if let Some(ejected_ms) = endpoint.note_failure(outlier, self.ms_at(now)) {
            self.ejections.inc();
            *endpoint.ejection_cause.lock() = cause.as_str();
            let (upstream, address) = (&self.config.name, &endpoint.address);
            let (cause, failures, ejected_s) =
                (cause.as_str(), outlier.failures, ejected_ms / 1000);
            log_outage_state!(format!("upstream {upstream}"), %upstream, %address, cause, failures, ejected_s, "upstream address ejected");
        }
    }

    /// Counts a failed attempt, or a request for which there is no address.
    pub(crate) fn count_failure(&self, cause: FailureCause) {
        let labels = [self.config.name.as_str(), cause.as_str()];
        self.failures.with_label_values(&labels).inc();
    }

    /// Returns whether another attempt may be made for a client after `attempts`, of which `limit` may
    /// be retries. A retry of a request that was not sent does not use the budget, because it adds no
    /// load to the upstream.
    pub(crate) fn may_retry(
        &self,
        client: Option<u64>,
        attempts: u32,
        limit: u32,
        was_sent: bool,
    ) -> bool {
        if attempts > limit {
            return false;
        }
        let may = !was_sent || self.retry_budget.try_withdraw(client);
        let counter = if may {
            &self.retries
        } else {
            &self.retries_denied
        };
        counter.inc();
        may
    }
}

impl fmt::Debug for UpstreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamPool")
            .field("config", &self.config)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
