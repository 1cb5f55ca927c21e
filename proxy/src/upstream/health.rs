//! Active health checks, by those of `pingora-load-balancing`.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use pingora::connectors::TransportConnector;
use pingora::connectors::http::Connector as HttpConnector;
use pingora::{Error, ErrorType, Result};
use pingora_load_balancing::discovery::ServiceDiscovery;
use pingora_load_balancing::health_check::{HealthCheck, HttpHealthCheck, TcpHealthCheck};
use pingora_load_balancing::{Backend, Backends};
use postern_core::log_outage_state;
use postern_http::upstream::{UpstreamConnection, connector_options};
use tokio_util::sync::CancellationToken;

use crate::config::HealthCheckConfig;
use crate::upstream::discovery::inet;
use crate::upstream::{Endpoint, UpstreamPool};

/// The error type of a check that takes longer than `timeout`.
const NO_ANSWER: ErrorType = ErrorType::new("no answer in time");

/// Idle connections of the checks of an entry of `addresses`.
const MAX_IDLE_CONNECTIONS: usize = 16;

type Probe = Box<dyn HealthCheck + Send + Sync>;

/// The current addresses of a pool, as Pingora discovers them.
struct PoolAddresses(Arc<UpstreamPool>);

struct PoolCheck {
    pool: Arc<UpstreamPool>,
    config: HealthCheckConfig,
    /// Pingora's checks, by the entry of `addresses`: the names in certificates depend on it.
    probes: Vec<Probe>,
}

#[async_trait]
impl ServiceDiscovery for PoolAddresses {
    async fn discover(&self) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let endpoints = self.0.endpoints();
        let backends = endpoints.iter().map(Endpoint::backend);
        Ok((backends.collect(), HashMap::new()))
    }
}

#[async_trait]
impl HealthCheck for PoolCheck {
    async fn check(&self, target: &Backend) -> Result<()> {
        let Some(endpoint) = self.pool.endpoint_of(target) else {
            return Ok(());
        };
        let checked = tokio::time::timeout(self.config.timeout, self.probe(&endpoint, target));
        let checked = checked.await.unwrap_or_else(|_| Err(Error::new(NO_ANSWER)));
        if let Err(error) = &checked {
            let (upstream, address) = (&self.pool.config.name, &endpoint.address);
            tracing::debug!(%upstream, %address, %error, "health check failed");
            *endpoint.health_error.lock() = summary(error);
        }
        checked
    }

    fn health_threshold(&self, success: bool) -> usize {
        match success {
            true => self.config.successes as usize,
            false => self.config.failures as usize,
        }
    }
}

impl PoolCheck {
    /// Checks an address. One with `tls.pin` is checked by a connection of its own first, because
    /// Pingora's checks do not show the certificate.
    async fn probe(&self, endpoint: &Endpoint, target: &Backend) -> Result<()> {
        if !endpoint.pins.is_empty() {
            let (peer, pins) = (&endpoint.peer, &endpoint.pins);
            UpstreamConnection::connect(peer, pins, self.config.timeout).await?;
        }
        self.probes[endpoint.config_index].check(target).await
    }
}

/// Returns the type of an error and its root cause. The context in between is omitted, because it may
/// contain bytes of a response.
fn summary(error: &Error) -> String {
    let (kind, cause) = (error.etype(), error.root_cause());
    match (cause.is::<Error>(), kind) {
        (true, ErrorType::CustomCode(name, code)) => format!("{name}: status {code}"),
        (true, kind) => kind.as_str().to_owned(),
        (false, kind) => format!("{}: {cause}", kind.as_str()),
    }
}

impl UpstreamPool {
    /// Checks all addresses periodically, if the configuration contains health checks.
    pub(crate) async fn run_health_checks(self: Arc<Self>, stop: CancellationToken) {
        let Some(health) = &self.config.health else {
            return;
        };
        let backends = self.checked_backends(health);
        loop {
            let pass = async {
                self.check_health(&backends).await;
                tokio::time::sleep(health.interval).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = pass => {}
            }
        }
    }

    pub(super) fn checked_backends(self: &Arc<Self>, health: &HealthCheckConfig) -> Backends {
        let entries = 0..self.config.addresses.len();
        let mut backends = Backends::new(Box::new(PoolAddresses(Arc::clone(self))));
        backends.set_health_check(Box::new(PoolCheck {
            pool: Arc::clone(self),
            config: health.clone(),
            probes: entries
                .map(|at| self.probe(at, health.path.as_deref()))
                .collect(),
        }));
        backends
    }

    /// Checks all addresses once.
    pub(super) async fn check_health(&self, backends: &Backends) {
        let _never_fails = backends.update(|_| ()).await;
        backends.run_health_check(true).await;
        for backend in backends.get_backend().iter() {
            if let Some(endpoint) = self.endpoint_of(backend) {
                self.note_health(&endpoint, backends.ready(backend));
            }
        }
    }

    fn endpoint_of(&self, backend: &Backend) -> Option<Arc<Endpoint>> {
        let is_same = |it: &&Arc<Endpoint>| it.address == backend.addr;
        self.endpoints().iter().find(is_same).cloned()
    }

    /// Returns the check of the addresses of an entry.
    fn probe(&self, at: usize, path: Option<&str>) -> Probe {
        let peer = self.peers.build(at, inet(Ipv4Addr::UNSPECIFIED.into(), 1));
        let options = connector_options(MAX_IDLE_CONNECTIONS, self.config.uses_system_roots());
        match path {
            None => {
                let mut check = TcpHealthCheck::new();
                // With TLS, unless that needs a client certificate, which this check does not present.
                if peer.client_cert_key.is_none() {
                    check.peer_template.sni = peer.sni;
                }
                check.peer_template.options = peer.options;
                check.set_connector(TransportConnector::new(Some(options)));
                check
            }
            Some(path) => {
                let connector = HttpConnector::new(Some(options));
                let host = self.config.own_host();
                let mut check = HttpHealthCheck::new_custom(host, peer.is_tls(), connector);
                check.peer_template = peer;
                // A path of the configuration is valid.
                let _always_valid = check.req.set_raw_path(path.as_bytes());
                check.validator = Some(Box::new(|response| match response.status.as_u16() {
                    200..400 => Ok(()),
                    status => Error::e_explain(ErrorType::CustomCode("unhealthy", status), ""),
                }));
                Box::new(check)
            }
        }
    }

    /// Takes the health of an address over.
    fn note_health(&self, endpoint: &Endpoint, healthy: bool) {
        if endpoint.healthy.swap(healthy, Ordering::Relaxed) == healthy {
            return;
        }
        let (upstream, address) = (&self.config.name, &endpoint.address);
        if healthy {
            tracing::info!(%upstream, %address, "upstream address healthy again");
        } else {
            let error = endpoint.health_error.lock().clone();
            let failures = self.config.health.as_ref().map(|health| health.failures);
            log_outage_state!(format!("upstream {upstream}"), %upstream, %address, error, failures, "upstream address unhealthy");
        }
    }
}
