//! A limit on open connections that can be changed by a configuration reload.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

/// Limits open connections (`limits.connections`).
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    permits: Arc<Semaphore>,
    initial: usize,
    limit: watch::Sender<usize>,
}

impl ConnectionLimit {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limit)),
            initial: limit,
            limit: watch::Sender::new(limit),
        }
    }

    /// Waits for a permit to open a connection.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.permits).acquire_owned().await
    }

    /// Returns a permit if one is available.
    pub(crate) fn try_acquire(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.permits).try_acquire_owned()
    }

    /// Changes the limit. Open connections above a lower limit are kept; their permits are
    /// withdrawn when they close.
    pub(crate) fn resize(&self, limit: usize) {
        self.limit
            .send_if_modified(|known| std::mem::replace(known, limit) != limit);
    }

    /// Applies [`resize`](Self::resize) to the semaphore until shutdown.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let (mut issued, mut limit) = (self.initial, self.limit.subscribe());
        loop {
            let wanted = *limit.borrow_and_update();
            if wanted > issued {
                self.permits.add_permits(wanted - issued);
                issued = wanted;
            }
            let excess = u32::try_from(issued - wanted).unwrap_or(u32::MAX);
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = limit.changed() => {}
                Ok(withdrawn) = self.permits.acquire_many(excess), if excess > 0 => {
                    withdrawn.forget();
                    issued = wanted;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn until(limit: &ConnectionLimit, permits: usize) {
        while limit.permits.available_permits() != permits {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn limit_follows_resize() {
        let (limit, stop) = (Arc::new(ConnectionLimit::new(2)), CancellationToken::new());
        let (kept, ends) = (Arc::clone(&limit), stop.clone());
        let keeper = tokio::spawn(async move { kept.run(ends).await });
        let initial = limit.acquire().await.expect("a permit");
        limit.resize(3);
        until(&limit, 2).await;
        let others = (
            limit.acquire().await.expect("a permit"),
            limit.acquire().await.expect("a permit"),
        );
        limit.resize(1);
        tokio::task::yield_now().await;
        drop(initial);
        tokio::task::yield_now().await;
        assert!(
            limit.try_acquire().is_err(),
            "two permits are still issued above the limit"
        );
        // A pending withdrawal must not block a later increase.
        limit.resize(4);
        until(&limit, 2).await;
        limit.resize(1);
        drop(others);
        until(&limit, 1).await;
        stop.cancel();
        keeper.await.expect("ends");
    }
}
