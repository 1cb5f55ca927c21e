//! Places for open connections: as many as the configuration says, while it changes too.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

/// `limits.connections`, as places that are taken and given back.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    first: usize,
    most: watch::Sender<usize>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most)),
            first: most,
            most: watch::Sender::new(most),
        }
    }

    /// A place, once one is free.
    pub(crate) async fn take(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.free).acquire_owned().await
    }

    /// A place, if one is free.
    pub(crate) fn try_take(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.free).try_acquire_owned()
    }

    /// So many from now on. Where more are taken, no connection is ended for it: their places go as
    /// they end.
    pub(crate) fn set(&self, most: usize) {
        self.most
            .send_if_modified(|known| std::mem::replace(known, most) != most);
    }

    /// Follows [`Places::set`] until the stop.
    pub(crate) async fn keep(&self, stop: CancellationToken) {
        let (mut there, mut most) = (self.first, self.most.subscribe());
        loop {
            let wanted = *most.borrow_and_update();
            if wanted > there {
                self.free.add_permits(wanted - there);
                there = wanted;
            }
            let surplus = u32::try_from(there - wanted).unwrap_or(u32::MAX);
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = most.changed() => {}
                Ok(places) = self.free.acquire_many(surplus), if surplus > 0 => {
                    places.forget();
                    there = wanted;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn until(places: &Places, free: usize) {
        while places.free.available_permits() != free {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn their_number_follows_the_configuration() {
        let (places, stop) = (Arc::new(Places::new(2)), CancellationToken::new());
        let (kept, ends) = (Arc::clone(&places), stop.clone());
        let keeper = tokio::spawn(async move { kept.keep(ends).await });
        let first = places.take().await.expect("a place");
        places.set(3);
        until(&places, 2).await;
        let others = (
            places.take().await.expect("a place"),
            places.take().await.expect("a place"),
        );
        places.set(1);
        tokio::task::yield_now().await;
        drop(first);
        tokio::task::yield_now().await;
        assert!(places.try_take().is_err(), "two too many are there yet");
        // Whoever waits to take places away does not wait for ever.
        places.set(4);
        until(&places, 2).await;
        places.set(1);
        drop(others);
        until(&places, 1).await;
        stop.cancel();
        keeper.await.expect("ends");
    }
}
