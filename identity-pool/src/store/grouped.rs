//! Group commit for what every sign-in and refresh writes to SQLite.
//!
//! SQLite has one writer and waits for the disk at each commit. What arrives while a commit is in flight shares the
//! next one; nobody waits on purpose. PostgreSQL does the same on its own.

use std::collections::HashSet;

use postern_common::database::Sqlite;
use sqlx::SqliteConnection;
use tokio::sync::{mpsc, oneshot};

use super::groups::InGroup;
use super::sessions::{self, Begin, FamilyOfUser, Rotate, SessionWrite, Written, begin};

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

/// Writes of one kind, each with whom it is for.
type Asked<W> = Vec<(W, oneshot::Sender<Result<Written, sqlx::Error>>)>;

/// A rotation that was done.
#[derive(sqlx::FromRow)]
struct Done {
    place: i64,
    #[sqlx(flatten)]
    found: InGroup<FamilyOfUser>,
}

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
            // Of several who show the same token each finds what the one before has done.
            let mut shown = HashSet::new();
            let (now, later) =
                rotations.into_iter().partition(|(rotate, _)| shown.insert(rotate.old.clone()));
            settle(&sqlite, now, rotate_all).await;
            rotations = later;
        }
    }
}

/// Writes all of these, or if that fails each alone: one that cannot be written must not take the others with it.
async fn settle<W>(
    sqlite: &Sqlite,
    asked: Asked<W>,
    commit: impl AsyncFn(&Sqlite, &[W]) -> Result<Vec<Written>, sqlx::Error>,
) {
    let (writes, done): (Vec<W>, Vec<_>) = asked.into_iter().unzip();
    // Whoever asked may have gone; what was asked for is done all the same.
    match commit(sqlite, &writes).await {
        Ok(outcomes) => {
            for (done, outcome) in done.into_iter().zip(outcomes) {
                let _ = done.send(Ok(outcome));
            }
        }
        Err(_) => {
            for (done, write) in done.into_iter().zip(&writes) {
                let outcome = commit(sqlite, std::slice::from_ref(write)).await;
                let _ = done.send(outcome.map(|mut outcomes| outcomes.pop().unwrap_or(Written::Refused)));
            }
        }
    }
}

async fn begin_all(sqlite: &Sqlite, begins: &[Begin]) -> Result<Vec<Written>, sqlx::Error> {
    if let [begin] = begins {
        // The transaction in the same execution: three waits for the writer's thread less.
        let mut connection = sqlite.writer.acquire().await?;
        let outcome = begin!(&mut *connection, sessions::BEGIN_ALONE_IN_SQLITE, begin);
        return sound(&mut connection, outcome).await.map(|written| vec![written]);
    }
    let mut transaction = sqlite.begin().await?;
    let mut outcomes = Vec::with_capacity(begins.len());
    for begin in begins {
        outcomes.push(begin!(&mut *transaction, sessions::BEGIN_IN_SQLITE, begin)?);
    }
    transaction.commit().await?;
    Ok(outcomes)
}

/// All of them in one execution: each is a wait for the writer's thread.
async fn rotate_all(sqlite: &Sqlite, rotations: &[Rotate]) -> Result<Vec<Written>, sqlx::Error> {
    let fields = |rotate: &Rotate| {
        let Rotate { old, new, client_id, now, grace_began } = rotate;
        serde_json::json!([old, new, client_id, now.0, grace_began.0])
    };
    let array = serde_json::Value::Array(rotations.iter().map(fields).collect()).to_string();
    let mut connection = sqlite.writer.acquire().await?;
    let query = sqlx::query_as(sessions::ROTATE_IN_SQLITE).bind(array);
    let rows = query.fetch_all(&mut *connection).await;
    let rows: Vec<Done> = sound(&mut connection, rows).await?;
    let mut found: Vec<Vec<InGroup<FamilyOfUser>>> = rotations.iter().map(|_| Vec::new()).collect();
    for row in rows {
        if let Some(found) = usize::try_from(row.place).ok().and_then(|place| found.get_mut(place)) {
            found.push(row.found);
        }
    }
    Ok(found.into_iter().map(Written::rotated).collect())
}

/// Ends the transaction of an execution that has failed. Where it had not even begun, there is nothing to roll back.
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
        SessionWrite::Begin(Begin {
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
        })
    }

    /// With no grace.
    fn rotate(client: &str, old: &str, new: &str, now: i64) -> SessionWrite {
        SessionWrite::Rotate(Rotate {
            old: old.into(),
            new: new.into(),
            client_id: client.into(),
            now: Timestamp(now),
            grace_began: Timestamp(now),
        })
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

    #[tokio::test]
    async fn rotations_that_come_together_are_each_judged_alone() {
        for test in testing::both().await {
            let store = store_with_ada(&test).await;
            for number in 0..20 {
                store.write_session(begin(number, "c", 0)).await.expect("written");
            }
            // Each token is shown twice, and there is no grace: whoever is later is refused. Some are shown by another client.
            let client = |number: usize| if number.is_multiple_of(5) { "another" } else { "c" };
            let shows = (0..40).map(|turn| {
                let number = turn % 20;
                rotate(client(number), &format!("h{number}"), &format!("n{turn}"), 0)
            });
            let written = shows.map(|write| store.write_session(write));
            let outcomes = futures_util::future::join_all(written).await;
            for (turn, outcome) in outcomes.iter().enumerate() {
                let (number, outcome) = (turn % 20, outcome.as_ref().expect("answered"));
                let other = outcomes[(turn + 20) % 40].as_ref().expect("answered");
                let kept = store.refresh_token(&format!("n{turn}")).await.expect("read");
                if let Written::Rotated(found) = outcome {
                    assert!(is_refused(other) && client(number) == "c", "{number}");
                    let (kept, family) = (kept.expect("there is a new one"), format!("f{number}"));
                    assert_eq!((&found.family.family, &kept.family.family), (&family, &family));
                } else {
                    assert!(is_refused(outcome) && kept.is_none(), "{number}");
                    assert_eq!(is_refused(other), client(number) != "c", "{number}: one of the two");
                }
            }
        }
    }
}
