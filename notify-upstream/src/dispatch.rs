//! Dispatch: from waiting rows to durable results.
//!
//! Rows that wait in the queue enter. One [`Dispatcher`] per channel is the only claimer of the
//! channel's lanes in this process. It takes permits before it claims, keeps a cursor per lane, and
//! passes each row to the [`AttemptRunner`], which calls the provider outside any transaction.
//! Results leave through the [`ResultWriter`], which writes them in batches and releases a permit
//! only when its result is durable.
//!
//! Depends on `delivery`, `store`, `lease`, `metrics` and `notification`.

mod full_scan;
mod lane_cursor;
mod low_throttle;
mod permit;
mod plan;
mod replica_state;
mod result_writer;
mod runner;
mod scan_schedule;
mod state;
mod urgent_gate;
mod wakeup;

use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::circuit_breaker::BreakerState;
use postern_common::clock::Timestamp;

pub(crate) use low_throttle::{LowPriorityThrottle, ThrottleController};
pub(crate) use permit::{ChannelPermit, PermitPool};
pub(crate) use plan::{LaneBacklog, LaneTurn, plan_turns};
pub(crate) use replica_state::ReplicaState;
pub(crate) use result_writer::{CompletedJob, JobOutcome, ResultWriter};
pub(crate) use runner::{AttemptRunner, DeliveryJob};
pub(crate) use state::{ChannelFlow, ChannelState, DispatchState};
pub(crate) use urgent_gate::UrgentWriteGate;
pub(crate) use wakeup::WakeupPublisher;

use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::notification::OrderSequence;
use crate::notification::{Channel, Lane, Order, Priority, order_at, order_time};
use crate::store::{Claim, LanePosition, LaneScan, LowWatermark, Store, StoreError};
use full_scan::FullScan;
use lane_cursor::LaneCursor;
use scan_schedule::ScanSchedule;

/// Maximum rows of one claim. Each claim waits for a commit and a round trip.
const CLAIM_BATCH_SIZE: usize = 500;
/// Maximum number of claims of one pass, so that a pass terminates.
const MAX_CLAIMS_PER_PASS: usize = 64;
/// Commit delay of other replicas that the periodic scan allows for. A row that is committed later
/// after its order was assigned is found by the next full scan.
const COMMIT_LAG: Duration = Duration::from_secs(2);
/// Age after which a submission has been committed or never will be: the server ends a statement
/// after 10 s.
const COMMIT_HORIZON: Duration = Duration::from_secs(15);
/// Number of lane scans between two saves of the low watermarks.
const SCANS_PER_WATERMARK_SAVE: u32 = 15;

/// The dispatcher of one channel.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    channel: Channel,
    store: Store,
    clock: Clock,
    workers: Arc<WorkerRegistry>,
    channel_state: Arc<ChannelState>,
    dispatch_state: Arc<DispatchState>,
    urgent_gate: Arc<UrgentWriteGate>,
    runner: Arc<AttemptRunner>,
    metrics: NotifyMetrics,
    throttle: ThrottleController,
    lanes: [LaneCursor; Lane::PER_CHANNEL],
    scans: u32,
    /// The low watermark of each lane as last saved.
    saved_low: [Order; Lane::PER_CHANNEL],
    full_scan: FullScan,
    schedule: ScanSchedule,
}

/// The dependencies of intake and dispatch.
#[derive(Clone, Debug)]
pub(crate) struct DispatchContext {
    /// The store.
    pub(crate) store: Store,
    /// The clock.
    pub(crate) clock: Clock,
    /// The generator of orders and identifiers.
    pub(crate) sequence: Arc<OrderSequence>,
    /// The worker leases of this process.
    pub(crate) workers: Arc<WorkerRegistry>,
    /// The state shared by intake and dispatch.
    pub(crate) dispatch_state: Arc<DispatchState>,
    /// The runner of delivery attempts.
    pub(crate) runner: Arc<AttemptRunner>,
    /// The metrics.
    pub(crate) metrics: NotifyMetrics,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Creates a dispatcher with empty cursors.
    #[must_use]
    pub(crate) fn new(channel: Channel, context: &DispatchContext) -> Self {
        Self {
            channel,
            store: context.store.clone(),
            clock: context.clock.clone(),
            workers: Arc::clone(&context.workers),
            channel_state: Arc::clone(context.dispatch_state.channel(channel)),
            dispatch_state: Arc::clone(&context.dispatch_state),
            urgent_gate: Arc::clone(context.dispatch_state.urgent_gate()),
            runner: Arc::clone(&context.runner),
            metrics: context.metrics.clone(),
            throttle: ThrottleController::new(context.clock.clone()),
            lanes: [LaneCursor::default(); Lane::PER_CHANNEL],
            scans: 0,
            saved_low: [0; Lane::PER_CHANNEL],
            full_scan: FullScan::new(&context.store, &context.dispatch_state),
            schedule: ScanSchedule::default(),
        }
    }

    /// Scans and claims until shutdown.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut scan = tokio::time::interval(Duration::from_secs(1));
        scan.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_tick = tokio::select! {
                // The rarest event first: under load a wake-up is always ready.
                biased;
                () = shutdown.cancelled() => return,
                _ = scan.tick() => true,
                found = self.full_scan.finished() => {
                    self.apply_full_scan(&found);
                    false
                }
                () = self.channel_state.wait_for_wakeup() => self.is_scan_requested(),
            };
            let outcome = async {
                if is_tick || self.scans == 0 {
                    self.tick().await?;
                }
                self.claim_available().await
            };
            if let Err(error) = outcome.await {
                tracing::warn!(channel = self.channel.as_str(), %error, "claim failed");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Returns whether a scan was requested, which is then due.
    fn is_scan_requested(&mut self) -> bool {
        let is_requested = self.channel_state.take_scan_request();
        if is_requested {
            self.schedule = ScanSchedule::default();
        }
        is_requested
    }

    /// Scans the lanes if a scan is due. Otherwise only the throttle is updated, because the circuit
    /// breakers change without a row.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    async fn tick(&mut self) -> Result<(), StoreError> {
        let listening_since = self.dispatch_state.replica().listening_since();
        let dead = self.workers.dead();
        if self
            .schedule
            .is_due(&self.channel_state, listening_since, &dead)
        {
            self.scan_lanes().await?;
            let is_idle = listening_since.is_some() && !self.channel_state.is_busy();
            self.full_scan
                .start_if_due(self.watermarks(Some(0)), dead, is_idle);
        } else {
            self.update_throttle();
        }
        Ok(())
    }

    /// Scans all lanes for the first row beyond the cursor, and for gaps: rows at or below the
    /// cursor that were committed late by another replica, released, or leased by a worker that has
    /// died since. The first scan starts at the saved low watermarks.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn scan_lanes(&mut self) -> Result<(), StoreError> {
        if self.scans == 0 {
            self.restore_watermarks().await;
        }
        let (began, dead) = (Instant::now(), self.workers.dead());
        let found = self.store.scan_lanes(&self.watermarks(None), &dead).await?;
        let found_rows = found.iter().any(|scan| scan.gap.or(scan.head).is_some());
        self.schedule.record(began, found_rows, dead);
        self.scans = self.scans.wrapping_add(1);
        let (commit_lag, horizon) = (
            self.order_before(COMMIT_LAG),
            self.order_before(COMMIT_HORIZON),
        );
        let now = self.clock.now();
        for scan in found {
            let state = &mut self.lanes[scan.lane.index()];
            state.move_back(scan.gap, now);
            state.low = scan
                .lowest
                .unwrap_or(Order::MAX)
                .min(commit_lag)
                .min(state.cursor);
            state.set_head(scan.gap.or(scan.head), now);
            if state.head().is_none() {
                // Rows that were leased at acceptance are never claimed; the cursor advances past
                // them.
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

    /// Returns the start and the cursor of each lane: `low`, or the known low watermark.
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

    /// Starts the cursors at the saved low watermarks, so that a new process does not scan deleted
    /// rows. A position that was found meanwhile is kept.
    async fn restore_watermarks(&mut self) {
        let watermarks = self.store.low_watermarks(self.channel).await.unwrap_or_else(|error| {
            tracing::warn!(channel = self.channel.as_str(), %error, "low watermarks not loaded, scanning from the beginning");
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

    /// Returns the order of an acceptance the given time ago.
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
                tracing::warn!(channel = self.channel.as_str(), %error, "low watermarks not saved");
            }
        }
    }

    /// Applies the gaps that a full scan found.
    fn apply_full_scan(&mut self, found: &[LaneScan]) {
        let now = self.clock.now();
        for scan in found {
            let state = &mut self.lanes[scan.lane.index()];
            state.move_back(scan.gap, now);
            state.low = state.low.min(scan.lowest.unwrap_or(Order::MAX));
            if scan.gap.is_some() {
                self.channel_state.mark_waiting(scan.lane);
            }
        }
    }

    /// Claims rows in strict order of priority while permits are free, and returns their number.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement. Rows of a claim whose response was lost
    /// are recovered like those of a dead worker.
    pub(crate) async fn claim_available(&mut self) -> Result<usize, StoreError> {
        // Claimed rows that are not started yet. They start while the next claim is in progress.
        let mut unstarted = Vec::new();
        let outcome = self.claim_lanes(&mut unstarted).await;
        self.runner.start_all(unstarted).await;
        outcome
    }

    async fn claim_lanes(&mut self, unstarted: &mut Vec<DeliveryJob>) -> Result<usize, StoreError> {
        let mut claimed = 0;
        for _ in 0..MAX_CLAIMS_PER_PASS {
            if self.runner.is_stopping() || !self.workers.may_start(&self.workers.current()) {
                return Ok(claimed);
            }
            // With an open circuit breaker, rows stay in the queue with their order and their
            // attempts. With a half-open one, a single row becomes the probe.
            let max_rows = match self.runner.breaker_state(self.channel) {
                BreakerState::Closed => self.urgent_gate.batch_size(CLAIM_BATCH_SIZE),
                BreakerState::HalfOpen => 1,
                BreakerState::Open(_) => return Ok(claimed),
            };
            let Some((turn, permits)) = self.next_turn(max_rows) else {
                return Ok(claimed);
            };
            let runner = Arc::clone(&self.runner);
            let started = runner.start_all(std::mem::take(unstarted));
            let (outcome, ()) = tokio::join!(self.claim(turn.lane, permits), started);
            let (jobs, lane_end) = outcome?;
            let count = jobs.len();
            claimed += count;
            *unstarted = jobs;
            if let Some(signals) = lane_end {
                // Start the rows before the lane counts as scanned: a later submission must not be
                // leased at acceptance and overtake them.
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

    /// Returns the next lane to claim from, with at most `max_rows` permits.
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

    /// Claims a row for each permit, in order. If the lane ends with them, also returns the number
    /// of signals before the claim.
    async fn claim(
        &mut self,
        lane: Lane,
        permits: Vec<ChannelPermit>,
    ) -> Result<(Vec<DeliveryJob>, Option<u64>), StoreError> {
        self.urgent_gate.yield_to_urgent(lane.priority).await;
        let began = self.clock.now();
        // After the permits were taken: the permit of a released row is free only when its position
        // has been recorded.
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
                self.workers.mark_suspect(&worker);
                return Err(error);
            }
        };
        self.throttle.record_claim(self.clock.now().since(began));
        let (count, wanted) = (rows.len(), permits.len());
        self.urgent_gate.record(lane.priority, count);
        let last = rows.last().map(|row| row.order);
        self.lanes[lane.index()].record_claim(last, count < wanted, self.clock.now());
        // Permits without a row are dropped here.
        let jobs = rows.into_iter().zip(permits);
        let jobs = jobs.map(|(claimed, permit)| DeliveryJob {
            claimed,
            worker: Arc::clone(&worker),
            _permit: permit,
        });
        Ok((jobs.collect(), (count < wanted).then_some(signals)))
    }

    /// Moves cursors back to rows that were moved from the delayed rows to positions below them.
    fn apply_moved_rows(&mut self) {
        let now = self.clock.now();
        for (state, moved) in self.lanes.iter_mut().zip(self.channel_state.take_moved()) {
            state.move_back(moved, now);
        }
    }

    fn update_throttle(&mut self) {
        let waiting = self.channel_state.waiting();
        let now = self.clock.now();
        let oldest = Lane::of(self.channel)
            .into_iter()
            .filter(|lane| lane.priority != Priority::Low && waiting[lane.index()])
            .filter_map(|lane| self.lanes[lane.index()].head_wait(now))
            .max();
        let breaker = self.runner.breaker_state(self.channel);
        let is_paused = self.runner.is_paused(self.channel);
        self.channel_state.set_paused(is_paused);
        let next_probe = match breaker {
            BreakerState::Closed => None,
            BreakerState::HalfOpen => Some(now),
            BreakerState::Open(left) => Some(now.plus(left)),
        };
        self.channel_state
            .set_next_probe(next_probe.filter(|_| !is_paused));
        let (before, oldest) = (self.throttle.state(), oldest.unwrap_or_default());
        let state = self.throttle.update(oldest, breaker);
        if state != before {
            log_throttle(self.channel, state, oldest, breaker);
        }
        self.channel_state.set_low_throttle(state);
        self.metrics.low_throttle(self.channel, state.code());
    }
}

/// Logs a change of the throttling of LOW, with the conditions that decide about it.
fn log_throttle(
    channel: Channel,
    state: LowPriorityThrottle,
    oldest: Duration,
    breaker: BreakerState,
) {
    let (channel, oldest_waiting_s) = (channel.as_str(), oldest.as_secs());
    let is_provider_available = breaker == BreakerState::Closed;
    match state {
        LowPriorityThrottle::Off => {
            tracing::info!(channel, "LOW notifications resumed");
        }
        LowPriorityThrottle::Reduced => {
            tracing::info!(
                channel,
                oldest_waiting_s,
                is_provider_available,
                "LOW notifications reduced"
            );
        }
        LowPriorityThrottle::Paused => {
            tracing::warn!(
                channel,
                oldest_waiting_s,
                is_provider_available,
                "LOW notifications paused"
            );
        }
    }
}

fn order_span(duration: Duration) -> Order {
    order_at(Timestamp(0).plus(duration))
}

#[cfg(test)]
mod tests;
