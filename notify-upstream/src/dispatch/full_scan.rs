//! The look at a channel's lanes from their beginning. It finds what stands below the places that
//! are looked at every second: committed very late by another replica, or moved there by one that
//! has died. It goes on beside the claims, because over millions of dead rows it takes more than a
//! second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Board;
use crate::notification::Lane;
use crate::store::{LaneMark, Store, StoreError, Survey};

/// How long after the end of one the next begins.
const PAUSE: Duration = Duration::from_secs(15);
/// Or for so many times as long as it took: it takes at most a fifth of the time of one connection.
const PAUSES: u32 = 4;
/// The server ends a statement after 10 s; one that has not said so by then is gone.
const LANE_WITHIN: Duration = Duration::from_secs(12);

/// At most one look at a time, and when the next is due: by a clock that nobody sets.
#[derive(Debug)]
pub(super) struct WholeLook {
    store: Store,
    turns: Arc<Semaphore>,
    running: JoinSet<(Duration, Result<Vec<Survey>, StoreError>)>,
    due: Instant,
}

// === impl WholeLook ===

impl WholeLook {
    pub(super) fn new(store: &Store, board: &Board) -> Self {
        let turns = Arc::clone(&board.whole_looks);
        Self {
            store: store.clone(),
            turns,
            running: JoinSet::new(),
            due: Instant::now(),
        }
    }

    /// Begins one, when it is time and none is on its way.
    pub(super) fn begin(&mut self, marks: [LaneMark; Lane::PER_CHANNEL], dead: Arc<[i64]>) {
        if self.running.is_empty() && self.due <= Instant::now() {
            let (store, turns) = (self.store.clone(), Arc::clone(&self.turns));
            self.running.spawn(async move {
                let _turn = turns.acquire().await;
                let began = Instant::now();
                let found = look(&store, &marks, &dead).await;
                (began.elapsed(), found)
            });
        }
    }

    /// Waits for the one that is on its way, for ever if there is none; what it found.
    pub(super) async fn found(&mut self) -> Vec<Survey> {
        let Some(done) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        self.due = Instant::now() + PAUSE;
        match done {
            Ok((took, Ok(found))) => {
                self.due = Instant::now() + PAUSE.max(took * PAUSES);
                return found;
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
async fn look(store: &Store, marks: &[LaneMark], dead: &[i64]) -> Result<Vec<Survey>, StoreError> {
    let mut found = Vec::with_capacity(marks.len());
    for mark in marks {
        let lane =
            tokio::time::timeout(LANE_WITHIN, store.survey(std::slice::from_ref(mark), dead)).await;
        found.extend(lane.map_err(|_| StoreError::Unavailable(sqlx::Error::PoolTimedOut))??);
    }
    Ok(found)
}
