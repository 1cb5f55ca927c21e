//! Execution of delivery attempts as tasks, and conversion of their outcomes to results.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use futures_util::FutureExt;
use postern_core::Clock;
use postern_core::backoff::random_fraction;
use postern_core::clock::Timestamp;
use postern_core::trace::{ActiveSpan, KeyValue, Scope, Tracer};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::{ChannelPermit, CompletedJob, JobOutcome};
use crate::delivery::attempt::{AttemptExecutor, DeliveryAttempt};
use crate::delivery::outcome::{AttemptFailure, AttemptOutcome};
use crate::delivery::retry::{FailureClass, RetryPolicy, RetryTimes};
use crate::lease::{WorkerLease, WorkerRegistry};
use crate::store::{Claimed, Next, ResultKind, ResultRow};

/// A claimed row with its lease and permit.
pub(crate) struct DeliveryJob {
    /// The row.
    pub(crate) claimed: Claimed,
    /// The lease under which the row is claimed.
    pub(crate) worker: Arc<WorkerLease>,
    /// The permit, held until the result is durable.
    pub(crate) _permit: ChannelPermit,
}

/// Number of attempts started in a row before yielding. The runtime keeps the order of a few
/// hundred tasks, and other tasks need not wait for a whole claim.
const STARTS_PER_YIELD: usize = 64;

/// Runs each attempt as a task and reports its outcome.
pub(crate) struct AttemptRunner {
    pub(crate) executor: AttemptExecutor,
    pub(super) clock: Clock,
    pub(super) workers: Arc<WorkerRegistry>,
    /// Its length is bounded by the permits.
    pub(super) completed: mpsc::UnboundedSender<CompletedJob>,
    pub(super) tasks: TaskTracker,
    /// After it is cancelled no attempt is started.
    pub(super) stop: CancellationToken,
    pub(super) tracer: Option<Tracer>,
}

impl AttemptRunner {
    /// Starts attempts in the order given.
    pub(crate) async fn start_all(self: &Arc<Self>, jobs: Vec<DeliveryJob>) {
        for (started, job) in jobs.into_iter().enumerate() {
            if started > 0 && started.is_multiple_of(STARTS_PER_YIELD) {
                tokio::task::yield_now().await;
            }
            self.start(job);
        }
    }

    pub(crate) fn start(self: &Arc<Self>, job: DeliveryJob) {
        let runner = Arc::clone(self);
        self.tasks.spawn(async move {
            let (scope, span) = delivery_scope(runner.tracer.as_ref(), &job.claimed);
            let attempt = AssertUnwindSafe(runner.attempt(&job)).catch_unwind();
            let outcome = Box::pin(scope.run(attempt)).await;
            let outcome = if let Ok(outcome) = outcome {
                outcome
            } else {
                tracing::error!(notification_id = %job.claimed.id, "delivery attempt panicked");
                let failure = AttemptFailure::transient("internal_error");
                runner.ended(&job.claimed, failure.into()).await
            };
            if let Some(span) = span {
                finish_span(span, &job.claimed, &outcome);
            }
            // The receiver is dropped only when the process ends; then the lease expires.
            let _ = runner.completed.send(CompletedJob { job, outcome });
        });
    }

    /// Waits until all started attempts have completed.
    pub(crate) async fn wait_until_idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    async fn attempt(&self, job: &DeliveryJob) -> JobOutcome {
        let DeliveryJob {
            claimed, worker, ..
        } = job;
        if self.stop.is_cancelled() || !self.workers.may_start(worker) {
            return JobOutcome::Release;
        }
        let began = self.clock.now();
        let expires_at = claimed.record.expires_at;
        if expires_at.is_some_and(|end| end <= self.clock.earliest()) {
            return self.ended(claimed, AttemptOutcome::Expired).await;
        }
        if self.has_exhausted_attempts(claimed).await {
            let failure = AttemptFailure::permanent("attempts_exhausted");
            return self.ended(claimed, failure.into()).await;
        }
        let attempt = DeliveryAttempt {
            claimed,
            worker,
            workers: &self.workers,
            clock: &self.clock,
            stop: &self.stop,
        };
        let (outcome, template_version) = self.executor.deliver(&attempt).await;
        let row = ResultRow {
            began_at: Some(began),
            template_version: template_version.map(u32::cast_signed),
            ..self.row(claimed)
        };
        self.outcome_of(claimed, row, outcome).await
    }

    /// Returns the outcome of an attempt that ended before a template was rendered.
    async fn ended(&self, claimed: &Claimed, outcome: AttemptOutcome) -> JobOutcome {
        self.outcome_of(claimed, self.row(claimed), outcome).await
    }

    /// Returns whether all attempts have been made without a recorded result. Otherwise a message
    /// that crashes the process, or whose result the store rejects, would be sent without end.
    async fn has_exhausted_attempts(&self, claimed: &Claimed) -> bool {
        let max_attempts = RetryPolicy::of(claimed.record.lane.priority).attempts;
        if claimed.attempt <= max_attempts {
            return false;
        }
        let replay = self.executor.last_replay(claimed).await;
        let before = replay.map_or(0, |replay| replay.attempts_before);
        claimed.attempt - before > max_attempts
    }

    /// Returns the time of the next attempt, or `None` if there is none. After a replay by an
    /// operator, attempts and time count from the replay.
    async fn next_attempt(&self, claimed: &Claimed, failure: &AttemptFailure) -> Option<Timestamp> {
        let policy = RetryPolicy::of(claimed.record.lane.priority);
        let times = self.retry_times(claimed);
        let next = |attempt, began| {
            let times = RetryTimes {
                began,
                at_least: failure.refusal.retry_after,
                ..times
            };
            policy.next_attempt(attempt, failure.refusal.class, times, random_fraction())
        };
        let due = next(claimed.attempt, times.began);
        if due.is_some() || failure.refusal.class == FailureClass::Permanent {
            return due;
        }
        let replay = self.executor.last_replay(claimed).await?;
        next(claimed.attempt - replay.attempts_before, replay.at)
    }

    /// Returns the time of the next check of a notification whose providers have open circuit
    /// breakers for another `open_time`; `None` if the notification has failed.
    async fn next_check(&self, claimed: &Claimed, open_time: Duration) -> Option<Timestamp> {
        let policy = RetryPolicy::of(claimed.record.lane.priority);
        let times = self.retry_times(claimed);
        let next = |began| {
            let times = RetryTimes { began, ..times };
            policy.next_check(open_time, times, random_fraction())
        };
        if let Some(due) = next(times.began) {
            return Some(due);
        }
        next(self.executor.last_replay(claimed).await?.at)
    }

    fn retry_times(&self, claimed: &Claimed) -> RetryTimes {
        let (began, expires_at) = (claimed.wanted_at, claimed.record.expires_at);
        RetryTimes {
            now: self.clock.now(),
            earliest: self.clock.earliest(),
            began,
            expires_at,
            at_least: None,
        }
    }

    async fn outcome_of(
        &self,
        claimed: &Claimed,
        row: ResultRow,
        attempt_outcome: AttemptOutcome,
    ) -> JobOutcome {
        let (result, next) = match attempt_outcome {
            AttemptOutcome::NotStarted => return JobOutcome::Release,
            AttemptOutcome::Expired => {
                let result = ResultRow {
                    kind: ResultKind::Expired,
                    began_at: None,
                    ..row
                };
                (result, Next::Done)
            }
            AttemptOutcome::Sent(sent) => {
                let result = ResultRow {
                    kind: ResultKind::Sent,
                    provider: Some(sent.provider),
                    detail: sent.detail,
                    address: sent.address,
                    ..row
                };
                (result, Next::Done)
            }
            AttemptOutcome::CircuitOpen(open_time) => {
                match self.next_check(claimed, open_time).await {
                    Some(due) => {
                        let result = ResultRow {
                            attempt: claimed.attempt - 1,
                            began_at: None,
                            ..row
                        };
                        (result, Next::Later(due))
                    }
                    None => failed(&row, AttemptFailure::transient("circuit_open"), None),
                }
            }
            AttemptOutcome::Failed(failure) => {
                let due = self.next_attempt(claimed, &failure).await;
                failed(&row, failure, due)
            }
        };
        JobOutcome::Result(result, next)
    }

    fn row(&self, claimed: &Claimed) -> ResultRow {
        ResultRow::event(claimed.attempt, ResultKind::Failed, self.clock.now())
    }
}

/// Returns the scope of an attempt, with the ids of the request that created the notification.
fn delivery_scope(tracer: Option<&Tracer>, claimed: &Claimed) -> (Scope, Option<ActiveSpan>) {
    let (id, record) = (claimed.id.to_string(), &claimed.record);
    let accepted = record.trace_context.as_deref();
    Scope::of_delivery(tracer, &id, record.request_id.as_deref(), accepted)
}

/// Records the span of an attempt. It has no address and no content.
fn finish_span(mut span: ActiveSpan, claimed: &Claimed, outcome: &JobOutcome) {
    let (channel, priority) = (claimed.record.lane.channel, claimed.record.lane.priority);
    span.rename(format!("process {}", channel.as_str()));
    let attributes = [
        KeyValue::new("messaging.system", "postern"),
        KeyValue::new("messaging.operation.type", "process"),
        KeyValue::new("messaging.operation.name", "process"),
        KeyValue::new("messaging.destination.name", channel.as_str()),
        KeyValue::new("messaging.message.id", claimed.id.to_string()),
        KeyValue::new("postern.priority", priority.as_str()),
        KeyValue::new("postern.attempt", i64::from(claimed.attempt)),
    ];
    attributes.into_iter().for_each(|it| span.set(it));
    if let Some(id) = &claimed.record.request_id {
        span.set(KeyValue::new("postern.request_id", id.clone()));
    }
    match outcome {
        JobOutcome::Release => span.set(KeyValue::new("postern.outcome", "released")),
        JobOutcome::Result(row, _) => {
            if let Some(provider) = &row.provider {
                span.set(KeyValue::new("postern.provider", provider.clone()));
            }
            if row.kind == ResultKind::Sent {
                span.set(KeyValue::new("postern.outcome", "sent"));
            } else {
                span.fail(row.code.clone().unwrap_or_else(|| "_OTHER".to_owned()));
            }
        }
    }
}

fn failed(row: &ResultRow, failure: AttemptFailure, due: Option<Timestamp>) -> (ResultRow, Next) {
    let (kind, next) = match due {
        Some(due) => (ResultKind::Retrying, Next::Retry(due)),
        None => (ResultKind::Failed, Next::Dead),
    };
    let result = ResultRow {
        kind,
        provider: failure.provider,
        code: Some(failure.refusal.code),
        detail: failure.refusal.detail,
        address: failure.address.map(|hash| *hash),
        ..*row
    };
    (result, next)
}
