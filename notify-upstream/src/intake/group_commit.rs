//! Group commit of accepted notifications: submissions that arrive while one commit is in flight
//! are written by the next statement. One committer writes; no commit is delayed to collect more
//! rows.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::group_commit::{self, Submission, Submitter, process_batches};
use postern_core::trace::Scope;
use postern_core::{Clock, Code, Problem};
use postern_service::http::BudgetPermit;
use tokio::sync::mpsc;

use crate::dispatch::DispatchContext;
use crate::intake::request::ValidatedRequest;
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
pub(crate) struct GroupCommitter {
    writer: Arc<BatchWriter>,
    queue: mpsc::Receiver<PendingSubmission>,
    pub(crate) timeout: Duration,
}

/// The result of an accepted submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedNotification {
    pub(crate) id: NotificationId,
    pub(crate) created_at: Timestamp,
}

/// A notification to be committed, without its identifier, order and time, and the memory reserved
/// for the request body. It is released after the commit, even if the client disconnects earlier.
type NewSubmission = (NewNotification, BudgetPermit);
type SubmissionResult = Result<AcceptedNotification, Problem>;
type PendingSubmission = Submission<NewSubmission, SubmissionResult>;

/// Assigns identifiers, commits a batch and answers its requesters.
struct BatchWriter(DispatchContext);

// === impl SubmissionQueue ===

impl SubmissionQueue {
    /// Creates a queue and the committer that empties it.
    pub(crate) fn open(context: DispatchContext) -> (Self, GroupCommitter) {
        let (queue, receiver) = group_commit::queue(MAX_PENDING_SUBMISSIONS);
        let (writer, timeout) = (Arc::new(BatchWriter(context)), COMMIT_TIMEOUT);
        let committer = GroupCommitter {
            writer,
            queue: receiver,
            timeout,
        };
        (Self { queue, timeout }, committer)
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
        key: Option<String>,
        permit: BudgetPermit,
    ) -> Result<AcceptedNotification, Problem> {
        let key = key.map(|key| (key, validated.request.fingerprint()));
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
    let request_id = scope.as_ref().and_then(|scope| scope.request_id());
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
        request_id: request_id.map(str::to_owned),
        trace_context: scope.as_ref().and_then(Scope::traceparent),
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

    async fn write(self: &Arc<Self>, mut batch: Vec<PendingSubmission>) {
        let (store, clock, count) = (&self.0.store, &self.0.clock, batch.len());
        let synchronized = match clock.is_uncertain() {
            true => store.synchronize(clock).await,
            false => Ok(()),
        };
        self.place(&mut batch);
        let batch_rows = u32::try_from(count).unwrap_or(u32::MAX);
        self.0.metrics.events.batch_rows.observe(batch_rows.into());
        let stored = match synchronized {
            Ok(()) => {
                let rows: Vec<_> = batch.iter().map(|pending| &pending.item.0).collect();
                store.accept(&rows).await
            }
            Err(error) => Err(error),
        };
        match stored {
            Ok(rejected) => self.committed(batch, &rejected),
            Err(StoreError::Refused(error)) if count > 1 => {
                postern_core::log_outage!("database", %error, rows = count, "batch insert rejected, retrying rows individually");
                for pending in batch {
                    Box::pin(self.write(vec![pending])).await;
                }
            }
            Err(error) => {
                postern_core::log_outage!("database", %error, rows = count, "notification insert failed");
                let problem = Problem::from(&error);
                for pending in batch {
                    pending.reply.send(Err(problem.clone()));
                }
            }
        }
    }

    /// Assigns each submission its order and identifier.
    fn place(&self, batch: &mut [PendingSubmission]) {
        let now = self.0.clock.now();
        let places = self.0.sequence.places(batch.len());
        for (pending, (order, id)) in batch.iter_mut().zip(places) {
            let row = &mut pending.item.0;
            (row.id, row.order, row.record.created_at) = (id, order, now);
            row.send_at = row.send_at.filter(|at| *at > now);
        }
    }

    fn committed(self: &Arc<Self>, batch: Vec<PendingSubmission>, rejected: &[NotificationId]) {
        let DispatchContext {
            dispatch_state,
            metrics,
            ..
        } = &self.0;
        for pending in batch {
            if rejected.contains(&pending.item.0.id) {
                tokio::spawn(Arc::clone(self).answer_repeated_key(pending));
                continue;
            }
            let Submission {
                item: (row, _permit),
                reply,
            } = pending;
            let (id, created_at, lane) = (row.id, row.record.created_at, row.record.lane);
            metrics.accepted(lane, reply.age());
            reply.send(Ok(AcceptedNotification { id, created_at }));
            if row.send_at.is_none() {
                dispatch_state.channel(lane.channel).mark_waiting(lane);
            }
        }
    }

    /// Answers a submission whose idempotency key was used before: with the first result, or with
    /// 409.
    async fn answer_repeated_key(self: Arc<Self>, submission: PendingSubmission) {
        let row = &submission.item.0;
        let creator = &row.record.creator;
        let result = match &row.key {
            Some((key, fingerprint)) => self.find_repeated(creator, key, fingerprint).await,
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
            let expired = Timestamp(clock.now().0 - ttl_ms + 1);
            let deleted = store.delete_idempotency_keys(expired).await;
            deleted.map_err(|error| store_unavailable(&error))?;
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
    let first = store.idempotency_record(creator, key).await;
    match first.map_err(|error| store_unavailable(&error))? {
        Some((id, first, created_at)) if is_valid(created_at) => match first == fingerprint {
            true => Ok(Some(AcceptedNotification { id, created_at })),
            false => Err(Code::IdempotencyKeyReused.into()),
        },
        Some(_) | None => Ok(None),
    }
}

fn store_unavailable(error: &StoreError) -> Problem {
    postern_core::log_outage!("database", %error, "idempotency key lookup failed");
    Problem::new(Code::Unavailable)
}
