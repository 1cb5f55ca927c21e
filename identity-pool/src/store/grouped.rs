//! Group commit for what every sign-in and refresh writes to SQLite.
//!
//! SQLite has one writer and waits for the disk at each commit. What arrives while a commit is in
//! flight shares the next one; nobody waits on purpose. PostgreSQL does the same on its own.

use std::collections::HashSet;

use postern_common::database::Sqlite;
use sqlx::{FromRow, Row, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::groups::InGroup;
use super::sessions::{self, Begin, FamilyOfUser, Rotate, SessionWrite, Written, begin};

/// Writes that wait for a commit; more wait to be queued.
const QUEUE: usize = 1024;
/// Writes in one transaction at most: what they answer is in memory together.
const BATCH: usize = 64;

/// The way to the writer; it stops when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Grouped(mpsc::Sender<Job>);

#[derive(Debug)]
struct Job {
    write: SessionWrite,
    done: oneshot::Sender<Result<Written, sqlx::Error>>,
}

impl Grouped {
    pub(super) fn start(sqlite: Sqlite) -> Self {
        let (sender, jobs) = mpsc::channel(QUEUE);
        tokio::spawn(serve(sqlite, jobs));
        Self(sender)
    }

    /// Returns after the commit.
    pub(super) async fn write(&self, write: SessionWrite) -> Result<Written, sqlx::Error> {
        let (done, outcome) = oneshot::channel();
        self.0
            .send(Job { write, done })
            .await
            .map_err(|_| sqlx::Error::WorkerCrashed)?;
        outcome.await.map_err(|_| sqlx::Error::WorkerCrashed)?
    }
}

/// Writes of one kind, each with whom it is for.
type Asked<W> = Vec<(W, oneshot::Sender<Result<Written, sqlx::Error>>)>;

/// What came of each, or that none was written.
type Outcomes = Result<Vec<Result<Written, sqlx::Error>>, sqlx::Error>;

async fn serve(sqlite: Sqlite, mut jobs: mpsc::Receiver<Job>) {
    let mut batch = Vec::with_capacity(BATCH);
    while jobs.recv_many(&mut batch, BATCH).await > 0 {
        let (mut begins, mut rotations) = (Vec::new(), Vec::new());
        for Job { write, done } in batch.drain(..) {
            match write {
                SessionWrite::Begin(begin) => begins.push((begin, done)),
                SessionWrite::Rotate(rotate) => rotations.push((rotate, done)),
            }
        }
        if !begins.is_empty() {
            settle(&sqlite, begins, begin_all).await;
        }
        while !rotations.is_empty() {
            // Without grace, of several who show the same token each finds what the one before has
            // done.
            let mut shown = HashSet::new();
            let (now, later) = rotations
                .into_iter()
                .partition(|(rotate, _): &(Rotate, _)| {
                    shown.insert(rotate.old.clone()) || rotate.grace_began < rotate.now
                });
            settle(&sqlite, now, rotate_all).await;
            rotations = later;
        }
    }
}

/// Writes all of these, or if that fails each alone: one that cannot be written must not take the
/// others with it.
async fn settle<W>(
    sqlite: &Sqlite,
    asked: Asked<W>,
    commit: impl AsyncFn(&Sqlite, &[W]) -> Outcomes,
) {
    let (writes, done): (Vec<W>, Vec<_>) = asked.into_iter().unzip();
    // Whoever asked may have gone; what was asked for is done all the same.
    match commit(sqlite, &writes).await {
        Ok(outcomes) => {
            for (done, outcome) in done.into_iter().zip(outcomes) {
                let _ = done.send(outcome);
            }
        }
        Err(_) => {
            for (done, write) in done.into_iter().zip(&writes) {
                let outcomes = commit(sqlite, std::slice::from_ref(write)).await;
                let _ = done.send(
                    outcomes
                        .and_then(|mut outcomes| outcomes.pop().unwrap_or(Ok(Written::Refused))),
                );
            }
        }
    }
}

async fn begin_all(sqlite: &Sqlite, begins: &[Begin]) -> Outcomes {
    if let [begin] = begins {
        // The transaction in the same execution: three waits for the writer's thread less.
        let mut connection = sqlite.writer.acquire().await?;
        let outcome = begin!(&mut *connection, sessions::BEGIN_ALONE_IN_SQLITE, begin);
        return sound(&mut connection, outcome)
            .await
            .map(|written| vec![Ok(written)]);
    }
    let mut transaction = sqlite.begin().await?;
    let mut outcomes = Vec::with_capacity(begins.len());
    for begin in begins {
        outcomes.push(Ok(begin!(
            &mut *transaction,
            sessions::BEGIN_IN_SQLITE,
            begin
        )?));
    }
    transaction.commit().await?;
    Ok(outcomes)
}

/// All of them in one execution: each is a wait for the writer's thread. It commits before its rows
/// are read: one that cannot be read is the error of its own rotation.
async fn rotate_all(sqlite: &Sqlite, rotations: &[Rotate]) -> Outcomes {
    let fields = |rotate: &Rotate| {
        let Rotate {
            old,
            new,
            client_id,
            now,
            grace_began,
        } = rotate;
        serde_json::json!([old, new, client_id, now.0, grace_began.0])
    };
    let array = serde_json::Value::Array(rotations.iter().map(fields).collect()).to_string();
    let mut connection = sqlite.writer.acquire().await?;
    let rows = sqlx::query(sessions::ROTATE_IN_SQLITE)
        .bind(array)
        .fetch_all(&mut *connection)
        .await;
    let rows = sound(&mut connection, rows).await?;
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
        match (InGroup::<FamilyOfUser>::from_row(row), &mut *found) {
            (Ok(row), Ok(rows)) => rows.push(row),
            (Err(error), _) => *found = Err(error),
            (Ok(_), Err(_)) => {}
        }
    }
    Ok(found
        .into_iter()
        .map(|rows| rows.map(Written::rotated))
        .collect())
}

/// Ends the transaction of an execution that has failed. Where it had not even begun, there is
/// nothing to roll back.
async fn sound<T>(
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
