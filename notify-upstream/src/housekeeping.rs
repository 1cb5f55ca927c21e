//! What runs beside: moving what is due, forgetting what is old, looking whether the store is there.

use std::sync::Arc;
use std::time::Duration;

use postern_common::admin::Check;
use postern_common::clock::Timestamp;
use postern_common::database::Database;
use postern_common::{Clock, Shutdown};

use crate::accept::KEY_LIFE;
use crate::dispatch::{Board, Workers};
use crate::metrics::Metrics;
use crate::store::{Store, StoreError};
use crate::suppression::Suppression;

/// Moves delayed rows to the queue when they are due.
#[derive(Debug)]
pub struct Mover {
    /// The truth.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// Who is told.
    pub board: Arc<Board>,
}

/// Looks after the store.
#[derive(Debug)]
pub struct Housekeeper {
    /// The truth.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// Who died long ago is forgotten.
    pub workers: Arc<Workers>,
    /// The list of addresses that do not exist.
    pub suppression: Arc<Suppression>,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether the store answers.
    pub database: Check,
    /// The same store, to be asked.
    pub opened: Database,
    /// How long records are kept.
    pub retention: Duration,
}

/// Most rows of one move.
const MOVE: i64 = 500;
/// Rows of a lane are counted to this, so that counting costs the same however many wait.
const DEPTH_CAP: i64 = 100_000;

// === impl Mover ===

impl Mover {
    /// Moves what is due now. How many rows.
    ///
    /// # Errors
    /// The store's.
    pub async fn step(&self) -> Result<usize, StoreError> {
        let mut total = 0;
        loop {
            let moved = self.store.move_due(self.clock.now(), MOVE).await?;
            for (lane, order) in &moved {
                self.board.desk(lane.channel).note_moved(*lane, *order);
            }
            total += moved.len();
            if moved.len() < usize::try_from(MOVE).unwrap_or(usize::MAX) {
                return Ok(total);
            }
        }
    }

    /// Moves until the stop.
    pub async fn run(self, shutdown: Shutdown) {
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.begun() => return,
                _ = tick.tick() => {}
            }
            if let Err(error) = self.step().await {
                tracing::warn!(%error, "cannot move what is due");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

// === impl Housekeeper ===

impl Housekeeper {
    /// Keeps house until the stop.
    pub async fn run(self, shutdown: Shutdown) {
        let mut tick = tokio::time::interval(Duration::from_secs(2));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for round in 0_u64.. {
            tokio::select! {
                () = shutdown.begun() => return,
                _ = tick.tick() => {}
            }
            match self.opened.ping().await {
                Ok(()) => self.database.set_ok(),
                Err(_) => self.database.set_failed("the database does not answer"),
            }
            if let Err(error) = self.step(round).await {
                tracing::warn!(%error, "cannot keep house");
            }
        }
    }

    /// One round: the list of suppressed addresses every time, depths every fifth, old keys every thirtieth, the rest
    /// every thousandth and at the first.
    ///
    /// # Errors
    /// The store's.
    pub async fn step(&self, round: u64) -> Result<(), StoreError> {
        self.suppression.step().await?;
        let now = self.clock.now();
        let before = |life: Duration| Timestamp(now.0 - i64::try_from(life.as_millis()).unwrap_or(i64::MAX));
        if round.is_multiple_of(5) {
            for (lane, rows) in self.store.depths(DEPTH_CAP).await? {
                self.metrics.depth(lane, rows);
            }
        }
        if round.is_multiple_of(30) {
            self.store.forget_keys(before(KEY_LIFE)).await?;
        }
        if round.is_multiple_of(1000) {
            self.store.keep_house(now, before(self.retention)).await?;
            self.workers.forget_the_dead().await?;
        }
        Ok(())
    }
}
