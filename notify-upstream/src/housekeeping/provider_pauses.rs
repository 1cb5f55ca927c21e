//! Pauses of providers by operators. Replicas apply a change within two seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::delivery::pool::ProviderPool;
use crate::dispatch::DispatchState;
use crate::store::{Store, StoreError};

/// The time between two reads.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Applies the stored pauses to the providers of this process.
#[derive(Clone)]
pub(crate) struct ProviderPauses {
    store: Store,
    pub(crate) pool: Arc<ProviderPool>,
    dispatch_state: Arc<DispatchState>,
    /// Held during a read, so that the result of an older read is never applied after a newer one.
    reading: Arc<Mutex<()>>,
}

impl ProviderPauses {
    pub(crate) fn new(
        store: Store,
        pool: Arc<ProviderPool>,
        dispatch_state: Arc<DispatchState>,
    ) -> Self {
        Self {
            store,
            pool,
            dispatch_state,
            reading: Arc::default(),
        }
    }

    /// Runs until shutdown. While the store is unavailable, the pauses stay as they are.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let pause = || tokio::time::sleep(READ_INTERVAL);
        while shutdown.run_until_cancelled(pause()).await.is_some() {
            if let Err(error) = self.sync().await {
                postern_core::log_outage!("database", %error, "provider pauses not read");
            }
        }
    }

    /// Reads and applies the pauses, and wakes the dispatchers of channels whose pauses changed.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        let _reading = self.reading.lock().await;
        let pauses = self.store.paused_providers().await?;
        for channel in self.pool.apply_pauses(&pauses) {
            self.dispatch_state.channel(channel).wake();
        }
        Ok(())
    }
}
