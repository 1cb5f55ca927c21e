//! The scan_lanes at a channel's lanes from their beginning. It finds what stands below the places
//! that are looked at every second: committed very late by another replica, or moved there by one
//! that has died. It goes on beside the claims, because over millions of dead rows it takes more
//! than a second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::DispatchState;
use crate::notification::Lane;
use crate::store::{LaneScan, LowWatermark, Store, StoreError};

/// How long after the end of one the next begins.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(15);
/// Or for so many times as long as it took: it takes at most a fifth of the time of one connection.
const MIN_IDLE_FACTOR: u32 = 4;
/// The server ends a statement after 10 s; one that has not said so by then is gone.
const LANE_SCAN_TIMEOUT: Duration = Duration::from_secs(12);

/// At most one scan_lanes at a time, and when the next is due: by a clock that nobody sets.
#[derive(Debug)]
pub(super) struct FullScan {
    store: Store,
    slots: Arc<Semaphore>,
    running: JoinSet<(Duration, Result<Vec<LaneScan>, StoreError>)>,
    due: Instant,
}

// === impl FullScan ===

impl FullScan {
    pub(super) fn new(store: &Store, dispatch_state: &DispatchState) -> Self {
        let slots = Arc::clone(&dispatch_state.full_scan_slots);
        Self {
            store: store.clone(),
            slots,
            running: JoinSet::new(),
            due: Instant::now(),
        }
    }

    /// Begins one, when it is time and none is on its way.
    pub(super) fn begin(&mut self, marks: [LowWatermark; Lane::PER_CHANNEL], dead: Arc<[i64]>) {
        if self.running.is_empty() && self.due <= Instant::now() {
            let (store, slots) = (self.store.clone(), Arc::clone(&self.slots));
            self.running.spawn(async move {
                let _slot = slots.acquire().await;
                let began = Instant::now();
                let finished = scan_lanes(&store, &marks, &dead).await;
                (began.elapsed(), finished)
            });
        }
    }

    /// Waits for the one that is on its way, for ever if there is none; what it finished.
    pub(super) async fn finished(&mut self) -> Vec<LaneScan> {
        let Some(done) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        self.due = Instant::now() + FULL_SCAN_INTERVAL;
        match done {
            Ok((took, Ok(finished))) => {
                self.due = Instant::now() + FULL_SCAN_INTERVAL.max(took * MIN_IDLE_FACTOR);
                return finished;
            }
            Ok((_, Err(error))) => {
                tracing::warn!(%error, "cannot look at the queue from its beginning")
            }
            Err(error) => {
                tracing::error!(%error, "the look at the queue from its beginning has ended")
            }
        }
        Vec::new()
    }
}

/// A statement a lane, so that each has the whole time of one.
async fn scan_lanes(
    store: &Store,
    marks: &[LowWatermark],
    dead: &[i64],
) -> Result<Vec<LaneScan>, StoreError> {
    let mut finished = Vec::with_capacity(marks.len());
    for mark in marks {
        let lane = tokio::time::timeout(
            LANE_SCAN_TIMEOUT,
            store.scan_lanes(std::slice::from_ref(mark), dead),
        )
        .await;
        finished.extend(lane.map_err(|_| StoreError::Unavailable(sqlx::Error::PoolTimedOut))??);
    }
    Ok(finished)
}
