//! Log events of start and shutdown.

use crate::lifecycle::listeners::Listeners;
use crate::server::acceptor::ListenerProtocol;
use crate::state::GatewayState;

/// Logs the version and the configuration with each address that the gateway listens on.
pub(super) fn log_listening(
    state: &GatewayState,
    listeners: &Listeners,
    protocols: &[ListenerProtocol],
) {
    let status = state.config_status.lock().clone();
    let file = status.file.as_deref().unwrap_or_default();
    let hash = status.hash.as_deref().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let public = listeners.public.iter().zip(protocols);
    let name = |protocol: &ListenerProtocol| protocol.tls.as_ref().map_or("http", |_| "https");
    let public = public.map(|(listener, protocol)| (listener, name(protocol)));
    let admin = listeners.admin.iter().map(|listener| (listener, "admin"));
    for (listener, protocol) in public.chain(admin) {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(
                %address,
                protocol,
                version,
                config_file = file,
                config_hash = hash,
                "listening"
            );
        }
    }
}
