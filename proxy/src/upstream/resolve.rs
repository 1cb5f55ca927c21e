use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use postern_common::Shutdown;

use super::Pool;

/// How often names are looked up. The system's resolver does not tell how long an answer may be kept.
const INTERVAL: Duration = Duration::from_secs(15);

/// How soon again while nothing is known yet.
const RETRY: Duration = Duration::from_secs(1);

/// How long one look-up may take.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Pool {
    /// Keeps the addresses of names up to date; the last good answer stays in use while there is no better one.
    pub(crate) async fn keep_resolved(self: Arc<Self>, stop: Shutdown) {
        if self.config.addresses.iter().all(|address| address.host.parse::<IpAddr>().is_ok()) {
            return;
        }
        loop {
            let complete = self.resolve().await;
            let pause = if complete { INTERVAL } else { RETRY };
            tokio::select! {
                () = stop.begun() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Looks every name up once. Whether all were found.
    pub(crate) async fn resolve(&self) -> bool {
        let mut found = Vec::new();
        let mut complete = true;
        for (at, address) in self.config.addresses.iter().enumerate() {
            if let Ok(ip) = address.host.parse::<IpAddr>() {
                found.push((at, SocketAddr::new(ip, address.port)));
                continue;
            }
            let lookup = tokio::net::lookup_host((address.host.as_str(), address.port));
            match tokio::time::timeout(TIMEOUT, lookup).await {
                Ok(Ok(addresses)) => found.extend(addresses.map(|address| (at, address))),
                Ok(Err(_)) | Err(_) => {
                    complete = false;
                    tracing::warn!(upstream = %self.config.name, host = %address.host, "cannot resolve the name");
                    let old = self.endpoints.load();
                    let kept = old.iter().filter(|endpoint| endpoint.entry == at);
                    found.extend(kept.map(|endpoint| (at, endpoint.address)));
                }
            }
        }
        self.set_addresses(found);
        complete
    }
}
