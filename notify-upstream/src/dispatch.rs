//! From the queue to the providers.
//!
//! One [`Dispatcher`] per channel is the only claimer of the channel's lanes. It takes permits
//! before it claim_lanes, keeps a cursor per lane, and hands each row to the [`AttemptRunner`],
//! which calls the provider outside any transaction. The
//! [`ResultWriter`] writes results in batches and frees a permit only when its result is durable.

mod full_scan;
mod lane_cursor;
mod low_throttle;
mod permit;
mod plan;
mod result_writer;
mod runner;
mod state;
mod urgent_gate;
mod wakeup;

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::clock::Timestamp;

pub(crate) use low_throttle::{LowPriorityThrottle, ThrottleController};
pub(crate) use permit::{ChannelPermit, PermitPool};
pub(crate) use plan::{LaneBacklog, LaneTurn, plan_turns};
pub(crate) use result_writer::{CompletedJob, JobOutcome, ResultWriter};
pub(crate) use runner::{AttemptRunner, DeliveryJob};
pub(crate) use state::{ChannelFlow, ChannelState, DispatchState};
pub(crate) use urgent_gate::UrgentWriteGate;
pub(crate) use wakeup::WakeupPublisher;

use crate::delivery::pool::BreakerState;
use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::notification::OrderSequence;
use crate::notification::{Channel, Lane, Order, Priority, order_at, order_time};
use crate::store::SnapshotCache;
use crate::store::{Claim, LanePosition, LaneScan, LowWatermark, Store, StoreError};
use full_scan::FullScan;
use lane_cursor::LaneCursor;

/// Most rows of one claim. Each claim waits for the disk, and for the answer.
const CLAIM_BATCH_SIZE: usize = 500;
/// Most claim_lanes of one pass, so that a pass ends.
const MAX_CLAIMS_PER_PASS: usize = 64;
/// A transaction of another replica that commits this long after it took its orders is seen with
/// the next scan_due; one that commits later, with the next scan_due from the beginning.
const COMMIT_LAG: Duration = Duration::from_secs(2);
/// What was accepted longer ago has been committed, or never will be: the server ends a statement
/// after 10 s.
const COMMIT_HORIZON: Duration = Duration::from_secs(15);
/// After so many looks the store is told where the lanes begin.
const SCANS_PER_WATERMARK_SAVE: u32 = 15;

/// The claimer of one channel's lanes.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    channel: Channel,
    store: Store,
    clock: Clock,
    workers: Arc<WorkerRegistry>,
    channel_state: Arc<ChannelState>,
    urgent_gate: Arc<UrgentWriteGate>,
    runner: Arc<AttemptRunner>,
    metrics: NotifyMetrics,
    throttle: ThrottleController,
    lanes: [LaneCursor; Lane::PER_CHANNEL],
    scans: u32,
    /// What the store was last told of where each lane begins.
    saved_low: [Order; Lane::PER_CHANNEL],
    full_scan: FullScan,
    snapshot_cache: Arc<SnapshotCache>,
}

/// What acceptance and dispatch work with.
#[derive(Clone, Debug)]
pub(crate) struct DispatchContext {
    /// The truth.
    pub(crate) store: Store,
    /// The time.
    pub(crate) clock: Clock,
    /// Orders and ids.
    pub(crate) sequence: Arc<OrderSequence>,
    /// Who we are.
    pub(crate) workers: Arc<WorkerRegistry>,
    /// What acceptance and dispatch know of each other.
    pub(crate) dispatch_state: Arc<DispatchState>,
    /// Who delivers.
    pub(crate) runner: Arc<AttemptRunner>,
    /// What is counted.
    pub(crate) metrics: NotifyMetrics,
    /// What was read lately, and is forgotten when it is written about.
    pub(crate) snapshot_cache: Arc<SnapshotCache>,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// A claimer that has seen nothing yet.
    #[must_use]
    pub(crate) fn new(channel: Channel, context: &DispatchContext) -> Self {
        Self {
            channel,
            store: context.store.clone(),
            clock: context.clock.clone(),
            workers: Arc::clone(&context.workers),
            channel_state: Arc::clone(context.dispatch_state.channel(channel)),
            urgent_gate: Arc::clone(context.dispatch_state.urgent_gate()),
            runner: Arc::clone(&context.runner),
            metrics: context.metrics.clone(),
            throttle: ThrottleController::new(context.clock.clone()),
            lanes: [LaneCursor::default(); Lane::PER_CHANNEL],
            scans: 0,
            saved_low: [0; Lane::PER_CHANNEL],
            full_scan: FullScan::new(&context.store, &context.dispatch_state),
            snapshot_cache: Arc::clone(&context.snapshot_cache),
        }
    }

    /// Claims whenever there is something and somebody to do it, until the stop.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut scan = tokio::time::interval(Duration::from_secs(1));
        scan.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let scan_due = tokio::select! {
                // Rarest first: where much comes, somebody always calls.
                biased;
                () = shutdown.cancelled() => return,
                _ = scan.tick() => true,
                found = self.full_scan.finished() => {
                    self.apply_full_scan(&found);
                    false
                }
                () = self.channel_state.wait_for_wakeup() => false,
            };
            let outcome = async {
                if scan_due || self.scans == 0 {
                    self.scan_lanes().await?;
                    self.full_scan
                        .begin(self.watermarks(Some(0)), self.workers.dead());
                }
                self.pass().await
            };
            if let Err(error) = outcome.await {
                tracing::warn!(channel = self.channel.as_str(), %error, "cannot claim");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Looks at every lane: what waits, and what was gap below the cursor: committed late by
    /// another replica, given back, or leased by a worker that has died since. The first scan_due
    /// begins where the store says that the lanes do.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn scan_lanes(&mut self) -> Result<(), StoreError> {
        if self.scans == 0 {
            self.restore_watermarks().await;
        }
        let found = self
            .store
            .scan_lanes(&self.watermarks(None), &self.workers.dead())
            .await?;
        self.scans = self.scans.wrapping_add(1);
        let (commit_lag, horizon) = (
            self.order_before(COMMIT_LAG),
            self.order_before(COMMIT_HORIZON),
        );
        let now = self.clock.now();
        for scan in found {
            let state = &mut self.lanes[scan.lane.index()];
            state.step_back(scan.gap, now);
            state.low = scan
                .lowest
                .unwrap_or(Order::MAX)
                .min(commit_lag)
                .min(state.cursor);
            state.set_head(scan.gap.or(scan.head), now);
            if state.head().is_none() {
                // What was born leased is nobody's to claim, and is not stepped over for ever.
                state.advance(horizon);
            }
            let age = state.head().map(|head| now.since(order_time(head)));
            self.metrics.oldest(scan.lane, age.unwrap_or_default());
            if age.is_some() {
                self.channel_state.mark_waiting(scan.lane);
            }
        }
        self.update_throttle();
        if self.scans.is_multiple_of(SCANS_PER_WATERMARK_SAVE) {
            self.save_watermarks().await;
        }
        Ok(())
    }

    /// Where each lane is looked at, from what is known to be its lowest place or from another one.
    fn watermarks(&self, low: Option<Order>) -> [LowWatermark; Lane::PER_CHANNEL] {
        Lane::of(self.channel).map(|lane| {
            let state = self.lanes[lane.index()];
            LowWatermark {
                lane,
                low: low.unwrap_or(state.low),
                cursor: state.cursor,
            }
        })
    }

    /// A process that starts does not step over all that was claimed before it, where it is known;
    /// a place that was found meanwhile stays.
    async fn restore_watermarks(&mut self) {
        let watermarks = self.store.low_watermarks(self.channel).await.unwrap_or_else(|error| {
            tracing::warn!(channel = self.channel.as_str(), %error, "cannot read where the lanes begin");
            Vec::new()
        });
        for LanePosition { lane, order } in watermarks {
            let low = order.min(self.order_before(COMMIT_LAG));
            let state = &mut self.lanes[lane.index()];
            if state.cursor == 0 && state.head().is_none() {
                (state.low, state.cursor) = (low, low - 1);
            }
        }
    }

    /// The place of what was accepted so long ago.
    fn order_before(&self, ago: Duration) -> Order {
        order_at(self.clock.now()) - order_span(ago)
    }

    async fn save_watermarks(&mut self) {
        let lows = self.lanes.map(|state| state.low);
        if lows == self.saved_low {
            return;
        }
        match self.store.save_low_watermarks(&self.watermarks(None)).await {
            Ok(()) => self.saved_low = lows,
            Err(error) => {
                tracing::warn!(channel = self.channel.as_str(), %error, "cannot keep where the lanes begin");
            }
        }
    }

    /// What a scan_due from the beginning found is looked at from now on.
    fn apply_full_scan(&mut self, found: &[LaneScan]) {
        let now = self.clock.now();
        for scan in found {
            let state = &mut self.lanes[scan.lane.index()];
            state.step_back(scan.gap, now);
            state.low = state.low.min(scan.lowest.unwrap_or(Order::MAX));
            if scan.gap.is_some() {
                self.channel_state.mark_waiting(scan.lane);
            }
        }
    }

    /// Claims, in strict order, as much as there are permits for. How many rows were claimed.
    ///
    /// # Errors
    /// The store's. What a claim took that we did not hear of is rescued like a dead worker's.
    pub(crate) async fn pass(&mut self) -> Result<usize, StoreError> {
        // Claimed and not begun: they begin while the next claim is under way.
        let mut unstarted = Vec::new();
        let outcome = self.claim_lanes(&mut unstarted).await;
        self.runner.start_all(unstarted).await;
        outcome
    }

    async fn claim_lanes(&mut self, unstarted: &mut Vec<DeliveryJob>) -> Result<usize, StoreError> {
        let mut claimed = 0;
        for _ in 0..MAX_CLAIMS_PER_PASS {
            if self.runner.is_stopping() || !self.workers.holds(&self.workers.current()) {
                return Ok(claimed);
            }
            // What nobody can carry stays where it is, in order and with its attempts; one goes to
            // see.
            let max_rows = match self.runner.breaker_state(self.channel) {
                BreakerState::Closed => self.urgent_gate.batch_size(CLAIM_BATCH_SIZE),
                BreakerState::HalfOpen => 1,
                BreakerState::Open(_) => return Ok(claimed),
            };
            let Some((turn, permits)) = self.next_turn(max_rows) else {
                return Ok(claimed);
            };
            let runner = Arc::clone(&self.runner);
            let begun = runner.start_all(std::mem::take(unstarted));
            let (outcome, ()) = tokio::join!(self.claim(turn.lane, permits), begun);
            let (jobs, end) = outcome?;
            let count = jobs.len();
            claimed += count;
            *unstarted = jobs;
            if let Some(signals) = end {
                // Nobody who comes after them is born leased before they have begun.
                runner.start_all(std::mem::take(unstarted)).await;
                self.channel_state.mark_scanned(turn.lane, signals);
            }
            if max_rows == 1 && count == 1 {
                return Ok(claimed);
            }
        }
        self.channel_state.wake();
        Ok(claimed)
    }

    /// The lane whose turn it is, with at max_rows so many permits for it.
    fn next_turn(&self, max_rows: usize) -> Option<(LaneTurn, Vec<ChannelPermit>)> {
        let waiting = self.channel_state.waiting();
        let now = self.clock.now();
        let backlogs = Lane::of(self.channel).map(|lane| LaneBacklog {
            lane,
            waiting: waiting[lane.index()],
            age: self.lanes[lane.index()]
                .head()
                .map(|head| now.since(order_time(head))),
        });
        self.channel_state
            .permits()
            .take_for(&plan_turns(&backlogs, self.throttle.state()), max_rows)
    }

    /// Rows for these permits, in order; and, where the lane ends with them, the signals that had
    /// been given before.
    async fn claim(
        &mut self,
        lane: Lane,
        permits: Vec<ChannelPermit>,
    ) -> Result<(Vec<DeliveryJob>, Option<u64>), StoreError> {
        self.urgent_gate.yield_to_urgent(lane.priority).await;
        let began = self.clock.now();
        // After the permits were taken: those of what was handed back are free only when its place
        // is noted.
        self.apply_moved_rows();
        let signals = self.channel_state.signals(lane);
        let worker = self.workers.current();
        let dead = self.workers.dead();
        let claim = Claim {
            lane,
            after: self.lanes[lane.index()].cursor,
            limit: i64::try_from(permits.len()).unwrap_or(i64::MAX),
            worker: worker.id(),
            dead: &dead,
            now: began,
        };
        let rows = match self.store.claim(&claim).await {
            Ok(rows) => rows,
            Err(error) => {
                self.workers.doubt(&worker);
                return Err(error);
            }
        };
        self.throttle.record_claim(self.clock.now().since(began));
        let (count, wanted) = (rows.len(), permits.len());
        self.urgent_gate.record(lane.priority, count);
        let last = rows.last().map(|row| row.order);
        self.lanes[lane.index()].claimed(last, count < wanted, self.clock.now());
        self.snapshot_cache.forget(rows.iter().map(|row| row.id));
        // PermitPool that found no row are free at once.
        let jobs = rows.into_iter().zip(permits);
        let jobs = jobs.map(|(claimed, permit)| DeliveryJob {
            claimed,
            worker: Arc::clone(&worker),
            _permit: permit,
        });
        Ok((jobs.collect(), (count < wanted).then_some(signals)))
    }

    /// What came from the delayed rows may stand below the cursor.
    fn apply_moved_rows(&mut self) {
        let now = self.clock.now();
        for (state, moved) in self.lanes.iter_mut().zip(self.channel_state.take_moved()) {
            state.step_back(moved, now);
        }
    }

    fn update_throttle(&mut self) {
        let waiting = self.channel_state.waiting();
        let now = self.clock.now();
        let oldest = Lane::of(self.channel)
            .into_iter()
            .filter(|lane| lane.priority != Priority::Low && waiting[lane.index()])
            .filter_map(|lane| self.lanes[lane.index()].waited(now))
            .max();
        let breaker = self.runner.breaker_state(self.channel);
        self.channel_state.set_next_probe(match breaker {
            BreakerState::Closed => None,
            BreakerState::HalfOpen => Some(now),
            BreakerState::Open(left) => Some(now.plus(left)),
        });
        let state = self.throttle.update(oldest.unwrap_or_default(), breaker);
        self.channel_state.set_low_throttle(state);
        self.metrics.gate(self.channel, state.code());
    }
}

fn order_span(duration: Duration) -> Order {
    order_at(Timestamp(0).plus(duration))
}

#[cfg(test)]
mod tests;
