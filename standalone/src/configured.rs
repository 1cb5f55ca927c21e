//! The three services in one process without a development part, as an operator's own files say.

use std::net::SocketAddr;
use std::path::Path;

use postern_common::Clock;
use postern_common::config::Env;
use postern_common::exit::Exit;

use crate::running::{Running, Stage};
use crate::services::Services;

/// Starts the gateway and both upstreams from `proxy.toml`, `auth.toml` and `notify.toml` in a
/// folder, with the variables that the separate processes take. `listen` stands in for the
/// gateway's first address.
///
/// # Errors
/// As each of the separate processes: 64 for a mistake in a file, 69 for a port that is taken or a
/// store that is away.
pub async fn start_configured(
    folder: &Path,
    listen: Option<SocketAddr>,
    env: &Env,
    clock: Clock,
) -> Result<Running, Exit> {
    let (services, sockets) = Box::pin(Services::configured(folder, listen, env, &clock)).await?;
    let (mut front, mut middle) = (Stage::default(), Stage::default());
    services.run(sockets, &mut front, &mut middle);
    Ok(Running::configured(vec![front, middle]))
}
