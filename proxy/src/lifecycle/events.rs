//! Log events of start and shutdown.

use std::net::SocketAddr;

use tokio::net::TcpListener;

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
    let public = public.map(|(listener, protocol)| (listener, protocol_name(protocol)));
    let admin = listeners.admin.iter().map(|listener| (listener, "admin"));
    for (listener, protocol) in public.chain(admin) {
        if let Some(address) = bound(listener) {
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

fn bound(listener: &TcpListener) -> Option<SocketAddr> {
    listener.local_addr().ok()
}

fn protocol_name(protocol: &ListenerProtocol) -> &'static str {
    match protocol.tls {
        Some(_) => "https",
        None => "http",
    }
}
