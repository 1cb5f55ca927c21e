//! Starts the three services in one process from an operator's configuration files, without
//! development services.

use std::net::SocketAddr;
use std::path::Path;

use postern_core::Clock;
use postern_core::config::Env;
use postern_core::exit::Exit;

use crate::lifecycle::{Running, ShutdownStage};
use crate::services::GatewayServices;

/// Starts the gateway and both upstreams from `proxy.toml`, `auth.toml`, and `notify.toml` in a
/// folder, with the environment variables of the separate processes. `listen` replaces the
/// gateway's first address.
pub async fn start_configured(
    folder: &Path,
    listen: Option<SocketAddr>,
    env: &Env,
    clock: Clock,
) -> Result<Running, Exit> {
    let (services, sockets) =
        Box::pin(GatewayServices::from_folder(folder, listen, env, &clock)).await?;
    let (mut front, mut middle) = (ShutdownStage::default(), ShutdownStage::default());
    services.run(sockets, &mut front, &mut middle);
    Ok(Running::new(vec![front, middle], None))
}
