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
        outcomes.push(apply!(&mut *transaction, sessions::SQLITE, write)?);
    }
    transaction.commit().await?;
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use postern_common::clock::Timestamp;
    use postern_common::database::testing;

    use super::super::{Family, Store, Stored};
    use super::*;
    use crate::pool::{Client, ClientSettings, Pool, PoolSettings};
    use crate::user::{Status, User};

    async fn store_with_ada(database: &testing::TestDatabase) -> Store {
        let store = Store::open(database.database.clone()).await.expect("tables");
        let pool = Pool {
            id: "p".into(),
            name: "p".into(),
            settings: PoolSettings::default(),
            created_at: 0,
            updated_at: 0,
        };
        store.put_pool(&pool).await.expect("a pool");
        let client = Client {
            id: "c".into(),
            pool_id: "p".into(),
            name: "c".into(),
            secret: None,
            settings: ClientSettings::default(),
            created_at: 0,
            updated_at: 0,
        };
        store.put_client(&client).await.expect("a client");
        let user = User {
            pool_id: "p".into(),
            username: "ada".into(),
            sub: "s".into(),
            alias: None,
            status: Status::Confirmed,
            enabled: 1,
            attributes: Stored::default(),
            password: None,
            password_version: 0,
            temporary_until: None,
            created_at: 0,
            updated_at: 0,
        };
        store.add_user(&user).await.expect("a user");
        store
    }

    fn begin(username: &str, number: usize) -> SessionWrite {
        let family = Family {
            family: format!("f{number}"),
            client_id: "c".into(),
            auth_time: 0,
            expires_at: 1,
            revoked_at: None,
        };
        let hash = format!("h{number}");
        SessionWrite::Begin { pool_id: "p".into(), username: username.into(), family, hash }
    }

    #[tokio::test]
    async fn a_write_that_fails_takes_no_other_with_it() {
        for test in testing::both().await {
            let store = store_with_ada(&test).await;
            let writes = (0..20).map(|number| {
                let username = if number % 5 == 0 { "nobody" } else { "ada" };
                store.write_session(begin(username, number))
            });
            let outcomes = futures_util::future::join_all(writes).await;
            for (number, outcome) in outcomes.iter().enumerate() {
                assert_eq!(outcome.is_ok(), number % 5 != 0, "{number}: {outcome:?}");
                let kept = store.refresh_token(&format!("h{number}")).await.expect("read");
                assert_eq!(kept.is_some(), outcome.is_ok(), "{number}");
            }
            let rotate = SessionWrite::Rotate {
                old: "h1".into(),
                new: "n1".into(),
                family: "f1".into(),
                now: Timestamp(10),
                grace_began: Timestamp(10),
            };
            assert_eq!(store.write_session(rotate.clone()).await.expect("written"), Rotation::Done);
            assert_eq!(store.write_session(rotate).await.expect("refused"), Rotation::Reused);
        }
    }
}
