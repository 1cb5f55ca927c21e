use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use postern_common::Clock;
use tokio::sync::mpsc;

use super::{Board, Job, Means};
use crate::lease::Worker;
use crate::lease::Workers;
use crate::metrics::Metrics;
use crate::notification::Channel;
use crate::store::Recent;
use crate::store::{Finished, Next, ResultRow, Store, StoreError};

/// An attempt that is over, with its permit.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The row.
    pub(crate) job: Job,
    /// How it ended.
    pub(crate) ending: Ending,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// With a line of history.
    Result(ResultRow, Next),
    /// It was never begun: the row goes back to its place.
    HandBack,
}

/// How often rows are tried to be handed back before their worker is given up.
const HAND_BACKS: u32 = 3;

/// Writes results in batches: what ends while two are being written makes up the next.
#[derive(Debug)]
pub(crate) struct Finisher {
    store: Store,
    clock: Clock,
    board: Arc<Board>,
    metrics: Metrics,
    recent: Arc<Recent>,
    workers: Arc<Workers>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

/// Most rows of one batch.
const BATCH: usize = 512;
/// Batches that are written at once.
const AT_ONCE: usize = 2;
/// Bytes of a provider's words that are kept.
const DETAIL: usize = 500;
/// Before the store is asked again after it did not answer.
const FIRST_WAIT: Duration = Duration::from_millis(50);

// === impl Finisher ===

impl Finisher {
    /// Takes what the runner says has ended.
    #[must_use]
    pub(crate) fn new(means: &Means, ended: mpsc::UnboundedReceiver<Ended>) -> Self {
        let Means {
            store,
            clock,
            board,
            metrics,
            recent,
            workers,
            ..
        } = means.clone();
        Self {
            store,
            clock,
            board,
            metrics,
            recent,
            workers,
            ended,
        }
    }

    /// Writes until the last runner is gone: while one batch waits for the disk the next is on its
    /// way.
    pub(crate) async fn run(mut self) {
        let mut ended = std::mem::replace(&mut self.ended, mpsc::unbounded_channel().1);
        let (mut batch, mut writing) = (Vec::with_capacity(BATCH), FuturesUnordered::new());
        loop {
            tokio::select! {
                count = ended.recv_many(&mut batch, self.board.precedence().most(BATCH)), if writing.len() < AT_ONCE => {
                    if count == 0 {
                        break;
                    }
                    writing.push(self.flush(std::mem::replace(&mut batch, Vec::with_capacity(BATCH))));
                }
                Some(()) = writing.next(), if !writing.is_empty() => {}
            }
        }
        while writing.next().await.is_some() {}
    }

    /// Writes what has ended by now. How many rows.
    #[cfg(test)]
    pub(crate) async fn drain(&mut self) -> usize {
        let mut written = 0;
        loop {
            let mut batch = Vec::new();
            let most = self.board.precedence().most(BATCH);
            while let Some(ended) = (batch.len() < most)
                .then(|| self.ended.try_recv().ok())
                .flatten()
            {
                batch.push(ended);
            }
            if batch.is_empty() {
                return written;
            }
            written += batch.len();
            self.flush(batch).await;
        }
    }

    async fn flush(&self, batch: Vec<Ended>) {
        if let Some(priority) = batch
            .iter()
            .map(|ended| ended.job.claimed.record.lane.priority)
            .min()
        {
            self.board.precedence().make_way(priority).await;
        }
        let (rows, writers): (Vec<Finished>, Vec<&Worker>) = batch
            .iter()
            .filter_map(|ended| Some((finished(ended)?, &*ended.job.worker)))
            .unzip();
        if !rows.is_empty() {
            self.write(&rows, &writers).await;
            self.count(&batch);
        }
        self.hand_back(&batch).await;
        self.recent
            .forget(batch.iter().map(|ended| ended.job.claimed.id));
        let touched = Channel::ALL.map(|channel| {
            batch
                .iter()
                .any(|ended| ended.job.claimed.record.lane.channel == channel)
        });
        // Only now are the permits free: the results are durable.
        drop(batch);
        for (channel, _) in Channel::ALL
            .into_iter()
            .zip(touched)
            .filter(|(_, touched)| *touched)
        {
            self.board.desk(channel).wake();
        }
    }

    /// Gives back what was not begun, to places that were claimed beyond already: they are looked
    /// at at once, or, where the answer was lost, with the next survey. What the store does not
    /// take back is rescued like a dead worker's.
    async fn hand_back(&self, batch: &[Ended]) {
        let back = || {
            batch
                .iter()
                .filter(|ended| matches!(ended.ending, Ending::HandBack))
                .map(|ended| &ended.job)
        };
        let rows: Vec<_> = back()
            .map(|job| (job.claimed.id, job.claimed.fence))
            .collect();
        if rows.is_empty() {
            return;
        }
        let mut wait = FIRST_WAIT;
        for left in (0..HAND_BACKS).rev() {
            match self.store.release(&rows).await {
                Ok(places) => {
                    places
                        .into_iter()
                        .for_each(|(lane, order)| self.board.note_moved(lane, order));
                    return;
                }
                Err(StoreError::Unavailable(error)) if left > 0 => {
                    tracing::warn!(%error, rows = rows.len(), "cannot hand back; trying again");
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => {
                    tracing::warn!(%error, rows = rows.len(), "cannot hand back; others take the rows over");
                    break;
                }
            }
        }
        back().for_each(|job| self.workers.doubt(&job.worker));
    }

    /// Writes a batch, however long the store is away. If others have taken the rows over
    /// meanwhile, their fences have moved on and the rows are left alone.
    async fn write(&self, rows: &[Finished], workers: &[&Worker]) {
        let mut wait = FIRST_WAIT;
        loop {
            match self.store.finish(rows).await {
                Ok(taken) => {
                    self.metrics.lease_lost(rows.len() - taken);
                    return;
                }
                Err(StoreError::Unavailable(error)) => {
                    tracing::warn!(%error, rows = rows.len(), "cannot write results; trying again");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(2));
                }
                Err(StoreError::Refused(error)) if rows.len() == 1 => {
                    tracing::error!(%error, id = %rows[0].id, "a result cannot be written; the row is taken over");
                    workers.iter().for_each(|worker| self.workers.doubt(worker));
                    return;
                }
                Err(StoreError::Refused(_)) => {
                    for (row, worker) in rows.iter().zip(workers) {
                        Box::pin(self.write(std::slice::from_ref(row), &[*worker])).await;
                    }
                    return;
                }
            }
        }
    }

    fn count(&self, batch: &[Ended]) {
        let now = self.clock.now();
        self.metrics.ended(batch.iter().filter_map(|ended| {
            let Ending::Result(result, next) = &ended.ending else {
                return None;
            };
            let record = &ended.job.claimed.record;
            next.is_told()
                .then(|| (record.lane, result, now.since(record.created_at)))
        }));
    }
}

fn finished(ended: &Ended) -> Option<Finished> {
    let Ending::Result(result, next) = &ended.ending else {
        return None;
    };
    let claimed = &ended.job.claimed;
    let lane = claimed.record.lane;
    let lane = if next.due().is_some() {
        lane.repeats()
    } else {
        lane
    };
    let mut result = result.clone();
    result.detail = result.detail.map(|detail| sanitised(&detail));
    Some(Finished {
        id: claimed.id,
        fence: claimed.fence,
        worker: ended.job.worker.id(),
        lane,
        result,
        next: *next,
    })
}

/// A provider's words, short and printable: no store refuses them.
fn sanitised(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= DETAIL).then_some(c)
        })
        .collect()
}
