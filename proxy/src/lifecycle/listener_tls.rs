//! The certificates of the listeners: loading, and the tasks that keep them current.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::exit::Exit;

use crate::certificates::{ServerTls, fetch_staples};
use crate::config::Config;
use crate::lifecycle::background_tasks::BackgroundTasks;
use crate::server::acceptor::ListenerProtocol;
use crate::state::GatewayState;
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
            redirect_to_https: listen.redirect_to_https.clone(),
            address: listen.address,
            proxy_protocol: listen.proxy_protocol.clone().map(Arc::new),
        });
    }
    Ok(protocols)
}

/// Returns the listeners with TLS.
pub(super) fn of(protocols: &[ListenerProtocol]) -> Vec<Arc<ServerTls>> {
    let tls = protocols.iter().filter_map(|protocol| protocol.tls.clone());
    tls.collect()
}

/// Starts the background tasks of certificates.
pub(super) fn start(
    state: &GatewayState,
    protocols: &[ListenerProtocol],
    tasks: &BackgroundTasks,
    stop: &CancellationToken,
) {
    tasks.spawn(fetch_staples(
        of(protocols),
        Arc::clone(&state.metrics.certificates),
        state.clock.clone(),
        stop.clone(),
    ));
}
