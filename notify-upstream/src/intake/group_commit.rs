//! Group commit of accepted notifications: submissions that arrive while one commit is in flight
//! are written by the next statement. One committer writes; no commit is delayed to collect more
//! rows.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::group_commit::{self, Reply, Submission, Submitter, process_batches};
use postern_core::trace::Scope;
use postern_core::{Clock, Code, Problem};
use postern_service::http::BudgetPermit;
use tokio::sync::mpsc;

use crate::dispatch::DispatchContext;
use crate::intake::request::{IdempotencyKey, ValidatedRequest};
use crate::notification::{Lane, NotificationId};
use crate::principal::Principal;
use crate::store::{NewNotification, Record, Store, StoreError};

/// Time for which an idempotency key identifies a repeated request.
pub(crate) const IDEMPOTENCY_KEY_TTL: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of rows in one commit.
const MAX_COMMIT_ROWS: usize = 512;
/// Maximum number of submissions that wait for a commit. Further ones are rejected with 503.
pub(crate) const MAX_PENDING_SUBMISSIONS: usize = 8192;
/// Maximum time that a request waits for its commit. Afterwards the response is 503, and the client
/// finds out with its idempotency key whether the notification was committed.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_millis(2_500);

/// A handle that submits notifications to the [`GroupCommitter`].
#[derive(Clone, Debug)]
pub(crate) struct SubmissionQueue {
    queue: Submitter<NewSubmission, SubmissionResult>,
    pub(crate) timeout: Duration,
}

/// The task that commits submissions in batches.
#[derive(Debug)]
pub(crate) struct GroupCommitter {
    writer: Arc<BatchWriter>,
    queue: mpsc::Receiver<PendingSubmission>,
    pub(crate) timeout: Duration,
}

/// The result of an accepted submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedNotification {
    /// Identifier of the notification.
    pub(crate) id: NotificationId,
    /// Time of acceptance.
    pub(crate) created_at: Timestamp,
}

/// A notification to be committed, without its identifier, order and time, and the memory reserved
/// for the request body. It is released after the commit, even if the client disconnects earlier.
type NewSubmission = (NewNotification, BudgetPermit);
type SubmissionResult = Result<AcceptedNotification, Problem>;
type PendingSubmission = Submission<NewSubmission, SubmissionResult>;

/// The requester that waits for a commit, and the memory of its request.
type Requester = (Reply<SubmissionResult>, BudgetPermit);

/// Assigns identifiers, commits a batch and answers its requesters.
#[derive(Debug)]
struct BatchWriter(DispatchContext);

/// The rows of a batch with their requesters.
type PlacedBatch = (Vec<NewNotification>, Vec<Requester>);

// === impl SubmissionQueue ===

impl SubmissionQueue {
    /// Creates a queue and the committer that empties it.
    pub(crate) fn open(context: DispatchContext) -> (Self, GroupCommitter) {
        let (submitter, queue) = group_commit::queue(MAX_PENDING_SUBMISSIONS);
        (
            Self {
                queue: submitter,
                timeout: COMMIT_TIMEOUT,
            },
            GroupCommitter {
                writer: Arc::new(BatchWriter(context)),
                queue,
                timeout: COMMIT_TIMEOUT,
            },
        )
    }

    /// Submits a notification and returns after its commit. The memory reserved for its body is
    /// released then.
    ///
    /// # Errors
    /// 409 if the idempotency key was used with another body. 503 if the store is unavailable, the
    /// commit takes longer than [`COMMIT_TIMEOUT`], or the queue is full.
    pub(crate) async fn submit(
        &self,
        principal: &Principal,
        validated: ValidatedRequest,
        key: Option<IdempotencyKey>,
        permit: BudgetPermit,
    ) -> Result<AcceptedNotification, Problem> {
        let key = key.map(|key| (key.as_str().to_owned(), validated.request.fingerprint()));
        let send_at = validated.request.send_at;
        let row = NewNotification {
            id: NotificationId::default(),
            order: 0,
            record: record(principal, validated),
            send_at,
            key,
        };
        let result = self.queue.try_submit((row, permit), self.timeout).await;
        result.unwrap_or_else(|| Err(Problem::new(Code::Unavailable).retry_after(1)))
    }
}

fn record(principal: &Principal, validated: ValidatedRequest) -> Record {
    let ValidatedRequest {
        request,
        allows_unverified: _,
        template_version,
        locale,
    } = validated;
    let scope = Scope::current();
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
        request_id: scope
            .as_ref()
            .and_then(|scope| scope.request_id().map(str::to_owned)),
        trace_context: scope.and_then(|scope| scope.traceparent()),
    }
}

// === impl GroupCommitter ===

impl GroupCommitter {
    /// Returns the number of submissions that wait for a commit.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Commits batches, one at a time, until every [`SubmissionQueue`] has been dropped.
    pub(crate) async fn run(mut self) {
        let (writer, timeout) = (&self.writer, self.timeout);
        let receive = |cx: &mut Context<'_>, batch: &mut Vec<_>, limit| {
            self.queue.poll_recv_many(cx, batch, limit)
        };
        let commit = |batch| writer.write_waiting(batch, timeout);
        process_batches(receive, 1, MAX_COMMIT_ROWS, commit).await;
    }

    /// Waits for submissions and commits one batch.
    #[cfg(test)]
    pub(crate) async fn step(&mut self) {
        let mut batch = Vec::new();
        self.queue.recv_many(&mut batch, MAX_COMMIT_ROWS).await;
        self.writer.write_waiting(batch, self.timeout).await;
    }
}

/// Restores the submission of a row that was not stored.
fn submission_of(row: NewNotification, (reply, permit): Requester) -> PendingSubmission {
    Submission {
        item: (row, permit),
        reply,
    }
}

// === impl BatchWriter ===

impl BatchWriter {
    /// Writes the submissions whose requesters have not already received 503, as after an outage of
    /// the store.
    async fn write_waiting(self: &Arc<Self>, mut batch: Vec<PendingSubmission>, timeout: Duration) {
        batch.retain(|submission| submission.reply.age() < timeout);
        if !batch.is_empty() {
            self.write(batch).await;
        }
    }

    async fn write(self: &Arc<Self>, batch: Vec<PendingSubmission>) {
        let (store, clock) = (&self.0.store, &self.0.clock);
        let synchronized = match clock.is_uncertain() {
            true => store.synchronize(clock).await,
            false => Ok(()),
        };
        let (rows, requesters) = self.place(batch);
        let count = rows.len();
        let batch_rows = u32::try_from(count).unwrap_or(u32::MAX);
        self.0.metrics.events.batch_rows.observe(batch_rows.into());
        let stored = match synchronized {
            Ok(()) => store.accept(&rows).await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(rejected) => self.committed((rows, requesters), &rejected),
            Err(StoreError::Refused(error)) if count > 1 => {
                postern_core::log_outage!("database", %error, rows = count, "batch insert rejected, retrying rows individually");
                for (row, requester) in rows.into_iter().zip(requesters) {
                    Box::pin(self.write(vec![submission_of(row, requester)])).await;
                }
            }
            Err(error) => {
                postern_core::log_outage!("database", %error, rows = count, "notification insert failed");
                let problem = Problem::from(&error);
                for requester in requesters {
                    requester.0.send(Err(problem.clone()));
                }
            }
        }
    }

    /// Assigns each submission its order and identifier.
    fn place(&self, batch: Vec<PendingSubmission>) -> PlacedBatch {
        let now = self.0.clock.now();
        let places = self.0.sequence.places(batch.len());
        let placed = batch.into_iter().zip(places);
        let placed = placed.map(|(Submission { item, reply }, (order, id))| {
            let (mut row, permit) = item;
            (row.id, row.order, row.record.created_at) = (id, order, now);
            row.send_at = row.send_at.filter(|at| *at > now);
            (row, (reply, permit))
        });
        placed.unzip()
    }

    fn committed(self: &Arc<Self>, (rows, requesters): PlacedBatch, rejected: &[NotificationId]) {
        let state = &self.0.dispatch_state;
        for (row, requester) in rows.into_iter().zip(requesters) {
            if rejected.contains(&row.id) {
                let writer = Arc::clone(self);
                let submission = submission_of(row, requester);
                tokio::spawn(writer.answer_repeated_key(submission));
                continue;
            }
            let accepted = AcceptedNotification {
                id: row.id,
                created_at: row.record.created_at,
            };
            let lane = row.record.lane;
            let (reply, _permit) = requester;
            let latency = reply.age();
            reply.send(Ok(accepted));
            self.0
                .metrics
                .accepted(lane.channel, lane.priority, latency);
            if row.send_at.is_none() {
                state.channel(lane.channel).mark_waiting(lane);
            }
        }
    }

    /// Answers a submission whose idempotency key was used before: with the first result, or with
    /// 409.
    async fn answer_repeated_key(self: Arc<Self>, submission: PendingSubmission) {
        let row = &submission.item.0;
        let result = match &row.key {
            Some((key, fingerprint)) => {
                self.find_repeated(&row.record.creator, key, fingerprint)
                    .await
            }
            None => Err(Code::Internal.into()),
        };
        match result.transpose() {
            // The key has expired meanwhile: the submission is written as a new one.
            None => Box::pin(self.write(vec![submission])).await,
            Some(result) => {
                submission.reply.send(result);
            }
        }
    }

    async fn find_repeated(
        &self,
        creator: &str,
        key: &str,
        fingerprint: &[u8; 32],
    ) -> Result<Option<AcceptedNotification>, Problem> {
        let DispatchContext { store, clock, .. } = &self.0;
        let first = find_first_result(store, clock, creator, key, fingerprint).await?;
        if first.is_none() && clock.is_confirmed() {
            let ttl_ms = i64::try_from(IDEMPOTENCY_KEY_TTL.as_millis()).unwrap_or(i64::MAX);
            store
                .delete_idempotency_keys(Timestamp(clock.now().0 - ttl_ms + 1))
                .await
                .map_err(|error| store_unavailable(&error))?;
        }
        Ok(first)
    }
}

/// Returns the result of the first request with this idempotency key, or `None` if the key is
/// unknown or has expired. While the clocks differ none expires.
///
/// # Errors
/// 409 if the first request had another body; 503 if the store is unavailable.
pub(crate) async fn find_first_result(
    store: &Store,
    clock: &Clock,
    creator: &str,
    key: &str,
    fingerprint: &[u8; 32],
) -> Result<Option<AcceptedNotification>, Problem> {
    let is_valid = |created_at: Timestamp| {
        clock.now().since(created_at) < IDEMPOTENCY_KEY_TTL || !clock.is_confirmed()
    };
    match store
        .idempotency_record(creator, key)
        .await
        .map_err(|error| store_unavailable(&error))?
    {
        Some(existing) if is_valid(existing.created_at) => {
            if existing.fingerprint == fingerprint {
                Ok(Some(AcceptedNotification {
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

fn store_unavailable(error: &StoreError) -> Problem {
    postern_core::log_outage!("database", %error, "idempotency key lookup failed");
    Problem::new(Code::Unavailable)
}
