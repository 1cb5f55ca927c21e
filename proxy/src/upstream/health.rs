//! Active health checks, with Pingora's probes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_util::sync::CancellationToken;

use pingora_core::connectors::http::Connector as HttpConnector;
use pingora_core::connectors::{ConnectorOptions, TransportConnector};
use pingora_core::{Error, ErrorType};
use pingora_load_balancing::Backend;
use pingora_load_balancing::health_check::{HealthCheck, HttpHealthCheck, TcpHealthCheck};

use crate::config::{HealthCheckConfig, HealthProbe};
use crate::upstream::tls_material::NO_ROOTS;
use crate::upstream::{Endpoint, UpstreamPool};

/// Consecutive results of an address.
#[derive(Clone, Copy, Debug, Default)]
struct ProbeStreak {
    good: u32,
    bad: u32,
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
        let mut streaks = HashMap::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.check_all(&health, &*probe, &mut streaks) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(health.interval) => {}
            }
        }
    }

    /// Checks all addresses once.
    async fn check_all(
        &self,
        health: &HealthCheckConfig,
        probe: &(dyn HealthCheck + Send + Sync),
        streaks: &mut HashMap<SocketAddr, ProbeStreak>,
    ) {
        let endpoints = self.endpoints();
        streaks.retain(|address, _| {
            endpoints
                .iter()
                .any(|endpoint| endpoint.address == *address)
        });
        let checks = endpoints.iter().map(async |endpoint| {
            let Ok(backend) = Backend::new(&endpoint.address.to_string()) else { return true };
            let error = match tokio::time::timeout(health.timeout, probe.check(&backend)).await {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer in time".to_owned(),
            };
            tracing::debug!(upstream = %self.config.name, address = %endpoint.address, error, "health check failed");
            false
        });
        let found = futures_util::future::join_all(checks).await;
        for (endpoint, good) in endpoints.iter().zip(found) {
            let streak = streaks.entry(endpoint.address).or_default();
            *streak = if good {
                ProbeStreak {
                    good: streak.good.saturating_add(1),
                    bad: 0,
                }
            } else {
                ProbeStreak {
                    good: 0,
                    bad: streak.bad.saturating_add(1),
                }
            };
            self.update_health(endpoint, health, *streak);
        }
    }

    fn update_health(&self, endpoint: &Endpoint, health: &HealthCheckConfig, streak: ProbeStreak) {
        let was = endpoint.healthy.load(Ordering::Relaxed);
        let is = if was {
            streak.bad < health.failures
        } else {
            streak.good >= health.successes
        };
        if was != is {
            endpoint.healthy.store(is, Ordering::Relaxed);
            tracing::warn!(upstream = %self.config.name, address = %endpoint.address, healthy = is, "upstream address health changed");
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
        let template =
            template.unwrap_or_else(|| self.peer(0, SocketAddr::from(([0, 0, 0, 0], 1))));
        let mut options = ConnectorOptions::new(16);
        if self.config.tls.as_ref().is_none_or(|tls| tls.ca.is_some()) {
            options.ca_file = Some(NO_ROOTS.to_owned());
        }
        match &health.probe {
            HealthProbe::Tcp => {
                let mut probe = TcpHealthCheck::default();
                probe.peer_template.options = template.options;
                probe.set_connector(TransportConnector::new(Some(options)));
                Some(Box::new(probe))
            }
            HealthProbe::Http(path) => {
                let host = &self.config.addresses.first()?.host;
                let mut probe = HttpHealthCheck::new_custom(
                    host,
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
