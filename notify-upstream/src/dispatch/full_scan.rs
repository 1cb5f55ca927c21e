//! The scan of a channel's lanes from their beginning.
//!
//! It finds rows below the low watermarks, which the scan of every second does not visit: rows
//! committed very late by another replica, or moved there by a replica that has died. It runs
//! concurrently with claims, because it takes more than a second over millions of dead rows.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::DispatchState;
use crate::notification::Lane;
use crate::store::{LaneScan, LowWatermark, Store, StoreError};

/// Minimum time from the end of a full scan to the start of the next.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(15);
/// The same as a multiple of the duration of the scan: full scans use at most a fifth of the time
/// of one connection.
const MIN_IDLE_FACTOR: u32 = 4;
/// Minimum time from the end of a full scan to the start of the next of an idle channel.
const IDLE_FULL_SCAN_INTERVAL: Duration = Duration::from_secs(60);
/// Duration of a full scan up to which the next one is a single statement over all lanes.
const SHORT_SCAN: Duration = Duration::from_millis(500);
/// Timeout of the scan of one lane. The server ends a statement after 10 s.
const LANE_SCAN_TIMEOUT: Duration = Duration::from_secs(12);

/// The full scan of one channel: at most one at a time, scheduled by the monotonic clock.
#[derive(Debug)]
pub(super) struct FullScan {
    store: Store,
    slots: Arc<Semaphore>,
    running: JoinSet<(Duration, Result<Vec<LaneScan>, StoreError>)>,
    due: Instant,
    /// The same for an idle channel.
    idle_due: Instant,
    is_short: bool,
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
            idle_due: Instant::now(),
            is_short: false,
        }
    }

    /// Starts a full scan, if one is due and none is running. One of an idle channel is due later.
    pub(super) fn start_if_due(
        &mut self,
        lanes: [LowWatermark; Lane::PER_CHANNEL],
        dead: Arc<[i64]>,
        is_idle: bool,
    ) {
        let due = if is_idle { self.idle_due } else { self.due };
        if self.running.is_empty() && due <= Instant::now() {
            let lanes_per_statement = if self.is_short { lanes.len() } else { 1 };
            let (store, slots) = (self.store.clone(), Arc::clone(&self.slots));
            self.running.spawn(async move {
                let _slot = slots.acquire().await;
                let began = Instant::now();
                let scans = scan_lanes(&store, &lanes, lanes_per_statement, &dead).await;
                (began.elapsed(), scans)
            });
        }
    }

    /// Waits for the running scan and returns what it found. Never returns if none is running.
    pub(super) async fn finished(&mut self) -> Vec<LaneScan> {
        let Some(done) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        self.due = Instant::now() + FULL_SCAN_INTERVAL;
        self.idle_due = Instant::now() + IDLE_FULL_SCAN_INTERVAL;
        self.is_short = matches!(done, Ok((took, Ok(_))) if took < SHORT_SCAN);
        match done {
            Ok((took, Ok(scans))) => {
                self.due = Instant::now() + FULL_SCAN_INTERVAL.max(took * MIN_IDLE_FACTOR);
                return scans;
            }
            Ok((_, Err(error))) => {
                tracing::warn!(%error, "full scan failed");
            }
            Err(error) => {
                tracing::error!(%error, "full scan panicked");
            }
        }
        Vec::new()
    }
}

/// Scans the lanes, so many per statement: with a statement for each, each has the full statement
/// timeout.
async fn scan_lanes(
    store: &Store,
    lanes: &[LowWatermark],
    lanes_per_statement: usize,
    dead: &[i64],
) -> Result<Vec<LaneScan>, StoreError> {
    let mut scans = Vec::with_capacity(lanes.len());
    for lanes in lanes.chunks(lanes_per_statement) {
        let found = tokio::time::timeout(LANE_SCAN_TIMEOUT, store.scan_lanes(lanes, dead)).await;
        scans.extend(found.map_err(|_| StoreError::Unavailable(sqlx::Error::PoolTimedOut))??);
    }
    Ok(scans)
}
