//! A cache of the provider's discovered endpoints.
//!
//! A provider that is unavailable does not prevent a start. Changed endpoints are adopted when the
//! entry expires. If the discovery fails then, the known endpoints remain in use.

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use postern_core::clock::Period;
use tokio::sync::Mutex;

use super::SocialError;
use super::provider::Provider;

/// Validity of a discovery document: providers allow caching for an hour or a day.
const DISCOVERY_TTL: Duration = Duration::from_secs(3600);
/// The time until a failed discovery is repeated if endpoints are known.
const REDISCOVERY_DELAY: Duration = Duration::from_secs(60);
/// The time until a failed discovery is repeated if no endpoints are known.
const DISCOVERY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The result of the last discovery. The lock is held during a discovery, so that concurrent
/// callers share it.
#[derive(Debug, Default)]
pub(super) struct ProviderCache(Mutex<Option<CacheEntry>>);

#[derive(Debug)]
struct CacheEntry {
    result: Result<Arc<Provider>, SocialError>,
    period: Period,
}

// === impl ProviderCache ===

impl ProviderCache {
    /// Returns the provider. Calls `discover` if there is no entry or the entry has expired.
    pub(super) async fn get_or_discover<F>(
        &self,
        clock: &Clock,
        discover: impl FnOnce(Clock) -> F,
    ) -> Result<Arc<Provider>, SocialError>
    where
        F: Future<Output = Result<Provider, SocialError>>,
    {
        let mut entry = self.0.lock().await;
        if let Some(CacheEntry { result, period }) = &*entry
            && period.contains(clock.now())
        {
            return result.clone();
        }
        let known = entry.as_ref().and_then(|entry| entry.result.clone().ok());
        let (result, ttl) = match (discover(clock.clone()).await, known) {
            // The known provider has fetched the keys already.
            (Ok(found), Some(known)) if found.has_same_endpoints(&known) => {
                (Ok(known), DISCOVERY_TTL)
            }
            (Ok(found), _) => (Ok(Arc::new(found)), DISCOVERY_TTL),
            (Err(_), Some(known)) => (Ok(known), REDISCOVERY_DELAY),
            (Err(error), None) => (Err(error), DISCOVERY_RETRY_DELAY),
        };
        *entry = Some(CacheEntry {
            result: result.clone(),
            period: Period::new(clock.now(), ttl),
        });
        result
    }
}
