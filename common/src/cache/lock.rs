use std::time::Duration;

use uuid::Uuid;

use super::{Cache, CacheError};

/// A lock that is held until it is released, dropped, or its time is over.
#[derive(Debug)]
pub struct Guard {
    cache: Cache,
    key: String,
    /// Ours alone: a lock that has passed to another is not released by us.
    token: Uuid,
    held: bool,
}

pub(super) async fn take(cache: &Cache, key: &str, ttl: Duration) -> Result<Option<Guard>, CacheError> {
    let token = Uuid::new_v4();
    let won = cache.set_if_absent(key, token.as_bytes(), ttl).await?;
    Ok(won.then(|| Guard { cache: cache.clone(), key: key.to_owned(), token, held: true }))
}

// === impl Guard ===

impl Guard {
    /// Gives the lock back. A failure is of no consequence beyond its `ttl`.
    pub async fn release(mut self) {
        self.held = false;
        let _ = self.cache.delete_if_equal(&self.key, self.token.as_bytes()).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.held {
            let (cache, key, token) = (self.cache.clone(), std::mem::take(&mut self.key), self.token);
            runtime.spawn(async move { cache.delete_if_equal(&key, token.as_bytes()).await });
        }
    }
}
