//! Batched writes of attempt results.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::group_commit::process_batches;
use postern_core::log_limit::LogLimit;
use tokio::sync::mpsc;

use super::{DeliveryJob, DispatchContext, DispatchState};
use crate::delivery::provider::MAX_DETAIL_BYTES;
use crate::delivery::redaction::redact;
use crate::lease::{WorkerLease, WorkerRegistry};
use crate::metrics::NotifyMetrics;
use crate::notification::Lane;
use crate::principal::Principal;
use crate::store::{Finished, Next, ResultRow, Store, printable};

/// A completed attempt with its permit.
pub(crate) struct CompletedJob {
    pub(crate) job: DeliveryJob,
    pub(crate) outcome: JobOutcome,
}

/// The outcome of a job.
pub(crate) enum JobOutcome {
    /// A result to be recorded, and what follows.
    Result(ResultRow, Next),
    /// The attempt was not started: the row is released to its position.
    Release,
}

/// Maximum number of attempts to release rows before their lease is given up.
const MAX_RELEASE_ATTEMPTS: u32 = 3;

/// Writes results in batches. Results that complete while two batches are being written form the
/// next batch.
pub(crate) struct ResultWriter {
    store: Store,
    clock: Clock,
    dispatch_state: Arc<DispatchState>,
    metrics: NotifyMetrics,
    workers: Arc<WorkerRegistry>,
    completed: mpsc::UnboundedReceiver<CompletedJob>,
    dead_letters: LogLimit,
}

/// Maximum rows of one batch.
const RESULT_BATCH_SIZE: usize = 512;
/// Maximum number of batches written concurrently.
const MAX_CONCURRENT_WRITES: usize = 2;
/// Maximum number of dead letters that are logged per 10 s.
const MAX_LOGGED_DEAD_LETTERS: u32 = 20;
/// Delays before the retries of a write.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

impl ResultWriter {
    pub(crate) fn new(
        context: &DispatchContext,
        completed: mpsc::UnboundedReceiver<CompletedJob>,
    ) -> Self {
        Self {
            store: context.store.clone(),
            clock: context.clock.clone(),
            dispatch_state: Arc::clone(&context.dispatch_state),
            metrics: context.metrics.clone(),
            workers: Arc::clone(&context.workers),
            completed,
            dead_letters: LogLimit::with_burst(MAX_LOGGED_DEAD_LETTERS),
        }
    }

    /// Writes results until all senders are dropped.
    pub(crate) async fn run(mut self) {
        let mut completed = std::mem::replace(&mut self.completed, mpsc::unbounded_channel().1);
        let receive = |cx: &mut Context<'_>, batch: &mut Vec<_>, limit| {
            completed.poll_recv_many(cx, batch, limit)
        };
        let flush = |batch| self.flush(batch);
        process_batches(receive, MAX_CONCURRENT_WRITES, RESULT_BATCH_SIZE, flush).await;
    }

    /// Writes all results that have completed, and returns their number.
    #[cfg(test)]
    pub(crate) async fn drain(&mut self) -> usize {
        use futures_util::FutureExt;

        let mut written = 0;
        loop {
            let mut batch = Vec::new();
            let received = self.completed.recv_many(&mut batch, RESULT_BATCH_SIZE);
            let received = received.now_or_never();
            if received.is_none_or(|count| count == 0) {
                return written;
            }
            written += batch.len();
            self.flush(batch).await;
        }
    }

    async fn flush(&self, batch: Vec<CompletedJob>) {
        let finished = |completed| Some((finished(completed)?, &*completed.job.worker));
        let finished = batch.iter().filter_map(finished);
        let (rows, workers): (Vec<Finished>, Vec<&WorkerLease>) = finished.unzip();
        if !rows.is_empty() {
            self.write(&rows, &workers).await;
            self.record(&batch);
        }
        self.release_unstarted(&batch).await;
        let records = batch.iter().map(|completed| &completed.job.claimed.record);
        let lanes = records.map(|record| (record.lane, Principal::is_user(&record.creator)));
        let lanes: Vec<_> = lanes.collect();
        // The results are durable: release the permits.
        drop(batch);
        for (lane, is_user) in lanes {
            if is_user {
                // Claims have left out the rows of users who had their share.
                self.mark_both_waiting(lane);
            } else {
                self.dispatch_state.channel(lane.channel).wake();
            }
        }
    }

    /// Records that rows wait in a lane or in that of its retries.
    fn mark_both_waiting(&self, lane: Lane) {
        let channel = self.dispatch_state.channel(lane.channel);
        channel.mark_waiting(lane);
        channel.mark_waiting(lane.retries());
    }

    /// Releases rows whose attempt was not started. Rows that cannot be released are recovered like
    /// those of a dead worker.
    async fn release_unstarted(&self, batch: &[CompletedJob]) {
        let is_released = |it: &&CompletedJob| matches!(it.outcome, JobOutcome::Release);
        let unstarted = || {
            batch
                .iter()
                .filter(is_released)
                .map(|completed| &completed.job)
        };
        let rows = unstarted().map(|job| (job.claimed.id, job.claimed.fence));
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return;
        }
        let mut delays = RETRY_DELAYS.delays();
        for left in (0..MAX_RELEASE_ATTEMPTS).rev() {
            match self.store.release(&rows).await {
                Ok(()) => {
                    unstarted().for_each(|job| self.mark_both_waiting(job.claimed.record.lane));
                    return;
                }
                Err(error) if error.is_outage() && left > 0 => {
                    postern_core::log_outage!("database", %error, rows = rows.len(), "row release failed, retrying");
                    tokio::time::sleep(delays.next_delay()).await;
                }
                Err(error) => {
                    postern_core::log_outage!("database", %error, rows = rows.len(), "row release failed, rows are recovered after lease timeout");
                    break;
                }
            }
        }
        unstarted().for_each(|job| self.workers.mark_suspect(&job.worker));
    }

    /// Writes a batch and retries for as long as the store is unavailable. Rows that another worker
    /// has taken over have a higher fence and are not changed.
    async fn write(&self, rows: &[Finished], workers: &[&WorkerLease]) {
        let mut delays = RETRY_DELAYS.delays();
        loop {
            match self.store.finish(rows).await {
                Ok(taken) => {
                    let lost = rows.len() - taken;
                    self.metrics.events.lease_lost.inc_by(lost as u64);
                    return;
                }
                Err(error) if error.is_outage() => {
                    postern_core::log_outage!("database", %error, rows = rows.len(), "result write failed, retrying");
                    tokio::time::sleep(delays.next_delay()).await;
                }
                Err(error) if rows.len() == 1 => {
                    tracing::error!(%error, notification_id = %rows[0].id, "result rejected by the store, row is recovered after lease timeout");
                    workers
                        .iter()
                        .for_each(|worker| self.workers.mark_suspect(worker));
                    return;
                }
                Err(_) => {
                    for (row, worker) in rows.iter().zip(workers) {
                        Box::pin(self.write(std::slice::from_ref(row), &[*worker])).await;
                    }
                    return;
                }
            }
        }
    }

    /// Counts the attempts and logs each at `debug`, and the notifications that failed finally.
    fn record(&self, batch: &[CompletedJob]) {
        let now = self.clock.now();
        for completed in batch {
            let JobOutcome::Result(result, next) = &completed.outcome else {
                continue;
            };
            let (id, record) = (completed.job.claimed.id, &completed.job.claimed.record);
            if next.is_recorded() {
                let age = now.since(record.created_at);
                self.metrics.record_result(record.lane, result, age);
            }
            let channel = record.lane.channel.as_str();
            let provider = result.provider.as_deref().unwrap_or("none");
            let code = result.code.as_deref().unwrap_or("ok");
            let attempt = result.attempt;
            tracing::debug!(notification_id = %id, channel, provider, code, attempt, "delivery attempt completed");
            if !matches!(next, Next::Dead) {
                continue;
            }
            if let Some(suppressed) = self.dead_letters.admit() {
                let template = &*record.template;
                let error = redact(result.detail.as_deref().unwrap_or_default());
                tracing::warn!(notification_id = %id, channel, provider, template, code, error,
                    attempts = attempt, suppressed, "notification failed, dead letter stored");
            }
        }
    }
}

fn finished(completed: &CompletedJob) -> Option<Finished> {
    let JobOutcome::Result(result, next) = &completed.outcome else {
        return None;
    };
    let claimed = &completed.job.claimed;
    let lane = claimed.record.lane;
    let detail = result.detail.as_deref();
    Some(Finished {
        id: claimed.id,
        fence: claimed.fence,
        worker: completed.job.worker.id,
        lane: next.due().map_or(lane, |_| lane.retries()),
        creator: claimed.record.creator.clone(),
        result: ResultRow {
            next_at: next.due(),
            detail: detail.map(|detail| printable(detail, MAX_DETAIL_BYTES)),
            ..result.clone()
        },
        next: *next,
    })
}
