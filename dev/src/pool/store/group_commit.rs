//! Group commit of sign-ins and refreshes in SQLite.
//!
//! SQLite has one writer and syncs to disk at each commit. Writes that arrive during a commit share
//! the next transaction; no write is delayed to fill a batch.

use std::collections::HashSet;
use std::task::Context;

use postern_common::database::Sqlite;
use postern_common::group_commit::{self, Reply, Submission, Submitter};
use sqlx::{FromRow, Row, SqliteConnection};

use super::groups::RowPerGroup;
use super::sessions::{
    self, RefreshSession, RotateToken, SessionOutcome, SessionWrite, StartSession, start_session,
};

/// Capacity of the queue; further writers wait.
const QUEUE_CAPACITY: usize = 1024;
/// Maximum number of writes in a transaction. Bounds the memory for their results.
const MAX_BATCH_SIZE: usize = 64;

type WriteResult = Result<SessionOutcome, sqlx::Error>;

/// A handle to the writer task, which ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct GroupCommitter(Submitter<SessionWrite, WriteResult>);

impl GroupCommitter {
    pub(super) fn start(sqlite: Sqlite) -> Self {
        let (submitter, mut writes) = group_commit::queue(QUEUE_CAPACITY);
        tokio::spawn(async move {
            let write = |batch| write_batch(&sqlite, batch);
            let receive = |cx: &mut Context<'_>, batch: &mut Vec<_>, limit| {
                writes.poll_recv_many(cx, batch, limit)
            };
            group_commit::process_batches(receive, 1, || MAX_BATCH_SIZE, write).await;
        });
        Self(submitter)
    }

    /// Queues a write and waits for its commit.
    pub(super) async fn write(&self, write: SessionWrite) -> WriteResult {
        let outcome = self.0.submit(write).await;
        outcome.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }
}

/// Writes of one kind, each with the submitter that waits for its result.
type PendingWrites<W> = Vec<(W, Reply<WriteResult>)>;

/// The result of each write, or an error if none was written.
type BatchOutcome = Result<Vec<WriteResult>, sqlx::Error>;

async fn write_batch(sqlite: &Sqlite, batch: Vec<Submission<SessionWrite, WriteResult>>) {
    let (mut starts, mut rotations) = (Vec::new(), Vec::new());
    for Submission { item, reply } in batch {
        match item {
            SessionWrite::StartSession(session) => starts.push((session, reply)),
            SessionWrite::RotateToken(rotate) => rotations.push((rotate, reply)),
        }
    }
    if !starts.is_empty() {
        commit_batch(sqlite, starts, start_all).await;
    }
    while !rotations.is_empty() {
        // Without a grace period, rotations of the same token must see each other's effects, so
        // only one of them goes into each transaction.
        let mut seen = HashSet::new();
        let (now, later) = rotations
            .into_iter()
            .partition(|(rotate, _): &(RotateToken, _)| {
                seen.insert(rotate.old.clone()) || rotate.grace_start < rotate.now
            });
        commit_batch(sqlite, now, rotate_all).await;
        rotations = later;
    }
}

/// Commits the writes together. If that fails, commits each alone, so that a failing write does not
/// affect others.
async fn commit_batch<W>(
    sqlite: &Sqlite,
    pending: PendingWrites<W>,
    commit: impl AsyncFn(&Sqlite, &[W]) -> BatchOutcome,
) {
    let (writes, replies): (Vec<W>, Vec<_>) = pending.into_iter().unzip();
    // The requester may have stopped waiting; the write is committed regardless.
    match commit(sqlite, &writes).await {
        Ok(outcomes) => {
            for (reply, outcome) in replies.into_iter().zip(outcomes) {
                reply.send(outcome);
            }
        }
        Err(_) => {
            for (reply, write) in replies.into_iter().zip(&writes) {
                let outcomes = commit(sqlite, std::slice::from_ref(write)).await;
                reply.send(outcomes.and_then(|mut outcomes| {
                    outcomes.pop().unwrap_or(Ok(SessionOutcome::Rejected))
                }));
            }
        }
    }
}

async fn start_all(sqlite: &Sqlite, starts: &[StartSession]) -> BatchOutcome {
    if let [session] = starts {
        // Include BEGIN and COMMIT in the statement: this saves three round trips to the writer's
        // thread.
        let mut connection = sqlite.writer.acquire().await?;
        let sql = sessions::START_WITH_TRANSACTION;
        let outcome = start_session(&mut connection, sql, session).await;
        return rollback_on_error(&mut connection, outcome)
            .await
            .map(|written| vec![Ok(written)]);
    }
    let mut transaction = sqlite.begin().await?;
    let mut outcomes = Vec::with_capacity(starts.len());
    for session in starts {
        let outcome = start_session(&mut transaction, sessions::START, session).await?;
        outcomes.push(Ok(outcome));
    }
    transaction.commit().await?;
    Ok(outcomes)
}

/// Commits all rotations in one execution, because each execution is a round trip to the writer's
/// thread. The commit precedes the reading of rows, so that an unreadable row fails only its own
/// rotation.
async fn rotate_all(sqlite: &Sqlite, rotations: &[RotateToken]) -> BatchOutcome {
    let fields = |rotate: &RotateToken| {
        let RotateToken {
            old,
            new,
            client_id,
            now,
            grace_start,
        } = rotate;
        serde_json::json!([old, new, client_id, now.0, grace_start.0])
    };
    let array = serde_json::Value::Array(rotations.iter().map(fields).collect()).to_string();
    let mut connection = sqlite.writer.acquire().await?;
    let rows = sqlx::query(sessions::ROTATE)
        .bind(array)
        .fetch_all(&mut *connection)
        .await;
    let rows = rollback_on_error(&mut connection, rows).await?;
    let mut found: Vec<Result<Vec<_>, sqlx::Error>> =
        rotations.iter().map(|_| Ok(Vec::new())).collect();
    for row in &rows {
        let place = row
            .try_get::<i64, _>("place")
            .ok()
            .and_then(|place| usize::try_from(place).ok());
        let Some(found) = place.and_then(|place| found.get_mut(place)) else {
            continue;
        };
        match (RowPerGroup::<RefreshSession>::from_row(row), &mut *found) {
            (Ok(row), Ok(rows)) => rows.push(row),
            (Err(error), _) => *found = Err(error),
            (Ok(_), Err(_)) => {}
        }
    }
    Ok(found
        .into_iter()
        .map(|rows| rows.map(SessionOutcome::rotated))
        .collect())
}

/// Rolls back after a failed execution. The rollback itself fails if no transaction was open, which
/// is ignored.
async fn rollback_on_error<T>(
    connection: &mut SqliteConnection,
    outcome: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    if outcome.is_err() {
        let _ = sqlx::query("ROLLBACK").execute(connection).await;
    }
    outcome
}

#[cfg(test)]
mod tests;
