//! Periodic DNS look-ups of upstream names.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::upstream::UpstreamPool;

/// Interval of DNS look-ups. The system's resolver does not report how long an answer is valid.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(15);

/// Interval of look-ups while a name has not been resolved.
const RESOLVE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of a DNS look-up.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

impl UpstreamPool {
    /// Resolves names periodically. The last addresses stay in use if a look-up fails.
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
            let is_complete = self.resolve().await;
            let interval = if is_complete {
                RESOLVE_INTERVAL
            } else {
                RESOLVE_RETRY_INTERVAL
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
        }
    }

    /// Resolves all names once. Returns whether all were found.
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

    /// Applies the addresses found for each entry of the configuration. Entries without a result
    /// keep their addresses. Returns whether all entries have a result.
    pub(super) fn apply_resolved(&self, found: Vec<Option<Vec<SocketAddr>>>) -> bool {
        let old = self.endpoints.load();
        let (mut addresses, mut is_complete) = (Vec::new(), true);
        for (at, found) in found.into_iter().enumerate() {
            match found.filter(|found| !found.is_empty()) {
                Some(found) => addresses.extend(found.into_iter().map(|address| (at, address))),
                None => {
                    is_complete = false;
                    let host = &self.config.addresses[at].host;
                    tracing::warn!(upstream = %self.config.name, %host, "upstream name not resolved, keeping last addresses");
                    let previous = old.iter().filter(|endpoint| endpoint.config_index == at);
                    addresses.extend(previous.map(|endpoint| (at, endpoint.address)));
                }
            }
        }
        self.set_addresses(addresses);
        is_complete
    }
}

/// Returns the addresses of a name, or `None` if the look-up fails or times out.
async fn look_up(host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let error =
        match tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(found)) => return Some(found.collect()),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    tracing::debug!(%host, %error, "upstream name lookup failed");
    None
}
