//! Group commit of accepted notifications: submissions that arrive while one commit is in flight
//! are written by the next statement. One committer writes; no commit is delayed to collect more
//! rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postern_common::clock::Timestamp;
use postern_common::http::BudgetPermit;
use postern_common::{Code, Problem};
use tokio::sync::{mpsc, oneshot};

use crate::dispatch::{Job, Means, Permit};
use crate::intake::request::{Draft, IdempotencyKey};
use crate::lease::Worker;
use crate::notification::{Lane, NotificationId};
use crate::principal::Principal;
use crate::store::{Claimed, NewNotification, Record, Store, StoreError};

/// Time for which an idempotency key identifies a repeated request.
pub(crate) const KEY_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of rows in one commit.
pub(crate) const BATCH: usize = 512;
/// Maximum number of submissions that wait for a commit. Further ones are rejected with 503.
pub(crate) const BACKLOG: usize = 8192;
/// Maximum time that a request waits for its commit. Afterwards the response is 503, and the client
/// finds out with its idempotency key whether the notification was committed.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_millis(2_500);

/// A handle that submits notifications to the [`GroupCommitter`].
#[derive(Clone, Debug)]
pub(crate) struct Door {
    queue: mpsc::Sender<Submission>,
}

/// The task that commits submissions in batches.
#[derive(Debug)]
pub(crate) struct Writer {
    clerk: Arc<Clerk>,
    queue: mpsc::Receiver<Submission>,
}

/// The result of an accepted submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Identifier of the notification.
    pub(crate) id: NotificationId,
    /// Time of acceptance.
    pub(crate) created_at: Timestamp,
}

/// A notification that waits for its commit.
#[derive(Debug)]
struct Submission {
    record: Record,
    send_at: Option<Timestamp>,
    /// Idempotency key and fingerprint.
    key: Option<(String, [u8; 32])>,
    caller: Caller,
}

/// The requester that waits for a commit.
#[derive(Debug)]
struct Caller {
    reply: oneshot::Sender<Result<Accepted, Problem>>,
    since: Instant,
    /// Memory reserved for the request body. It is released after the commit, even if the client
    /// disconnects earlier.
    _permit: BudgetPermit,
}

/// Assigns identifiers and leases, commits a batch and answers its requesters.
#[derive(Debug)]
struct Clerk(Means);

/// The rows of a batch, and for each row its requester and the permit if the row is inserted with a
/// lease.
struct Placed {
    rows: Vec<NewNotification>,
    callers: Vec<(Caller, Option<Permit>)>,
}

// === impl Door ===

impl Door {
    /// Creates a queue and the committer that empties it.
    #[must_use]
    pub(crate) fn open(means: Means) -> (Self, Writer) {
        let (sender, queue) = mpsc::channel(BACKLOG);
        (
            Self { queue: sender },
            Writer {
                clerk: Arc::new(Clerk(means)),
                queue,
            },
        )
    }

    /// Submits a notification and returns after its commit. The memory reserved for its body is
    /// released then.
    ///
    /// # Errors
    /// 409 if the idempotency key was used with another body. 503 if the store is unavailable, the
    /// commit takes longer than [`COMMIT_TIMEOUT`], or the queue is full.
    pub(crate) async fn accept(
        &self,
        principal: &Principal,
        draft: Draft,
        key: Option<IdempotencyKey>,
        permit: BudgetPermit,
    ) -> Result<Accepted, Problem> {
        let (reply, answer) = oneshot::channel();
        let key = key.map(|key| (key.as_str().to_owned(), draft.request.fingerprint()));
        let send_at = draft.request.send_at;
        let record = record(principal, draft);
        let caller = Caller {
            reply,
            since: Instant::now(),
            _permit: permit,
        };
        let submission = Submission {
            record,
            send_at,
            key,
            caller,
        };
        self.queue
            .try_send(submission)
            .map_err(|_| Problem::new(Code::Unavailable).retry_after(1))?;
        match tokio::time::timeout(COMMIT_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Problem::new(Code::Unavailable).retry_after(1)),
        }
    }
}

fn record(principal: &Principal, draft: Draft) -> Record {
    let Draft {
        request,
        template_version,
        locale,
    } = draft;
    Record {
        lane: Lane::first(request.channel, request.priority),
        creator: principal.creator.to_string(),
        addressee: request.addressee().map(|actor| actor.as_str().to_owned()),
        template: request.template.as_str().to_owned(),
        template_version: i32::try_from(template_version).unwrap_or(i32::MAX),
        locale: locale.as_str().to_owned(),
        recipient: serde_json::to_string(&request.recipient).unwrap_or_default(),
        variables: serde_json::to_string(&request.variables).unwrap_or_default(),
        created_at: Timestamp(0),
        expires_at: request.expires_at,
    }
}

// === impl Writer ===

impl Writer {
    /// Returns the number of submissions that wait for a commit.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Commits batches until every [`SubmissionQueue`] has been dropped.
    pub(crate) async fn run(mut self) {
        while self.step().await {}
    }

    /// Waits for submissions and commits one batch. Returns `false` if every queue handle has been
    /// dropped.
    pub(crate) async fn step(&mut self) -> bool {
        let mut batch = Vec::with_capacity(64);
        if self.queue.recv_many(&mut batch, BATCH).await == 0 {
            return false;
        }
        // Submissions whose requesters have already received 503 are not written after an outage of
        // the store.
        batch.retain(|submission| submission.caller.since.elapsed() < COMMIT_TIMEOUT);
        if !batch.is_empty() {
            self.clerk.write(batch).await;
        }
        true
    }
}

// === impl Submission ===

impl Submission {
    /// Restores the submission of a row that was not stored.
    fn again(row: NewNotification, caller: Caller) -> Self {
        Self {
            record: row.record,
            send_at: row.send_at,
            key: row.key,
            caller,
        }
    }
}

// === impl Clerk ===

impl Clerk {
    async fn write(self: &Arc<Self>, batch: Vec<Submission>) {
        let worker = self.0.workers.current();
        let precedence = self.0.board.precedence();
        let entering = precedence.enter(
            batch
                .iter()
                .map(|submission| submission.record.lane.priority),
        );
        let placed = self.place(batch, &worker);
        let count = placed.rows.len();
        self.0.metrics.batch(count);
        let outcome = self.0.store.accept(&placed.rows).await;
        drop(entering);
        match outcome {
            Ok(refused) => self.committed(placed, &refused, &worker),
            Err(StoreError::Refused(error)) if count > 1 => {
                tracing::warn!(%error, rows = count, "batch insert rejected, retrying rows individually");
                for (row, (caller, _)) in placed.rows.into_iter().zip(placed.callers) {
                    Box::pin(self.write(vec![Submission::again(row, caller)])).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, rows = count, "notification insert failed");
                let code = match &error {
                    StoreError::Unavailable(_) => Code::Unavailable,
                    StoreError::Refused(_) => Code::Internal,
                };
                // The rows may have been committed with a lease of this worker, although their jobs
                // are unknown here.
                self.0.workers.doubt(&worker);
                for (caller, _) in placed.callers {
                    let _ = caller.reply.send(Err(code.into()));
                }
            }
        }
    }

    /// Assigns each submission its order and identifier, and a lease if a permit is free and no
    /// submission or row of a higher lane remains unleased.
    fn place(&self, batch: Vec<Submission>, worker: &Worker) -> Placed {
        let now = self.0.clock.now();
        let alive = self.0.workers.is_alive();
        let places = self.0.sequence.places(batch.len());
        // For each channel, the index of the first lane in which this batch leaves a row without a
        // lease.
        let mut waits = [Lane::PER_CHANNEL; 3];
        let mut placed = Placed {
            rows: Vec::with_capacity(batch.len()),
            callers: Vec::with_capacity(batch.len()),
        };
        for (
            Submission {
                record,
                send_at,
                key,
                caller,
            },
            (order, id),
        ) in batch.into_iter().zip(places)
        {
            let lane = record.lane;
            let send_at = send_at.filter(|at| *at > now);
            let waits = &mut waits[lane.channel.index()];
            let wanted = alive && send_at.is_none() && lane.index() < *waits;
            let lease = wanted
                .then(|| self.0.board.desk(lane.channel).lease(lane))
                .flatten();
            if lease.is_none() && send_at.is_none() {
                *waits = (*waits).min(lane.index());
            }
            placed.rows.push(NewNotification {
                id,
                order,
                record: Record {
                    created_at: now,
                    ..record
                },
                send_at,
                worker: lease.as_ref().map(|_| worker.id()),
                key,
            });
            placed.callers.push((caller, lease));
        }
        placed
    }

    fn committed(
        self: &Arc<Self>,
        placed: Placed,
        refused: &[NotificationId],
        worker: &Arc<Worker>,
    ) {
        let mut left_waiting = HashMap::new();
        for (row, (caller, lease)) in placed.rows.into_iter().zip(placed.callers) {
            if refused.contains(&row.id) {
                let clerk = Arc::clone(self);
                tokio::spawn(
                    async move { clerk.answer_repeat(Submission::again(row, caller)).await },
                );
                continue;
            }
            let accepted = Accepted {
                id: row.id,
                created_at: row.record.created_at,
            };
            let lane = row.record.lane;
            let _ = caller.reply.send(Ok(accepted));
            self.0
                .metrics
                .accepted(lane.channel, lane.priority, caller.since.elapsed());
            match lease {
                Some(permit) => {
                    self.0.runner.start(Job {
                        claimed: born(row),
                        worker: Arc::clone(worker),
                        _permit: permit,
                    });
                }
                None if row.send_at.is_none() => {
                    // Orders ascend within a batch, so the first row of a lane has the lowest
                    // order.
                    left_waiting.entry(lane.code()).or_insert((lane, row.order));
                }
                None => {}
            }
        }
        for (lane, order) in left_waiting.into_values() {
            self.0.board.leave_waiting(lane, order);
        }
    }

    /// Answers a submission whose idempotency key was used before: with the first result, or with
    /// 409.
    async fn answer_repeat(self: Arc<Self>, submission: Submission) {
        let answer = match &submission.key {
            Some((key, fingerprint)) => {
                self.repeat(&submission.record.creator, key, fingerprint)
                    .await
            }
            None => Err(Code::Internal.into()),
        };
        match answer.transpose() {
            // The key has expired meanwhile: the submission is written as a new one.
            None => Box::pin(self.write(vec![submission])).await,
            Some(answer) => {
                let _ = submission.caller.reply.send(answer);
            }
        }
    }

    async fn repeat(
        &self,
        creator: &str,
        key: &str,
        fingerprint: &[u8; 32],
    ) -> Result<Option<Accepted>, Problem> {
        let now = self.0.clock.now();
        let first = first_answer(&self.0.store, now, creator, key, fingerprint).await?;
        if first.is_none() {
            let life = i64::try_from(KEY_LIFE.as_millis()).unwrap_or(i64::MAX);
            self.0
                .store
                .forget_keys(Timestamp(now.0 - life + 1))
                .await
                .map_err(|error| away(&error))?;
        }
        Ok(first)
    }
}

/// Returns the result of the first request with this idempotency key, or `None` if the key is
/// unknown or has expired.
///
/// # Errors
/// 409 if the first request had another body; 503 if the store is unavailable.
pub(crate) async fn first_answer(
    store: &Store,
    now: Timestamp,
    creator: &str,
    key: &str,
    fingerprint: &[u8; 32],
) -> Result<Option<Accepted>, Problem> {
    match store
        .existing(creator, key)
        .await
        .map_err(|error| away(&error))?
    {
        Some(existing) if now.since(existing.created_at) < KEY_LIFE => {
            if existing.fingerprint == fingerprint {
                Ok(Some(Accepted {
                    id: existing.id,
                    created_at: existing.created_at,
                }))
            } else {
                Err(Code::IdempotencyKeyReused.into())
            }
        }
        Some(_) | None => Ok(None),
    }
}

fn away(error: &StoreError) -> Problem {
    tracing::warn!(%error, "idempotency key lookup failed");
    Problem::new(Code::Unavailable)
}

/// Returns the claim of a row that was inserted with a lease.
fn born(row: NewNotification) -> Claimed {
    let wanted_at = row.record.created_at;
    Claimed {
        id: row.id,
        order: row.order,
        fence: 1,
        attempt: 1,
        lost: false,
        wanted_at,
        record: row.record,
    }
}
