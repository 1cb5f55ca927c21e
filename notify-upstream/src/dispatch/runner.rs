use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use futures_util::FutureExt;
use postern_common::Clock;
use postern_common::clock::Timestamp;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{Ended, Ending, Permit};
use crate::delivery::attempt::{Attempt, Courier, Failure, Verdict};
use crate::delivery::pool::Standing;
use crate::delivery::retry::{Class, Policy, Times};
use crate::lease::Worker;
use crate::lease::Workers;
use crate::notification::Channel;
use crate::store::{Claimed, Next, ResultKind, ResultRow};

/// A row in hand.
#[derive(Debug)]
pub(crate) struct Job {
    /// The row.
    pub(crate) claimed: Claimed,
    /// Under which identity it is leased.
    pub(crate) worker: Arc<Worker>,
    /// The right to have it in hand.
    pub(crate) _permit: Permit,
}

/// Attempts that begin one right behind the other: the runtime keeps the order of some hundreds of
/// tasks, and whatever comes meanwhile does not wait for all of a claim.
const AT_A_TIME: usize = 64;

/// Makes the attempts, each a task of its own, and says how they ended.
#[derive(Debug)]
pub(crate) struct Runner {
    courier: Courier,
    clock: Clock,
    workers: Arc<Workers>,
    ended: mpsc::UnboundedSender<Ended>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

// === impl Runner ===

impl Runner {
    /// Ends go to `ended`, whose length the permits bound. After `stop` nothing is begun any more.
    #[must_use]
    pub(crate) fn new(
        courier: Courier,
        clock: Clock,
        workers: Arc<Workers>,
        ended: mpsc::UnboundedSender<Ended>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            courier,
            clock,
            workers,
            ended,
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// Begins attempts in this order.
    pub(crate) async fn start_all(self: &Arc<Self>, jobs: Vec<Job>) {
        for (begun, job) in jobs.into_iter().enumerate() {
            if begun > 0 && begun.is_multiple_of(AT_A_TIME) {
                tokio::task::yield_now().await;
            }
            self.start(job);
        }
    }

    /// Begins an attempt.
    pub(crate) fn start(self: &Arc<Self>, job: Job) {
        let runner = Arc::clone(self);
        self.tasks.spawn(async move {
            let ending = AssertUnwindSafe(runner.attempt(&job)).catch_unwind().await;
            let ending = match ending {
                Ok(ending) => ending,
                Err(_) => {
                    tracing::error!(id = %job.claimed.id, "an attempt panicked");
                    let verdict = Verdict::Failed(Failure::internal());
                    runner
                        .ending(&job.claimed, runner.row(&job.claimed, None), verdict)
                        .await
                }
            };
            // Nobody listens any more only when the process ends; then the lease ends by itself.
            let _ = runner.ended.send(Ended { job, ending });
        });
    }

    /// Returns when every attempt that was begun has ended.
    pub(crate) async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    /// Whether nothing is begun any more, and what is claimed would only be handed back.
    #[must_use]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// The best that is known of a channel's providers.
    #[must_use]
    pub(crate) fn standing(&self, channel: Channel) -> Standing {
        self.courier.standing(channel)
    }

    async fn attempt(&self, job: &Job) -> Ending {
        let Job {
            claimed, worker, ..
        } = job;
        if self.stop.is_cancelled() || !self.workers.holds(worker) {
            return Ending::HandBack;
        }
        let began = self.clock.now();
        if claimed.record.expires_at.is_some_and(|end| end <= began) {
            return self
                .ending(claimed, self.row(claimed, None), Verdict::Expired)
                .await;
        }
        if self.is_spent(claimed).await {
            return self
                .ending(
                    claimed,
                    self.row(claimed, None),
                    Verdict::Failed(Failure::spent()),
                )
                .await;
        }
        let attempt = Attempt {
            claimed,
            worker,
            workers: &self.workers,
            clock: &self.clock,
            stop: &self.stop,
        };
        let (verdict, version) = self.courier.deliver(&attempt).await;
        let template_version = version.map(|version| i32::try_from(version).unwrap_or(i32::MAX));
        let row = ResultRow {
            template_version,
            ..self.row(claimed, Some(began))
        };
        self.ending(claimed, row, verdict).await
    }

    /// Whether every attempt was made, though none came to an end that could be written: else what
    /// ends its process, or has a result that the store refuses, would be sent for ever.
    async fn is_spent(&self, claimed: &Claimed) -> bool {
        let most = Policy::of(claimed.record.lane.priority).attempts;
        claimed.attempt > most
            && self
                .courier
                .replayed(claimed)
                .await
                .is_none_or(|(_, before)| claimed.attempt - before > most)
    }

    /// When the next attempt is due. One that an operator has queued again begins anew, in count
    /// and time.
    async fn next(&self, claimed: &Claimed, failure: &Failure) -> Option<Timestamp> {
        let policy = Policy::of(claimed.record.lane.priority);
        let times = Times {
            at_least: failure.retry_after,
            ..self.times(claimed)
        };
        let due = policy.next(claimed.attempt, failure.class, times, roll());
        if due.is_some() || failure.class == Class::Permanent {
            return due;
        }
        let (began, before) = self.courier.replayed(claimed).await?;
        policy.next(
            claimed.attempt - before,
            failure.class,
            Times { began, ..times },
            roll(),
        )
    }

    /// When one is looked at again whose providers are left alone for so long.
    async fn later(&self, claimed: &Claimed, left: Duration) -> Option<Timestamp> {
        let (policy, times) = (
            Policy::of(claimed.record.lane.priority),
            self.times(claimed),
        );
        if let Some(due) = policy.later(left, times, roll()) {
            return Some(due);
        }
        let (began, _) = self.courier.replayed(claimed).await?;
        policy.later(left, Times { began, ..times }, roll())
    }

    fn times(&self, claimed: &Claimed) -> Times {
        let (began, expires_at) = (claimed.wanted_at, claimed.record.expires_at);
        Times {
            now: self.clock.now(),
            began,
            expires_at,
            at_least: None,
        }
    }

    async fn ending(&self, claimed: &Claimed, row: ResultRow, verdict: Verdict) -> Ending {
        match verdict {
            Verdict::NotBegun => Ending::HandBack,
            Verdict::Expired => {
                let result = ResultRow {
                    kind: ResultKind::Expired,
                    began_at: None,
                    ..row
                };
                Ending::Result(result, Next::Done)
            }
            Verdict::Sent(sent) => {
                let result = ResultRow {
                    kind: ResultKind::Sent,
                    provider: Some(sent.provider),
                    detail: sent.detail,
                    address: sent.address,
                    ..row
                };
                Ending::Result(result, Next::Done)
            }
            Verdict::LeftAlone(left) => match self.later(claimed, left).await {
                Some(due) => {
                    let attempt = claimed.attempt - 1;
                    Ending::Result(
                        ResultRow {
                            attempt,
                            began_at: None,
                            ..row
                        },
                        Next::Later(due),
                    )
                }
                None => failed(&row, Failure::left_alone(), None),
            },
            Verdict::Failed(failure) => {
                let due = self.next(claimed, &failure).await;
                failed(&row, failure, due)
            }
        }
    }

    fn row(&self, claimed: &Claimed, began_at: Option<Timestamp>) -> ResultRow {
        ResultRow {
            attempt: claimed.attempt,
            kind: ResultKind::Failed,
            began_at,
            at: self.clock.now(),
            next_at: None,
            provider: None,
            code: None,
            detail: None,
            address: None,
            template_version: None,
        }
    }
}

fn failed(row: &ResultRow, failure: Failure, due: Option<Timestamp>) -> Ending {
    let (kind, next) = match due {
        Some(due) => (ResultKind::Retrying, Next::Retry(due)),
        None => (ResultKind::Failed, Next::Dead),
    };
    let result = ResultRow {
        kind,
        next_at: due,
        provider: failure.provider,
        code: Some(failure.code),
        detail: failure.detail,
        address: failure.address.map(|hash| *hash),
        ..*row
    };
    Ending::Result(result, next)
}

/// A random number in 0..1.
fn roll() -> f64 {
    let bits = u32::try_from(Uuid::new_v4().as_u128() & u128::from(u32::MAX)).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}
