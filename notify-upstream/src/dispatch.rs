//! Dispatch: from waiting rows to durable results.
//!
//! Rows that wait in the queue enter. One [`Dispatcher`] per channel is the only claimer of the
//! channel's lanes in this process. It takes permits, claims the first waiting rows of a lane, and
//! passes each row to the [`AttemptRunner`], which calls the provider outside any transaction.
//! Results leave through the [`ResultWriter`], which writes them in batches and releases a permit
//! only when its result is durable.
//!
//! Services are first in, first out; users take turns, each within its share of the permits, so that
//! the rows of one caller that cannot be sent yet neither hold a permit nor delay other callers.
//!
//! A dispatcher runs when rows were accepted, moved or released here, and when a permit is released.
//! A poll of each second finds all other rows: those of dead workers, and those that other replicas
//! have left waiting.
//!
//! Depends on `delivery`, `store`, `lease`, `metrics` and `notification`.

mod lane_head;
mod low_throttle;
mod permit;
mod plan;
mod result_writer;
mod runner;
mod state;

use std::sync::Arc;
use std::time::Duration;

use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::BreakerState;
use postern_core::trace::Tracer;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use low_throttle::{LowPriorityThrottle, ThrottleController};
pub(crate) use permit::{ChannelPermit, PermitPool};
pub(crate) use plan::{LaneBacklog, LaneTurn, plan_turns};
pub(crate) use result_writer::{CompletedJob, JobOutcome, ResultWriter};
pub(crate) use runner::{AttemptRunner, DeliveryJob};
pub(crate) use state::{ChannelFlow, ChannelState, DispatchState};

use crate::delivery::attempt::AttemptExecutor;
use crate::lease::{LeaseClock, WorkerRegistry};
use crate::metrics::NotifyMetrics;
use crate::notification::{Channel, Lane, OrderSequence, Priority};
use crate::principal::Principal;
use crate::store::{Claim, Claimed, Store, StoreError};
use lane_head::LaneHead;

/// Maximum rows of one claim. Each claim waits for a commit and a round trip.
const CLAIM_BATCH_SIZE: usize = 500;
/// Maximum number of claims of one pass, so that a pass terminates.
const MAX_CLAIMS_PER_PASS: usize = 64;
/// Interval of polls. It bounds the delay of a row that another replica has left waiting.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delays after failed claims.
const CLAIM_RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(100), POLL_INTERVAL);

/// The dispatcher of one channel.
pub(crate) struct Dispatcher {
    channel: Channel,
    context: DispatchContext,
    channel_state: Arc<ChannelState>,
    throttle: ThrottleController,
    heads: [LaneHead; Lane::PER_CHANNEL],
    /// The user whose turn was the last of each lane; empty before the first.
    last_users: [String; Lane::PER_CHANNEL],
}

/// The dependencies of intake and dispatch.
#[derive(Clone)]
pub(crate) struct DispatchContext {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) sequence: Arc<OrderSequence>,
    pub(crate) workers: Arc<WorkerRegistry>,
    /// The state shared by intake and dispatch.
    pub(crate) dispatch_state: Arc<DispatchState>,
    pub(crate) runner: Arc<AttemptRunner>,
    pub(crate) metrics: NotifyMetrics,
}

// === impl DispatchContext ===

impl DispatchContext {
    /// Registers a worker lease, and creates what intake and dispatch use, with the writer of the
    /// results. Nothing is claimed yet. After `stop` is cancelled no attempt is started.
    pub(crate) async fn start(
        executor: AttemptExecutor,
        dispatch_state: Arc<DispatchState>,
        metrics: NotifyMetrics,
        (clock, lease_clock): (Clock, LeaseClock),
        stop: CancellationToken,
        tracer: Option<Tracer>,
    ) -> (Self, ResultWriter) {
        let store = executor.store.clone();
        let workers = WorkerRegistry::start(store.clone(), clock.clone(), lease_clock).await;
        let (completed, completed_jobs) = mpsc::unbounded_channel();
        let context = Self {
            sequence: Arc::new(OrderSequence::new(clock.clone())),
            runner: Arc::new(AttemptRunner {
                executor,
                clock: clock.clone(),
                workers: Arc::clone(&workers),
                completed,
                tasks: TaskTracker::new(),
                stop,
                tracer,
            }),
            store,
            clock,
            workers,
            dispatch_state,
            metrics,
        };
        let writer = ResultWriter::new(&context, completed_jobs);
        (context, writer)
    }
}

// === impl Dispatcher ===

impl Dispatcher {
    pub(crate) fn new(channel: Channel, context: &DispatchContext) -> Self {
        Self {
            channel,
            context: context.clone(),
            channel_state: Arc::clone(context.dispatch_state.channel(channel)),
            throttle: ThrottleController::new(context.clock.clone()),
            heads: [LaneHead::new(); Lane::PER_CHANNEL],
            last_users: Default::default(),
        }
    }

    /// Polls and claims until shutdown.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(POLL_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut delays = CLAIM_RETRY_DELAYS.delays();
        loop {
            let is_tick = tokio::select! {
                // The rarest event first: under load a wake-up is always ready.
                biased;
                () = shutdown.cancelled() => return,
                _ = tick.tick() => true,
                () = self.channel_state.wait_for_wakeup() => false,
            };
            let outcome = async {
                if is_tick {
                    self.poll().await?;
                }
                self.claim_available().await
            };
            match outcome.await {
                Ok(_) => delays.reset(),
                Err(error) => {
                    for lane in Lane::of(self.channel) {
                        self.context.metrics.oldest(lane, f64::NAN);
                    }
                    postern_core::log_outage!("database", channel = self.channel.as_str(), %error, "claim failed");
                    delays.wait(&shutdown).await;
                }
            }
        }
    }

    /// Finds the oldest row of each lane that can be claimed.
    pub(crate) async fn poll(&mut self) -> Result<(), StoreError> {
        let dead = self.context.workers.dead();
        let lanes = Lane::of(self.channel);
        let permits = &self.channel_state.permits;
        let full = lanes.map(|lane| permits.user_turns(lane).0).concat();
        let found = self.context.store.lane_heads(&lanes, &dead, &full).await?;
        let now = self.context.clock.now();
        for lane in lanes {
            let order = found.iter().find(|(of, _)| *of == lane);
            let head = &mut self.heads[lane.index()];
            head.set(order.map(|(_, order)| *order), now);
            let age = head.age(now);
            let age_s = age.unwrap_or_default().as_secs_f64();
            self.context.metrics.oldest(lane, age_s);
            if age.is_some() {
                self.channel_state.mark_waiting(lane);
            }
        }
        self.update_throttle();
        Ok(())
    }

    /// Claims rows in strict order of priority while permits are free, and returns their number.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement. Rows of a claim whose response was lost
    /// are recovered like those of a dead worker.
    pub(crate) async fn claim_available(&mut self) -> Result<usize, StoreError> {
        let mut claimed = 0;
        for _ in 0..MAX_CLAIMS_PER_PASS {
            if self.context.runner.stop.is_cancelled()
                || !self
                    .context
                    .workers
                    .may_start(&self.context.workers.current())
            {
                return Ok(claimed);
            }
            // With an open circuit breaker, rows stay in the queue with their order and their
            // attempts. With a half-open one, a single row becomes the probe.
            let max_rows = match self
                .context
                .runner
                .executor
                .providers
                .breaker_state(self.channel)
            {
                BreakerState::Closed => CLAIM_BATCH_SIZE,
                BreakerState::HalfOpen => 1,
                BreakerState::Open(_) => return Ok(claimed),
            };
            let Some((turn, permits)) = self.next_turn(max_rows) else {
                return Ok(claimed);
            };
            let jobs = self.claim(turn.lane, permits).await?;
            let count = jobs.len();
            claimed += count;
            self.context.runner.start_all(jobs).await;
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
        let now = self.context.clock.now();
        let backlogs = Lane::of(self.channel).map(|lane| LaneBacklog {
            lane,
            waiting: waiting[lane.index()],
            age: self.heads[lane.index()].age(now),
        });
        let turns = plan_turns(&backlogs, self.throttle.state);
        self.channel_state.permits.take_for(&turns, max_rows)
    }

    /// Claims a row for each permit, in order: of services, and at most one of each user in turn.
    async fn claim(
        &mut self,
        lane: Lane,
        permits: Vec<ChannelPermit>,
    ) -> Result<Vec<DeliveryJob>, StoreError> {
        let began = self.context.clock.now();
        let signals = self.channel_state.signals(lane);
        let worker = self.context.workers.current();
        let dead = self.context.workers.dead();
        let (full, reserved) = self.channel_state.permits.user_turns(lane);
        let last_user = &mut self.last_users[lane.index()];
        let claim = Claim {
            lane,
            limit: permits.len(),
            for_users: reserved.min(permits.len()),
            full: &full,
            last_user,
            worker: worker.id,
            dead: &dead,
            now: began,
        };
        let rows = self.context.store.claim(&claim).await;
        let rows = rows.inspect_err(|_| self.context.workers.mark_suspect(&worker))?;
        let now = self.context.clock.now();
        self.throttle.record_claim(now.since(began));
        let is_user = |row: &&Claimed| Principal::is_user(&row.record.creator);
        let user = rows.iter().filter(is_user).map(|row| &row.record.creator);
        let user = user.max();
        let is_short = rows.len() < permits.len();
        let is_lane_end = is_short && user.is_none() && last_user.is_empty();
        // After the last user it is the first one's turn.
        *last_user = user.filter(|_| !is_short).cloned().unwrap_or_default();
        if is_lane_end {
            self.channel_state.mark_empty(lane, signals);
        }
        // Rows of services that wait are behind the last claimed one.
        let last = rows.iter().rfind(|row| !is_user(row));
        if is_lane_end || last.is_some() {
            let last = last.filter(|_| !is_lane_end).map(|row| row.order);
            self.heads[lane.index()].set(last, now);
        }
        // Permits without a row are dropped here.
        let jobs = rows.into_iter().zip(permits);
        let jobs = jobs.map(|(claimed, mut permit)| {
            permit.assign(&claimed.record.creator);
            DeliveryJob {
                claimed,
                worker: Arc::clone(&worker),
                _permit: permit,
            }
        });
        Ok(jobs.collect())
    }

    fn update_throttle(&mut self) {
        let waiting = self.channel_state.waiting();
        let now = self.context.clock.now();
        let is_counted = |lane: &Lane| lane.priority != Priority::Low && waiting[lane.index()];
        let counted = Lane::of(self.channel).into_iter().filter(is_counted);
        let oldest = counted
            .filter_map(|lane| self.heads[lane.index()].wait(now))
            .max();
        let providers = &self.context.runner.executor.providers;
        let breaker = providers.breaker_state(self.channel);
        let is_paused = providers.is_paused(self.channel);
        let next_probe = match breaker {
            BreakerState::Closed => None,
            BreakerState::HalfOpen => Some(now),
            BreakerState::Open(left) => Some(now.plus(left)),
        };
        let (before, oldest) = (self.throttle.state, oldest.unwrap_or_default());
        let low_throttle = self.throttle.update(oldest, breaker);
        if low_throttle != before {
            log_throttle(self.channel, low_throttle, oldest, breaker);
        }
        self.channel_state.set_flow(ChannelFlow {
            low_throttle,
            next_probe_at: next_probe.filter(|_| !is_paused),
            is_paused,
        });
        let metric = &self.context.metrics.events.low_throttle;
        let metric = metric.with_label_values(&[self.channel.as_str()]);
        metric.set(low_throttle.code());
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
        // The outage of the providers is logged.
        LowPriorityThrottle::Paused if !is_provider_available => {
            tracing::info!(
                channel,
                oldest_waiting_s,
                is_provider_available,
                "LOW notifications paused"
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

#[cfg(test)]
mod tests;
