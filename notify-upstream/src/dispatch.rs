//! From the queue to the providers.
//!
//! One [`Dispatcher`] per channel is the only claimer of the channel's lanes. It takes permits
//! before it claims, keeps a cursor per lane, and hands each row to the [`Runner`], which calls the
//! provider outside any transaction. The
//! [`Finisher`] writes results in batches and frees a permit only when its result is durable.

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

pub(crate) use low_throttle::{Gate, GateState};
pub(crate) use permit::{Permit, Permits};
pub(crate) use plan::{Sight, Turn, plan};
pub(crate) use result_writer::{Ended, Ending, Finisher};
pub(crate) use runner::{Job, Runner};
pub(crate) use state::{Board, Desk, Flow};
pub(crate) use urgent_gate::Precedence;
pub(crate) use wakeup::Voice;

use crate::delivery::pool::Standing;
use crate::lease::Workers;
use crate::metrics::Metrics;
use crate::notification::OrderSequence;
use crate::notification::{Channel, Lane, Order, Priority, order_at, order_time};
use crate::store::Recent;
use crate::store::{Claim, LaneMark, Store, StoreError, Survey};
use full_scan::WholeLook;
use lane_cursor::LaneState;

/// Most rows of one claim. Each claim waits for the disk, and for the answer.
const CLAIM: usize = 500;
/// Most claims of one pass, so that a pass ends.
const CLAIMS_PER_PASS: usize = 64;
/// A transaction of another replica that commits this long after it took its orders is seen with
/// the next look; one that commits later, with the next look from the beginning.
const LATE_COMMIT: Duration = Duration::from_secs(2);
/// What was accepted longer ago has been committed, or never will be: the server ends a statement
/// after 10 s.
const SETTLED: Duration = Duration::from_secs(15);
/// After so many looks the store is told where the lanes begin.
const LOOKS_PER_MARK: u32 = 15;

/// The claimer of one channel's lanes.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    channel: Channel,
    store: Store,
    clock: Clock,
    workers: Arc<Workers>,
    desk: Arc<Desk>,
    precedence: Arc<Precedence>,
    runner: Arc<Runner>,
    metrics: Metrics,
    gate: Gate,
    lanes: [LaneState; Lane::PER_CHANNEL],
    surveys: u32,
    /// What the store was last told of where each lane begins.
    kept: [Order; Lane::PER_CHANNEL],
    whole_look: WholeLook,
    recent: Arc<Recent>,
}

/// What acceptance and dispatch work with.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    /// The truth.
    pub(crate) store: Store,
    /// The time.
    pub(crate) clock: Clock,
    /// Orders and ids.
    pub(crate) sequence: Arc<OrderSequence>,
    /// Who we are.
    pub(crate) workers: Arc<Workers>,
    /// What acceptance and dispatch know of each other.
    pub(crate) board: Arc<Board>,
    /// Who delivers.
    pub(crate) runner: Arc<Runner>,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// What was read lately, and is forgotten when it is written about.
    pub(crate) recent: Arc<Recent>,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// A claimer that has seen nothing yet.
    #[must_use]
    pub(crate) fn new(channel: Channel, means: &Means) -> Self {
        Self {
            channel,
            store: means.store.clone(),
            clock: means.clock.clone(),
            workers: Arc::clone(&means.workers),
            desk: Arc::clone(means.board.desk(channel)),
            precedence: Arc::clone(means.board.precedence()),
            runner: Arc::clone(&means.runner),
            metrics: means.metrics.clone(),
            gate: Gate::new(means.clock.clone()),
            lanes: [LaneState::default(); Lane::PER_CHANNEL],
            surveys: 0,
            kept: [0; Lane::PER_CHANNEL],
            whole_look: WholeLook::new(&means.store, &means.board),
            recent: Arc::clone(&means.recent),
        }
    }

    /// Claims whenever there is something and somebody to do it, until the stop.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut survey = tokio::time::interval(Duration::from_secs(1));
        survey.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let look = tokio::select! {
                // Rarest first: where much comes, somebody always calls.
                biased;
                () = shutdown.cancelled() => return,
                _ = survey.tick() => true,
                found = self.whole_look.found() => {
                    self.note_found_below(&found);
                    false
                }
                () = self.desk.woken() => false,
            };
            let outcome = async {
                if look || self.surveys == 0 {
                    self.survey().await?;
                    self.whole_look
                        .begin(self.marks(Some(0)), self.workers.dead());
                }
                self.pass().await
            };
            if let Err(error) = outcome.await {
                tracing::warn!(channel = self.channel.as_str(), %error, "cannot claim");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Looks at every lane: what waits, and what was overlooked below the cursor: committed late by
    /// another replica, given back, or leased by a worker that has died since. The first look
    /// begins where the store says that the lanes do.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn survey(&mut self) -> Result<(), StoreError> {
        if self.surveys == 0 {
            self.begin_at_the_marks().await;
        }
        let found = self
            .store
            .survey(&self.marks(None), &self.workers.dead())
            .await?;
        self.surveys = self.surveys.wrapping_add(1);
        let (recent, settled) = (self.place_before(LATE_COMMIT), self.place_before(SETTLED));
        let now = self.clock.now();
        for survey in found {
            let state = &mut self.lanes[survey.lane.index()];
            state.step_back(survey.overlooked, now);
            state.low = survey
                .lowest
                .unwrap_or(Order::MAX)
                .min(recent)
                .min(state.cursor);
            state.set_head(survey.overlooked.or(survey.head), now);
            if state.head().is_none() {
                // What was born leased is nobody's to claim, and is not stepped over for ever.
                state.advance(settled);
            }
            let age = state.head().map(|head| now.since(order_time(head)));
            self.metrics.oldest(survey.lane, age.unwrap_or_default());
            if age.is_some() {
                self.desk.mark_waiting(survey.lane);
            }
        }
        self.look_at_the_gate();
        if self.surveys.is_multiple_of(LOOKS_PER_MARK) {
            self.keep_marks().await;
        }
        Ok(())
    }

    /// Where each lane is looked at, from what is known to be its lowest place or from another one.
    fn marks(&self, low: Option<Order>) -> [LaneMark; Lane::PER_CHANNEL] {
        Lane::of(self.channel).map(|lane| {
            let state = self.lanes[lane.index()];
            LaneMark {
                lane,
                low: low.unwrap_or(state.low),
                cursor: state.cursor,
            }
        })
    }

    /// A process that starts does not step over all that was claimed before it, where it is known;
    /// a place that was found meanwhile stays.
    async fn begin_at_the_marks(&mut self) {
        let marks = self.store.lane_marks(self.channel).await.unwrap_or_else(|error| {
            tracing::warn!(channel = self.channel.as_str(), %error, "cannot read where the lanes begin");
            Vec::new()
        });
        for (lane, low) in marks {
            let low = low.min(self.place_before(LATE_COMMIT));
            let state = &mut self.lanes[lane.index()];
            if state.cursor == 0 && state.head().is_none() {
                (state.low, state.cursor) = (low, low - 1);
            }
        }
    }

    /// The place of what was accepted so long ago.
    fn place_before(&self, ago: Duration) -> Order {
        order_at(self.clock.now()) - order_at_duration(ago)
    }

    async fn keep_marks(&mut self) {
        let lows = self.lanes.map(|state| state.low);
        if lows == self.kept {
            return;
        }
        match self.store.keep_lane_marks(&self.marks(None)).await {
            Ok(()) => self.kept = lows,
            Err(error) => {
                tracing::warn!(channel = self.channel.as_str(), %error, "cannot keep where the lanes begin");
            }
        }
    }

    /// What a look from the beginning found is looked at from now on.
    fn note_found_below(&mut self, found: &[Survey]) {
        let now = self.clock.now();
        for survey in found {
            let state = &mut self.lanes[survey.lane.index()];
            state.step_back(survey.overlooked, now);
            state.low = state.low.min(survey.lowest.unwrap_or(Order::MAX));
            if survey.overlooked.is_some() {
                self.desk.mark_waiting(survey.lane);
            }
        }
    }

    /// Claims, in strict order, as much as there are permits for. How many rows were claimed.
    ///
    /// # Errors
    /// The store's. What a claim took that we did not hear of is rescued like a dead worker's.
    pub(crate) async fn pass(&mut self) -> Result<usize, StoreError> {
        // Claimed and not begun: they begin while the next claim is under way.
        let mut hand = Vec::new();
        let outcome = self.claims(&mut hand).await;
        self.runner.start_all(hand).await;
        outcome
    }

    async fn claims(&mut self, hand: &mut Vec<Job>) -> Result<usize, StoreError> {
        let mut claimed = 0;
        for _ in 0..CLAIMS_PER_PASS {
            if self.runner.is_stopping() || !self.workers.holds(&self.workers.current()) {
                return Ok(claimed);
            }
            // What nobody can carry stays where it is, in order and with its attempts; one goes to
            // see.
            let most = match self.runner.standing(self.channel) {
                Standing::Closed => self.precedence.most(CLAIM),
                Standing::Due => 1,
                Standing::Open(_) => return Ok(claimed),
            };
            let Some((turn, permits)) = self.next_turn(most) else {
                return Ok(claimed);
            };
            let runner = Arc::clone(&self.runner);
            let begun = runner.start_all(std::mem::take(hand));
            let (outcome, ()) = tokio::join!(self.claim(turn.lane, permits), begun);
            let (jobs, end) = outcome?;
            let count = jobs.len();
            claimed += count;
            *hand = jobs;
            if let Some(signals) = end {
                // Nobody who comes after them is born leased before they have begun.
                runner.start_all(std::mem::take(hand)).await;
                self.desk.seen_to_the_end(turn.lane, signals);
            }
            if most == 1 && count == 1 {
                return Ok(claimed);
            }
        }
        self.desk.wake();
        Ok(claimed)
    }

    /// The lane whose turn it is, with at most so many permits for it.
    fn next_turn(&self, most: usize) -> Option<(Turn, Vec<Permit>)> {
        let waiting = self.desk.waiting();
        let now = self.clock.now();
        let sights = Lane::of(self.channel).map(|lane| Sight {
            lane,
            waiting: waiting[lane.index()],
            age: self.lanes[lane.index()]
                .head()
                .map(|head| now.since(order_time(head))),
        });
        self.desk
            .permits()
            .take_for(&plan(&sights, self.gate.state()), most)
    }

    /// Rows for these permits, in order; and, where the lane ends with them, the signals that had
    /// been given before.
    async fn claim(
        &mut self,
        lane: Lane,
        permits: Vec<Permit>,
    ) -> Result<(Vec<Job>, Option<u64>), StoreError> {
        self.precedence.make_way(lane.priority).await;
        let began = self.clock.now();
        // After the permits were taken: those of what was handed back are free only when its place
        // is noted.
        self.step_back_for_moved();
        let signals = self.desk.signals(lane);
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
        self.gate.note_claim(self.clock.now().since(began));
        let (count, wanted) = (rows.len(), permits.len());
        self.precedence.note(lane.priority, count);
        let last = rows.last().map(|row| row.order);
        self.lanes[lane.index()].claimed(last, count < wanted, self.clock.now());
        self.recent.forget(rows.iter().map(|row| row.id));
        // Permits that found no row are free at once.
        let jobs = rows.into_iter().zip(permits);
        let jobs = jobs.map(|(claimed, permit)| Job {
            claimed,
            worker: Arc::clone(&worker),
            _permit: permit,
        });
        Ok((jobs.collect(), (count < wanted).then_some(signals)))
    }

    /// What came from the delayed rows may stand below the cursor.
    fn step_back_for_moved(&mut self) {
        let now = self.clock.now();
        for (state, moved) in self.lanes.iter_mut().zip(self.desk.take_moved()) {
            state.step_back(moved, now);
        }
    }

    fn look_at_the_gate(&mut self) {
        let waiting = self.desk.waiting();
        let now = self.clock.now();
        let oldest = Lane::of(self.channel)
            .into_iter()
            .filter(|lane| lane.priority != Priority::Low && waiting[lane.index()])
            .filter_map(|lane| self.lanes[lane.index()].waited(now))
            .max();
        let trouble = self.runner.standing(self.channel);
        self.desk.set_next_probe(match trouble {
            Standing::Closed => None,
            Standing::Due => Some(now),
            Standing::Open(left) => Some(now.plus(left)),
        });
        let state = self.gate.look(oldest.unwrap_or_default(), trouble);
        self.desk.set_gate(state);
        self.metrics.gate(self.channel, state.code());
    }
}

fn order_at_duration(duration: Duration) -> Order {
    order_at(Timestamp(0).plus(duration))
}

#[cfg(test)]
mod tests;
