//! Pauses of providers by operators. Replicas apply a change about a second after it is announced over `NOTIFY`,
//! and otherwise within a minute; without a connection for wake-ups, and with SQLite, they read each second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::delivery::pool::ProviderPool;
use crate::dispatch::DispatchState;
use crate::store::{Store, StoreError};

/// The time between two checks whether a change was announced.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Checks between two reads without an announcement, which may have been lost.
const CHECKS_PER_READ: u32 = 60;

/// Applies the stored pauses to the providers of this process.
#[derive(Clone, Debug)]
pub(crate) struct ProviderPauses {
    store: Store,
    /// The providers.
    pub(crate) pool: Arc<ProviderPool>,
    dispatch_state: Arc<DispatchState>,
    /// Held during a read, so that the result of an older read is never applied after a newer one.
    reading: Arc<Mutex<()>>,
}

// === impl ProviderPauses ===

impl ProviderPauses {
    /// Creates the pauses of these providers. Nothing is read yet.
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
        for check in 1_u32.. {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            let replica = self.dispatch_state.replica();
            let is_due = replica.take_pauses_changed()
                || replica.listening_since().is_none()
                || check.is_multiple_of(CHECKS_PER_READ);
            if !is_due {
                continue;
            }
            if let Err(error) = self.sync().await {
                postern_core::log_outage!("database", %error, "provider pauses not read");
            }
        }
    }

    /// Reads and applies the pauses, and wakes the dispatchers of channels whose pauses changed.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        let _reading = self.reading.lock().await;
        let pauses = self.store.paused_providers().await?;
        for channel in self.pool.apply_pauses(&pauses) {
            self.dispatch_state.channel(channel).wake();
        }
        Ok(())
    }
}
