//! The certificates of the listeners: loading, and the tasks that keep them current.

use std::sync::Arc;

use postern_core::Clock;
use postern_core::exit::Exit;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::certificates::{AcmeRenewal, AcmeStore, PendingChallenges, ServerTls};
use crate::config::Config;
use crate::lifecycle::background_tasks::BackgroundTasks;
use crate::server::acceptor::ListenerProtocol;
use crate::telemetry::metrics::GatewayMetrics;

/// Loads the certificates of each listener.
///
/// # Errors
/// Status 64 with the file that is invalid.
pub(super) fn load(
    config: &Config,
    metrics: &GatewayMetrics,
    clock: &Clock,
) -> Result<Vec<ListenerProtocol>, Exit> {
    let mut protocols = Vec::with_capacity(config.listen.len());
    for listen in &config.listen {
        let tls = match listen.tls.clone() {
            None => None,
            Some(source) => Some(Arc::new(ServerTls::load(
                source,
                clock.clone(),
                Arc::clone(&metrics.certificates),
            )?)),
        };
        protocols.push(ListenerProtocol {
            tls,
            h2c: listen.h2c,
            redirect_to_https: listen.redirect_to_https,
            address: listen.address,
            proxy_protocol: listen.proxy_protocol.clone().map(Arc::new),
        });
    }
    Ok(protocols)
}

pub(super) fn of(protocols: &[ListenerProtocol]) -> Vec<Arc<ServerTls>> {
    let tls = protocols.iter().filter_map(|protocol| protocol.tls.clone());
    tls.collect()
}

/// Opens the ACME store and loads its certificates. Returns `None` without `[acme]`.
///
/// # Errors
/// Status 64 if a file is invalid, 69 if the store cannot be used.
pub(super) fn prepare_acme(
    config: &Config,
    protocols: &[ListenerProtocol],
    metrics: &GatewayMetrics,
    clock: &Clock,
) -> Result<Option<AcmeRenewal>, Exit> {
    let Some(acme) = &config.acme else {
        return Ok(None);
    };
    let store = Arc::new(AcmeStore::open(&acme.store)?);
    let listeners = of(protocols);
    let slots: Vec<_> = listeners.iter().flat_map(|tls| tls.acme_slots()).collect();
    let domains = slots.iter().map(|(domain, _)| domain.clone()).collect();
    let challenges = PendingChallenges::new(Arc::clone(&store), domains);
    let challenges = Arc::new(challenges);
    for tls in &listeners {
        tls.set_challenges(Arc::clone(&challenges));
    }
    let metrics = Arc::clone(&metrics.certificates);
    AcmeRenewal::new(acme.clone(), store, slots, clock.clone(), metrics).map(Some)
}

/// Renews certificates until `stop`, in a thread of its own, because calls of the store, which may be a
/// network file system, block.
pub(super) fn start(
    renewal: Option<AcmeRenewal>,
    tasks: &BackgroundTasks,
    stop: &CancellationToken,
) {
    if let Some(renewal) = renewal {
        let (runtime, stop) = (Handle::current(), stop.clone());
        let renewing = spawn_blocking(move || runtime.block_on(renewal.run(stop)));
        tasks.spawn(async move { drop(renewing.await) });
    }
}
