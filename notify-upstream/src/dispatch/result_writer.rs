use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use postern_common::Clock;
use tokio::sync::mpsc;

use super::{DeliveryJob, DispatchContext, DispatchState};
use crate::lease::WorkerLease;
use crate::lease::WorkerRegistry;
use crate::metrics::NotifyMetrics;
use crate::notification::Channel;
use crate::store::SnapshotCache;
use crate::store::{ClaimRef, Finished, Next, ResultRow, Store, StoreError};

/// An attempt that is over, with its permit.
#[derive(Debug)]
pub(crate) struct CompletedJob {
    /// The row.
    pub(crate) job: DeliveryJob,
    /// How it completed.
    pub(crate) outcome: JobOutcome,
}

/// How an attempt completed.
#[derive(Debug)]
pub(crate) enum JobOutcome {
    /// With a line of history.
    Result(ResultRow, Next),
    /// It was never begun: the row goes unstarted to its place.
    Release,
}

/// How often rows are tried to be handed unstarted before their worker is given up.
const MAX_RELEASE_ATTEMPTS: u32 = 3;

/// Writes results in batches: what ends while two are being written makes up the next.
#[derive(Debug)]
pub(crate) struct ResultWriter {
    store: Store,
    clock: Clock,
    dispatch_state: Arc<DispatchState>,
    metrics: NotifyMetrics,
    snapshot_cache: Arc<SnapshotCache>,
    workers: Arc<WorkerRegistry>,
    completed: mpsc::UnboundedReceiver<CompletedJob>,
}

/// Most rows of one batch.
const RESULT_BATCH_SIZE: usize = 512;
/// Batches that are written at once.
const MAX_CONCURRENT_WRITES: usize = 2;
/// Bytes of a provider's words that are kept.
const MAX_DETAIL_BYTES: usize = 500;
/// Before the store is asked again after it did not answer.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);

// === impl ResultWriter ===

impl ResultWriter {
    /// Takes what the runner says has completed.
    #[must_use]
    pub(crate) fn new(
        context: &DispatchContext,
        completed: mpsc::UnboundedReceiver<CompletedJob>,
    ) -> Self {
        let DispatchContext {
            store,
            clock,
            dispatch_state,
            metrics,
            snapshot_cache,
            workers,
            ..
        } = context.clone();
        Self {
            store,
            clock,
            dispatch_state,
            metrics,
            snapshot_cache,
            workers,
            completed,
        }
    }

    /// Writes until the last runner is gone: while one batch waits for the disk the next is on its
    /// way.
    pub(crate) async fn run(mut self) {
        let mut completed = std::mem::replace(&mut self.completed, mpsc::unbounded_channel().1);
        let (mut batch, mut writing) = (
            Vec::with_capacity(RESULT_BATCH_SIZE),
            FuturesUnordered::new(),
        );
        loop {
            tokio::select! {
                count = completed.recv_many(&mut batch, self.dispatch_state.urgent_gate().batch_size(RESULT_BATCH_SIZE)), if writing.len() < MAX_CONCURRENT_WRITES => {
                    if count == 0 {
                        break;
                    }
                    writing.push(self.flush(std::mem::replace(&mut batch, Vec::with_capacity(RESULT_BATCH_SIZE))));
                }
                Some(()) = writing.next(), if !writing.is_empty() => {}
            }
        }
        while writing.next().await.is_some() {}
    }

    /// Writes what has completed by now. How many rows.
    #[cfg(test)]
    pub(crate) async fn drain(&mut self) -> usize {
        let mut written = 0;
        loop {
            let mut batch = Vec::new();
            let max_rows = self
                .dispatch_state
                .urgent_gate()
                .batch_size(RESULT_BATCH_SIZE);
            while let Some(completed) = (batch.len() < max_rows)
                .then(|| self.completed.try_recv().ok())
                .flatten()
            {
                batch.push(completed);
            }
            if batch.is_empty() {
                return written;
            }
            written += batch.len();
            self.flush(batch).await;
        }
    }

    async fn flush(&self, batch: Vec<CompletedJob>) {
        if let Some(priority) = batch
            .iter()
            .map(|completed| completed.job.claimed.record.lane.priority)
            .min()
        {
            self.dispatch_state
                .urgent_gate()
                .yield_to_urgent(priority)
                .await;
        }
        let (rows, workers): (Vec<Finished>, Vec<&WorkerLease>) = batch
            .iter()
            .filter_map(|completed| Some((finished(completed)?, &*completed.job.worker)))
            .unzip();
        if !rows.is_empty() {
            self.write(&rows, &workers).await;
            self.count(&batch);
        }
        self.release_unstarted(&batch).await;
        self.snapshot_cache
            .forget(batch.iter().map(|completed| completed.job.claimed.id));
        let affected = Channel::ALL.map(|channel| {
            batch
                .iter()
                .any(|completed| completed.job.claimed.record.lane.channel == channel)
        });
        // Only now are the permits free: the results are durable.
        drop(batch);
        for (channel, _) in Channel::ALL
            .into_iter()
            .zip(affected)
            .filter(|(_, affected)| *affected)
        {
            self.dispatch_state.channel(channel).wake();
        }
    }

    /// Gives unstarted what was not begun, to places that were claimed beyond already: they are
    /// looked at at once, or, where the answer was lost, with the next scan_lanes. What the store
    /// does not take unstarted is rescued like a dead worker's.
    async fn release_unstarted(&self, batch: &[CompletedJob]) {
        let unstarted = || {
            batch
                .iter()
                .filter(|completed| matches!(completed.outcome, JobOutcome::Release))
                .map(|completed| &completed.job)
        };
        let rows: Vec<_> = unstarted()
            .map(|job| ClaimRef {
                id: job.claimed.id,
                fence: job.claimed.fence,
            })
            .collect();
        if rows.is_empty() {
            return;
        }
        let mut wait = MIN_RETRY_DELAY;
        for left in (0..MAX_RELEASE_ATTEMPTS).rev() {
            match self.store.release(&rows).await {
                Ok(places) => {
                    places
                        .into_iter()
                        .for_each(|place| self.dispatch_state.note_moved(place.lane, place.order));
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
        unstarted().for_each(|job| self.workers.doubt(&job.worker));
    }

    /// Writes a batch, however long the store is away. If others have taken the rows over
    /// meanwhile, their fences have moved on and the rows are left alone.
    async fn write(&self, rows: &[Finished], workers: &[&WorkerLease]) {
        let mut wait = MIN_RETRY_DELAY;
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

    fn count(&self, batch: &[CompletedJob]) {
        let now = self.clock.now();
        self.metrics
            .record_results(batch.iter().filter_map(|completed| {
                let JobOutcome::Result(result, next) = &completed.outcome else {
                    return None;
                };
                let record = &completed.job.claimed.record;
                next.is_recorded()
                    .then(|| (record.lane, result, now.since(record.created_at)))
            }));
    }
}

fn finished(completed: &CompletedJob) -> Option<Finished> {
    let JobOutcome::Result(result, next) = &completed.outcome else {
        return None;
    };
    let claimed = &completed.job.claimed;
    let lane = claimed.record.lane;
    let lane = if next.due().is_some() {
        lane.retries()
    } else {
        lane
    };
    let mut result = result.clone();
    result.detail = result.detail.map(|detail| sanitized(&detail));
    Some(Finished {
        id: claimed.id,
        fence: claimed.fence,
        worker: completed.job.worker.id(),
        lane,
        result,
        next: *next,
    })
}

/// A provider's words, short and printable: no store refuses them.
fn sanitized(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= MAX_DETAIL_BYTES).then_some(c)
        })
        .collect()
}
