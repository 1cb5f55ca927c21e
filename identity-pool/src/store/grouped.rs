//! Group commit for what every sign-in and refresh writes to SQLite.
//!
//! SQLite has one writer and waits for the disk at each commit. What arrives while a commit is in flight shares the
//! next one; nobody waits on purpose. PostgreSQL does the same on its own.

use postern_common::database::Sqlite;
use tokio::sync::{mpsc, oneshot};

use super::sessions::{self, Rotation, SessionWrite, apply};

/// Writes that wait for a commit; more wait to be queued.
const QUEUE: usize = 1024;
/// Writes in one transaction at most.
const BATCH: usize = 256;

/// The way to the writer; it stops when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Grouped(mpsc::Sender<Job>);

#[derive(Debug)]
struct Job {
    write: SessionWrite,
    done: oneshot::Sender<Result<Rotation, sqlx::Error>>,
}

impl Grouped {
    pub(super) fn start(sqlite: Sqlite) -> Self {
        let (sender, jobs) = mpsc::channel(QUEUE);
        tokio::spawn(serve(sqlite, jobs));
        Self(sender)
    }

    /// Returns after the commit.
    pub(super) async fn write(&self, write: SessionWrite) -> Result<Rotation, sqlx::Error> {
        let (done, outcome) = oneshot::channel();
        self.0.send(Job { write, done }).await.map_err(|_| sqlx::Error::WorkerCrashed)?;
        outcome.await.map_err(|_| sqlx::Error::WorkerCrashed)?
    }
}

async fn serve(sqlite: Sqlite, mut jobs: mpsc::Receiver<Job>) {
    let mut batch = Vec::with_capacity(BATCH);
    while jobs.recv_many(&mut batch, BATCH).await > 0 {
        match commit(&sqlite, batch.iter().map(|job| &job.write)).await {
            Ok(outcomes) => {
                for (job, outcome) in batch.drain(..).zip(outcomes) {
                    // Whoever asked may have gone; what was asked for is done all the same.
                    let _ = job.done.send(Ok(outcome));
                }
            }
            // One that cannot be written must not take the others with it.
            Err(_) => one_by_one(&sqlite, &mut batch).await,
        }
    }
}

async fn one_by_one(sqlite: &Sqlite, batch: &mut Vec<Job>) {
    for job in batch.drain(..) {
        let outcome = commit(sqlite, std::iter::once(&job.write)).await;
        let _ = job.done.send(outcome.map(|outcomes| outcomes.first().copied().unwrap_or(Rotation::Reused)));
    }
}

async fn commit(
    sqlite: &Sqlite,
    writes: impl Iterator<Item = &SessionWrite>,
) -> Result<Vec<Rotation>, sqlx::Error> {
    let mut transaction = sqlite.begin().await?;
    let mut outcomes = Vec::new();
    for write in writes {
        outcomes.push(apply!(transaction, write)?);
    }
    transaction.commit().await?;
    Ok(outcomes)
}
