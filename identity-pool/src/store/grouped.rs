//! Group commit for what every sign-in and refresh writes to SQLite.
//!
//! SQLite has one writer and waits for the disk at each commit. What arrives while a commit is in flight shares the
//! next one; nobody waits on purpose. PostgreSQL does the same on its own.

use postern_common::database::Sqlite;
use tokio::sync::{mpsc, oneshot};

use super::sessions::{self, SessionWrite, Written, apply};

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
        self.0.send(Job { write, done }).await.map_err(|_| sqlx::Error::WorkerCrashed)?;
        outcome.await.map_err(|_| sqlx::Error::WorkerCrashed)?
    }
}

async fn serve(sqlite: Sqlite, mut jobs: mpsc::Receiver<Job>) {
    let mut batch = Vec::with_capacity(BATCH);
    while jobs.recv_many(&mut batch, BATCH).await > 0 {
        match commit(&sqlite, &batch).await {
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
        let outcome = commit(sqlite, std::slice::from_ref(&job)).await;
        let _ = job.done.send(outcome.map(|mut outcomes| outcomes.pop().unwrap_or(Written::Refused)));
    }
}

async fn commit(sqlite: &Sqlite, jobs: &[Job]) -> Result<Vec<Written>, sqlx::Error> {
    if let [job] = jobs {
        return alone(sqlite, &job.write).await.map(|outcome| vec![outcome]);
    }
    let mut transaction = sqlite.begin().await?;
    let mut outcomes = Vec::with_capacity(jobs.len());
    for job in jobs {
        outcomes.push(apply!(&mut *transaction, sessions::SQLITE, &job.write)?);
    }
    transaction.commit().await?;
    Ok(outcomes)
}

/// The transaction in the same execution: three waits for the writer's thread less.
async fn alone(sqlite: &Sqlite, write: &SessionWrite) -> Result<Written, sqlx::Error> {
    let mut connection = sqlite.writer.acquire().await?;
    let outcome = apply!(&mut *connection, sessions::SQLITE_ALONE, write);
    if outcome.is_err() {
        // Where it had not even begun, there is nothing to roll back.
        let _ = sqlx::query("ROLLBACK").execute(&mut *connection).await;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use postern_common::clock::Timestamp;
    use postern_common::database::{Database, testing};
    use sqlx::Executor;

    use super::super::{Family, GroupRow, Store, Stored};
    use super::*;
    use crate::pool::{Client, ClientSettings, Pool, PoolSettings};
    use crate::user::{Status, User};

    const NOW: Timestamp = Timestamp(1_000_000);

    fn has_begun(written: &Written) -> bool {
        matches!(written, Written::Begun { groups } if groups.is_empty())
    }

    fn is_refused(written: &Written) -> bool {
        matches!(written, Written::Refused)
    }

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

    fn begin(number: usize, client: &str, password_version: i64) -> SessionWrite {
        SessionWrite::Begin {
            pool_id: "p".into(),
            username: "ada".into(),
            password_version,
            attempts: Some("ada".into()),
            now: NOW,
            family: Family {
                family: format!("f{number}"),
                client_id: client.into(),
                auth_time: 0,
                expires_at: 1,
                revoked_at: None,
            },
            hash: format!("h{number}"),
        }
    }

    #[tokio::test]
    async fn a_sign_in_is_refused_when_what_it_rests_on_is_gone() {
        for test in testing::both().await {
            let store = store_with_ada(&test).await;
            let quiet_since = Timestamp(0);
            store.count_failure(("p", "ada"), NOW, quiet_since).await.expect("counted");
            // Each alone, then all of them in one transaction.
            let alone = store.write_session(begin(0, "c", 0)).await.expect("written");
            assert!(has_begun(&alone), "{alone:?}");
            assert_eq!(store.locked_until("p", "ada").await.expect("read"), 0, "forgiven");
            assert!(is_refused(&store.write_session(begin(1, "c", 1)).await.expect("answered")));
            for _ in 0..5 {
                store.count_failure(("p", "ada"), NOW, quiet_since).await.expect("counted");
            }
            assert!(is_refused(&store.write_session(begin(2, "c", 0)).await.expect("answered")));
            assert_eq!(store.locked_until("p", "ada").await.expect("read"), NOW.0 + 1000, "still locked");
            let together = (3..20).map(|number| store.write_session(begin(number, "c", 0)));
            for outcome in futures_util::future::join_all(together).await {
                assert!(is_refused(&outcome.expect("answered")));
            }
            store.forget_attempts("p", "ada").await.expect("forgotten");
            let ada = store.user("p", "ada").await.expect("read").expect("there");
            for (name, precedence) in [("last", None), ("second", Some(2)), ("first", Some(1))] {
                let group = GroupRow {
                    pool_id: "p".into(),
                    name: name.into(),
                    description: None,
                    precedence,
                    created_at: 0,
                    updated_at: 0,
                };
                store.add_group(&group).await.expect("a group");
                store.join_group(&ada, name).await.expect("in it");
            }
            let in_groups = store.write_session(begin(21, "c", 0)).await.expect("written");
            let groups = ["first", "second", "last"].map(str::to_owned).to_vec();
            assert!(matches!(in_groups, Written::Begun { groups: now } if now == groups));
            store.set_enabled(&ada, false, NOW).await.expect("disabled");
            assert!(is_refused(&store.write_session(begin(20, "c", 0)).await.expect("answered")));
            for number in 1..=20 {
                assert!(
                    store.refresh_token(&format!("h{number}")).await.expect("read").is_none(),
                    "{number}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_lock_that_comes_while_a_sign_in_waits_stands() {
        let test = testing::postgres().await;
        let (store, Database::Postgres(pool)) = (store_with_ada(&test).await, &test.database) else {
            panic!("PostgreSQL")
        };
        for _ in 0..4 {
            store.count_failure(("p", "ada"), NOW, Timestamp(0)).await.expect("counted");
        }
        let mut other = pool.begin().await.expect("begins");
        other.execute("UPDATE pool_user SET updated_at = 1").await.expect("holds the user");
        let waiting = store.clone();
        let sign_in = tokio::spawn(async move { waiting.write_session(begin(0, "c", 0)).await });
        const WAITS: &str = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while sqlx::query_scalar::<_, i64>(WAITS).fetch_one(pool).await.expect("asks") == 0 {
            tokio::task::yield_now().await;
        }
        store.count_failure(("p", "ada"), NOW, Timestamp(0)).await.expect("the fifth locks");
        other.commit().await.expect("lets go");
        assert!(is_refused(&sign_in.await.expect("no panic").expect("answered")));
        assert_eq!(store.locked_until("p", "ada").await.expect("read"), NOW.0 + 1000, "still locked");
    }

    #[tokio::test]
    async fn a_write_that_fails_takes_no_other_with_it() {
        for test in testing::both().await {
            let store = store_with_ada(&test).await;
            store.write_session(begin(100, "nobody", 0)).await.expect_err("no such client, alone");
            let writes = (0..20).map(|number| {
                let client = if number % 5 == 0 { "nobody" } else { "c" };
                store.write_session(begin(number, client, 0))
            });
            let outcomes = futures_util::future::join_all(writes).await;
            for (number, outcome) in outcomes.iter().enumerate() {
                assert_eq!(outcome.is_ok(), number % 5 != 0, "{number}: {outcome:?}");
                let kept = store.refresh_token(&format!("h{number}")).await.expect("read");
                assert_eq!(kept.is_some(), outcome.is_ok(), "{number}");
            }
            // A sign-in that stands until the millisecond 1.
            let rotate = |client: &str, old: &str, new: &str, now: i64| SessionWrite::Rotate {
                old: old.into(),
                new: new.into(),
                client_id: client.into(),
                now: Timestamp(now),
                grace_began: Timestamp(now),
            };
            let write = async |write| store.write_session(write).await.expect("answered");
            assert!(is_refused(&write(rotate("c", "h1", "n0", 1)).await), "its sign-in has ended");
            assert!(is_refused(&write(rotate("another", "h1", "n0", 0)).await), "another client's");
            let rotated = write(rotate("c", "h1", "n1", 0)).await;
            assert!(
                matches!(&rotated, Written::Rotated(found) if found.family.family == "f1" && found.user.username == "ada"
                    && found.rotated_at.is_none()),
                "{rotated:?}"
            );
            assert!(is_refused(&write(rotate("c", "h1", "n2", 0)).await), "used before its grace began");
            let shown = async |hash| store.refresh_token(hash).await.expect("read");
            assert_eq!(shown("h1").await.expect("kept").rotated_at, Some(0));
            assert!(
                shown("n1").await.is_some() && shown("n0").await.is_none() && shown("n2").await.is_none()
            );
            let ada = store.user("p", "ada").await.expect("read").expect("there");
            store.set_enabled(&ada, false, NOW).await.expect("disabled");
            assert!(is_refused(&write(rotate("c", "n1", "n3", 0)).await), "its user is disabled");
            store.set_enabled(&ada, true, NOW).await.expect("enabled");
            store.revoke_family("f1", NOW).await.expect("revoked");
            assert!(is_refused(&write(rotate("c", "n1", "n3", 0)).await), "its sign-in was revoked");
        }
    }
}
