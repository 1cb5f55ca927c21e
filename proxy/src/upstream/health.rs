//! Active health checks, with the checks and the schedule of `pingora-load-balancing`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use async_trait::async_trait;
use pingora_core::connectors::TransportConnector;
use pingora_core::connectors::http::Connector as HttpConnector;
use pingora_core::{Error, ErrorType, Result};
use pingora_load_balancing::health_check::{HealthCheck, HttpHealthCheck, TcpHealthCheck};
use pingora_load_balancing::{Backend, HealthRegistry};
use postern_http::upstream::{ConnectionHeader, UpstreamConnection, connector_options};

use crate::config::{HealthCheckConfig, HealthProbe};
use crate::upstream::discovery::inet;
use crate::upstream::{Endpoint, UpstreamPool};

/// The error type of a check that takes longer than `timeout`.
const NO_ANSWER: ErrorType = ErrorType::new("no answer in time");

/// A check with a timeout, which records its result in the endpoint of the backend.
struct EndpointCheck {
    upstream: String,
    config: HealthCheckConfig,
    /// The clock of the pool and the duration of slow starts.
    created_at: Instant,
    slow_start: Option<Duration>,
    /// What a connection to the upstream begins with.
    header: Option<ConnectionHeader>,
    probe: Box<dyn HealthCheck + Send + Sync>,
}

/// Returns an empty registry. The health of an address is kept when its weight changes.
pub(super) fn registry() -> HealthRegistry {
    HealthRegistry::with_equivalence(|backend| {
        let mut hasher = DefaultHasher::new();
        backend.addr.hash(&mut hasher);
        hasher.finish()
    })
}

// === impl EndpointCheck ===

#[async_trait]
impl HealthCheck for EndpointCheck {
    async fn check(&self, target: &Backend) -> Result<()> {
        let check = async {
            if let Some(endpoint) = target.ext.get::<Arc<Endpoint>>() {
                self.check_pins(endpoint).await?;
            }
            self.probe.check(target).await
        };
        let checked = tokio::time::timeout(self.config.timeout, check).await;
        let checked = checked.unwrap_or_else(|_| Err(Error::new(NO_ANSWER)));
        if let Err(error) = &checked {
            tracing::debug!(upstream = %self.upstream, address = %target.addr, %error, "health check failed");
            if let Some(endpoint) = target.ext.get::<Arc<Endpoint>>() {
                *endpoint.health_error.lock() = summary(error);
            }
        }
        checked
    }

    async fn health_status_change(&self, target: &Backend, healthy: bool) {
        let Some(endpoint) = target.ext.get::<Arc<Endpoint>>() else {
            return;
        };
        if let (Some(duration), true) = (self.slow_start, healthy) {
            let now_ms = u64::try_from(self.created_at.elapsed().as_millis());
            endpoint.start_ramp(now_ms.unwrap_or(u64::MAX), duration);
        }
        endpoint.healthy.store(healthy, Ordering::Relaxed);
        let (upstream, address) = (&self.upstream, &target.addr);
        if healthy {
            tracing::info!(%upstream, %address, "upstream address healthy again");
        } else {
            let (error, failures) = (endpoint.health_error.lock().clone(), self.config.failures);
            tracing::warn!(%upstream, %address, error, failures, "upstream address unhealthy");
        }
    }

    fn backend_summary(&self, target: &Backend) -> String {
        format!("{} of upstream {}", target.addr, self.upstream)
    }

    fn health_threshold(&self, success: bool) -> usize {
        let checks = match success {
            true => self.config.successes,
            false => self.config.failures,
        };
        usize::try_from(checks).unwrap_or(usize::MAX)
    }
}

impl EndpointCheck {
    /// Checks the certificate of an address with `tls.pin`, by a connection of its own: Pingora's
    /// checks do not show it.
    async fn check_pins(&self, endpoint: &Endpoint) -> Result<()> {
        let (peer, pins) = (&endpoint.peer, &endpoint.pins);
        if !pins.is_empty() {
            let (timeout, header) = (self.config.timeout, self.header.clone());
            UpstreamConnection::connect(peer, pins, timeout, header).await?;
        }
        Ok(())
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
        let Some(health) = self.config.health.clone() else {
            return;
        };
        let Some(probe) = self.build_probe(&health) else {
            return;
        };
        let interval = health.interval;
        let header = self.config.proxy_protocol.map(ConnectionHeader::local);
        let check = EndpointCheck {
            header,
            upstream: self.config.name.clone(),
            config: health,
            created_at: self.created_at,
            slow_start: self.config.slow_start,
            probe,
        };
        self.health_check
            .call_once(|| self.health.set_health_check(Box::new(check)));
        loop {
            let pass = async {
                self.health.run_health_check(true).await;
                tokio::time::sleep(interval).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = pass => {}
            }
        }
    }

    fn build_probe(
        &self,
        health: &HealthCheckConfig,
    ) -> Option<Box<dyn HealthCheck + Send + Sync>> {
        let template = self
            .endpoints()
            .first()
            .map(|endpoint| endpoint.peer.clone());
        let mut template =
            template.unwrap_or_else(|| self.peers.build(0, inet(Ipv4Addr::UNSPECIFIED.into(), 1)));
        if let Some(version) = self.config.proxy_protocol {
            ConnectionHeader::local(version).set_on(&mut template.options, health.timeout);
        }
        let options = connector_options(16, self.config.uses_system_roots());
        match &health.probe {
            HealthProbe::Tcp => {
                let mut probe = TcpHealthCheck::default();
                probe.peer_template.options = template.options;
                probe.set_connector(TransportConnector::new(Some(options)));
                Some(Box::new(probe))
            }
            HealthProbe::Http(path) => {
                let mut probe = HttpHealthCheck::new_custom(
                    self.config.own_host(),
                    self.config.tls.is_some(),
                    HttpConnector::new(Some(options)),
                );
                probe.peer_template = template;
                probe.req.set_raw_path(path.as_bytes()).ok()?;
                probe.validator = Some(Box::new(|response| {
                    let good = response.status.is_success() || response.status.is_redirection();
                    if good {
                        Ok(())
                    } else {
                        Error::e_explain(
                            ErrorType::CustomCode("unhealthy", response.status.as_u16()),
                            "",
                        )
                    }
                }));
                Some(Box::new(probe))
            }
        }
    }
}
