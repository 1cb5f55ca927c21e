//! Availability of the shared cache.

use std::time::Duration;

use postern_core::dependency::{Dependencies, Dependency};
use postern_store::cache::Cache;
use tokio_util::sync::CancellationToken;

/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Probes the cache. Its outage degrades the service only: quotas and rates are not shared between
/// replicas meanwhile.
pub(crate) struct CacheProbe {
    cache: Cache,
    /// The availability, as metrics and readiness show it.
    availability: Dependency,
}

impl CacheProbe {
    pub(crate) fn new(cache: Cache, dependencies: &Dependencies) -> Self {
        let availability = dependencies.optional("cache", cache.label());
        Self {
            availability: availability.without_events(),
            cache,
        }
    }

    /// Runs until shutdown.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            self.availability.record(&self.cache.ping().await);
            let pause = tokio::time::sleep(PROBE_INTERVAL);
            shutdown.run_until_cancelled(pause).await;
        }
    }
}
