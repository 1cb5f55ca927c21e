//! What is known of the provider, kept for a while. A provider that is away keeps nobody from
//! starting; one that moves its endpoints is followed; one that is away when it is looked at again
//! is used as it was.

use std::sync::Arc;
use std::time::Duration;

use postern_common::Clock;
use postern_common::clock::Timestamp;
use tokio::sync::Mutex;

use super::SocialFault;
use super::provider::Provider;

/// How long a discovery document counts: providers let it be cached for an hour or a day.
const FRESH: Duration = Duration::from_secs(3600);
/// When a provider whose document cannot be read is asked again, with one that is known and
/// without.
const AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));

/// The provider as it was found last. The lock is held while it is looked for, so that one look
/// serves everybody.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Option<State>>);

#[derive(Debug)]
struct State {
    found: Result<Arc<Provider>, SocialFault>,
    look_at: Timestamp,
}

// === impl Known ===

impl Known {
    /// The provider; `find` is asked when nothing is known or what is known has grown old.
    pub(super) async fn provider<F>(
        &self,
        clock: &Clock,
        find: impl FnOnce(Clock) -> F,
    ) -> Result<Arc<Provider>, SocialFault>
    where
        F: Future<Output = Result<Provider, SocialFault>>,
    {
        let mut state = self.0.lock().await;
        if let Some(State { found, look_at }) = &*state
            && clock.now() < *look_at
        {
            return found.clone();
        }
        let before = state.as_ref().and_then(|state| state.found.clone().ok());
        let (found, wait) = match (find(clock.clone()).await, before) {
            // The one that is known has the provider's keys already.
            (Ok(found), Some(before)) if found.is_at_the_endpoints_of(&before) => {
                (Ok(before), FRESH)
            }
            (Ok(found), _) => (Ok(Arc::new(found)), FRESH),
            (Err(_), Some(before)) => (Ok(before), AGAIN.0),
            (Err(fault), None) => (Err(fault), AGAIN.1),
        };
        *state = Some(State {
            found: found.clone(),
            look_at: clock.now().plus(wait),
        });
        found
    }
}
