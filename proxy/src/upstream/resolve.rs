use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::upstream::UpstreamPool;

/// How often names are looked up. The system's resolver does not tell how long an answer may be
/// kept.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(15);

/// How soon again while nothing is known yet.
const RESOLVE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long one look-up may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

impl UpstreamPool {
    /// Keeps the addresses of names up to date; the last good answer stays in use while there is no
    /// better one.
    pub(crate) async fn run_resolver(self: Arc<Self>, stop: CancellationToken) {
        if self
            .config
            .addresses
            .iter()
            .all(|address| address.host.parse::<IpAddr>().is_ok())
        {
            return;
        }
        loop {
            let complete = self.resolve().await;
            let pause = if complete {
                RESOLVE_INTERVAL
            } else {
                RESOLVE_RETRY_INTERVAL
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Looks every name up once. Whether all were found.
    async fn resolve(&self) -> bool {
        let mut found = Vec::new();
        for address in &self.config.addresses {
            found.push(match address.host.parse::<IpAddr>() {
                Ok(ip) => Some(vec![SocketAddr::new(ip, address.port)]),
                Err(_) => look_up(&address.host, address.port).await,
            });
        }
        self.apply_resolved(found)
    }

    /// Takes over what was found for each entry of the configuration. One for which nothing was
    /// found keeps the addresses that it had. Whether something was found for all.
    pub(super) fn apply_resolved(&self, found: Vec<Option<Vec<SocketAddr>>>) -> bool {
        let old = self.endpoints.load();
        let (mut addresses, mut complete) = (Vec::new(), true);
        for (at, found) in found.into_iter().enumerate() {
            match found.filter(|found| !found.is_empty()) {
                Some(found) => addresses.extend(found.into_iter().map(|address| (at, address))),
                None => {
                    complete = false;
                    let host = &self.config.addresses[at].host;
                    tracing::warn!(upstream = %self.config.name, %host, "name not resolved; its last addresses stay");
                    let kept = old.iter().filter(|endpoint| endpoint.config_index == at);
                    addresses.extend(kept.map(|endpoint| (at, endpoint.address)));
                }
            }
        }
        self.set_addresses(addresses);
        complete
    }
}

async fn look_up(host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let error =
        match tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(found)) => return Some(found.collect()),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    tracing::debug!(%host, %error, "name look-up failed");
    None
}
