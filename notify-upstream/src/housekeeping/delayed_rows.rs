//! Moves retries and scheduled notifications to the queue when they are due.

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use tokio_util::sync::CancellationToken;

use super::interval;
use crate::dispatch::DispatchState;
use crate::store::{Store, StoreError};

/// Moves delayed rows to the queue when they are due.
pub(crate) struct DelayedRowMover {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    /// The state in which moved rows are recorded.
    pub(crate) dispatch_state: Arc<DispatchState>,
}

/// Maximum rows of one move.
const MOVE_BATCH_SIZE: i64 = 500;
/// Time between two queries for due rows.
const TICK: Duration = Duration::from_millis(500);

impl DelayedRowMover {
    /// Moves all due rows and returns their number.
    pub(crate) async fn step(&self) -> Result<usize, StoreError> {
        let mut total = 0;
        loop {
            let moved = self.store.move_due(self.clock.now(), MOVE_BATCH_SIZE);
            let moved = moved.await?;
            for lane in &moved {
                self.dispatch_state
                    .channel(lane.channel)
                    .mark_waiting(*lane);
            }
            total += moved.len();
            if moved.len() < usize::try_from(MOVE_BATCH_SIZE).unwrap_or(usize::MAX) {
                return Ok(total);
            }
        }
    }

    /// Moves due rows until shutdown.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut tick = interval(TICK);
        while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.step().await {
                postern_core::log_outage!("database", %error, "due notifications not moved");
            }
        }
    }
}
