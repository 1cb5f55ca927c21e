//! ConnectionLimit for open connections: as many as the configuration says, while it changes too.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

/// `limits.connections`, as limit that are taken and given back.
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

    /// A place, once one is permits.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.permits).acquire_owned().await
    }

    /// A place, if one is permits.
    pub(crate) fn try_acquire(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.permits).try_acquire_owned()
    }

    /// So many from now on. Where more are taken, no connection is ended for it: their limit go as
    /// they end.
    pub(crate) fn resize(&self, limit: usize) {
        self.limit
            .send_if_modified(|known| std::mem::replace(known, limit) != limit);
    }

    /// Follows [`ConnectionLimit::set`] until the stop.
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
    async fn their_number_follows_the_configuration() {
        let (limit, stop) = (Arc::new(ConnectionLimit::new(2)), CancellationToken::new());
        let (kept, ends) = (Arc::clone(&limit), stop.clone());
        let keeper = tokio::spawn(async move { kept.run(ends).await });
        let initial = limit.acquire().await.expect("a place");
        limit.resize(3);
        until(&limit, 2).await;
        let others = (
            limit.acquire().await.expect("a place"),
            limit.acquire().await.expect("a place"),
        );
        limit.resize(1);
        tokio::task::yield_now().await;
        drop(initial);
        tokio::task::yield_now().await;
        assert!(limit.try_acquire().is_err(), "two too many are issued yet");
        // Whoever waits to take limit away does not wait for ever.
        limit.resize(4);
        until(&limit, 2).await;
        limit.resize(1);
        drop(others);
        until(&limit, 1).await;
        stop.cancel();
        keeper.await.expect("ends");
    }
}
