//! Moves retries and scheduled notifications to the queue when they are due.

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::DispatchState;
use crate::store::{Store, StoreError};

/// Moves delayed rows to the queue when they are due.
#[derive(Debug)]
pub(crate) struct DelayedRowMover {
    /// The store.
    pub(crate) store: Store,
    /// The clock.
    pub(crate) clock: Clock,
    /// The state in which moved rows are recorded.
    pub(crate) dispatch_state: Arc<DispatchState>,
}

/// Maximum rows of one move.
const MOVE_BATCH_SIZE: i64 = 500;
/// Interval at which the time of the next known row is compared with the clock.
const TICK: Duration = Duration::from_millis(250);
/// Time after which the store is asked although no known row is due. It bounds the delay of rows
/// that another replica has stored and does not move, because it has died.
const MAX_QUERY_INTERVAL: Duration = Duration::from_secs(10);

// === impl DelayedRowMover ===

impl DelayedRowMover {
    /// Moves all due rows and returns their number.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn step(&self) -> Result<usize, StoreError> {
        let mut total = 0;
        loop {
            let moved = self
                .store
                .move_due(self.clock.now(), MOVE_BATCH_SIZE)
                .await?;
            for lane in &moved.lanes {
                let channel = self.dispatch_state.channel(lane.channel);
                channel.record_stored(*lane);
            }
            let count = moved.lanes.len();
            total += count;
            if count < usize::try_from(MOVE_BATCH_SIZE).unwrap_or(usize::MAX) {
                if let Some(due) = moved.next_due {
                    self.dispatch_state.replica().record_due(due);
                }
                return Ok(total);
            }
        }
    }

    /// Moves due rows until shutdown.
    ///
    /// Each replica knows when the rows are due that it has stored, and those that it has found in
    /// the store, so that it asks the store only then.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        let mut last_query: Option<Instant> = None;
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            let is_due = self.dispatch_state.replica().take_due(self.clock.now());
            if !is_due && last_query.is_some_and(|last| last.elapsed() < MAX_QUERY_INTERVAL) {
                continue;
            }
            last_query = Some(Instant::now());
            if let Err(error) = self.step().await {
                self.dispatch_state.replica().record_due(self.clock.now());
                postern_core::log_outage!("database", %error, "due notifications not moved");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
