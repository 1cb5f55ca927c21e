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
    let store = Store::open(database.database.clone())
        .await
        .expect("tables");
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
        store
            .count_failure(("p", "ada"), NOW, quiet_since)
            .await
            .expect("counted");
        // Each alone, then all of them in one transaction.
        let alone = store
            .write_session(begin(0, "c", 0))
            .await
            .expect("written");
        assert!(has_begun(&alone), "{alone:?}");
        assert_eq!(
            store.locked_until("p", "ada").await.expect("read"),
            0,
            "forgiven"
        );
        assert!(is_refused(
            &store
                .write_session(begin(1, "c", 1))
                .await
                .expect("answered")
        ));
        for _ in 0..5 {
            store
                .count_failure(("p", "ada"), NOW, quiet_since)
                .await
                .expect("counted");
        }
        assert!(is_refused(
            &store
                .write_session(begin(2, "c", 0))
                .await
                .expect("answered")
        ));
        assert_eq!(
            store.locked_until("p", "ada").await.expect("read"),
            NOW.0 + 1000,
            "still locked"
        );
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
        let in_groups = store
            .write_session(begin(21, "c", 0))
            .await
            .expect("written");
        let groups = ["first", "second", "last"].map(str::to_owned).to_vec();
        assert!(matches!(in_groups, Written::Begun { groups: now } if now == groups));
        store.set_enabled(&ada, false, NOW).await.expect("disabled");
        assert!(is_refused(
            &store
                .write_session(begin(20, "c", 0))
                .await
                .expect("answered")
        ));
        for number in 1..=20 {
            assert!(
                store
                    .refresh_token(&format!("h{number}"))
                    .await
                    .expect("read")
                    .is_none(),
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
        store
            .count_failure(("p", "ada"), NOW, Timestamp(0))
            .await
            .expect("counted");
    }
    let mut other = pool.begin().await.expect("begins");
    other
        .execute("UPDATE pool_user SET updated_at = 1")
        .await
        .expect("holds the user");
    let waiting = store.clone();
    let sign_in = tokio::spawn(async move { waiting.write_session(begin(0, "c", 0)).await });
    const WAITS: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(WAITS)
        .fetch_one(pool)
        .await
        .expect("asks")
        == 0
    {
        tokio::task::yield_now().await;
    }
    store
        .count_failure(("p", "ada"), NOW, Timestamp(0))
        .await
        .expect("the fifth locks");
    other.commit().await.expect("lets go");
    assert!(is_refused(
        &sign_in.await.expect("no panic").expect("answered")
    ));
    assert_eq!(
        store.locked_until("p", "ada").await.expect("read"),
        NOW.0 + 1000,
        "still locked"
    );
}

#[tokio::test]
async fn a_write_that_fails_takes_no_other_with_it() {
    for test in testing::both().await {
        let store = store_with_ada(&test).await;
        store
            .write_session(begin(100, "nobody", 0))
            .await
            .expect_err("no such client, alone");
        let writes = (0..20).map(|number| {
            let client = if number % 5 == 0 { "nobody" } else { "c" };
            store.write_session(begin(number, client, 0))
        });
        let outcomes = futures_util::future::join_all(writes).await;
        for (number, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.is_ok(), number % 5 != 0, "{number}: {outcome:?}");
            let kept = store
                .refresh_token(&format!("h{number}"))
                .await
                .expect("read");
            assert_eq!(kept.is_some(), outcome.is_ok(), "{number}");
        }
        // A sign-in that stands until the millisecond 1.
        let write = async |write| store.write_session(write).await.expect("answered");
        assert!(
            is_refused(&write(rotate("c", "h1", "n0", 1)).await),
            "its sign-in has ended"
        );
        assert!(
            is_refused(&write(rotate("another", "h1", "n0", 0)).await),
            "another client's"
        );
        let rotated = write(rotate("c", "h1", "n1", 0)).await;
        assert!(
            matches!(&rotated, Written::Rotated(found) if found.family.family == "f1" && found.user.username == "ada"
                && found.rotated_at.is_none()),
            "{rotated:?}"
        );
        assert!(
            is_refused(&write(rotate("c", "h1", "n2", 0)).await),
            "used before its grace began"
        );
        let shown = async |hash| store.refresh_token(hash).await.expect("read");
        assert_eq!(shown("h1").await.expect("kept").rotated_at, Some(0));
        assert!(
            shown("n1").await.is_some()
                && shown("n0").await.is_none()
                && shown("n2").await.is_none()
        );
        let ada = store.user("p", "ada").await.expect("read").expect("there");
        store.set_enabled(&ada, false, NOW).await.expect("disabled");
        assert!(
            is_refused(&write(rotate("c", "n1", "n3", 0)).await),
            "its user is disabled"
        );
        store.set_enabled(&ada, true, NOW).await.expect("enabled");
        store.revoke_family("f1", NOW).await.expect("revoked");
        assert!(
            is_refused(&write(rotate("c", "n1", "n3", 0)).await),
            "its sign-in was revoked"
        );
    }
}

/// With a grace that a token rotated at 0 is within.
fn rotate_with_grace(old: &str, new: &str) -> SessionWrite {
    SessionWrite::Rotate(Rotate {
        old: old.into(),
        new: new.into(),
        client_id: "c".into(),
        now: Timestamp(0),
        grace_began: Timestamp(-1),
    })
}

/// What came of writes that were asked for together.
async fn together(
    store: &Store,
    writes: impl IntoIterator<Item = SessionWrite>,
) -> Vec<Result<Written, sqlx::Error>> {
    let written = writes.into_iter().map(|write| store.write_session(write));
    futures_util::future::join_all(written).await
}

fn family_of(written: &Written) -> &str {
    if let Written::Rotated(found) = written {
        &found.family.family
    } else {
        ""
    }
}

#[tokio::test]
async fn rotations_that_come_together_are_each_judged_alone() {
    for test in testing::both().await {
        let store = store_with_ada(&test).await;
        for outcome in together(&store, (0..20).map(|number| begin(number, "c", 0))).await {
            assert!(has_begun(&outcome.expect("written")));
        }
        // Each token is shown twice, and there is no grace: whoever is later is refused. Some are
        // shown by another client.
        let client = |number: usize| {
            if number.is_multiple_of(5) {
                "another"
            } else {
                "c"
            }
        };
        let shows = (0..40).map(|turn| {
            let number = turn % 20;
            rotate(
                client(number),
                &format!("h{number}"),
                &format!("n{turn}"),
                0,
            )
        });
        let outcomes = together(&store, shows).await;
        for (turn, outcome) in outcomes.iter().enumerate() {
            let (number, outcome) = (turn % 20, outcome.as_ref().expect("answered"));
            let other = outcomes[(turn + 20) % 40].as_ref().expect("answered");
            let kept = store
                .refresh_token(&format!("n{turn}"))
                .await
                .expect("read");
            if let Written::Rotated(found) = outcome {
                assert!(is_refused(other) && client(number) == "c", "{number}");
                let (kept, family) = (kept.expect("there is a new one"), format!("f{number}"));
                assert_eq!(
                    (&found.family.family, &kept.family.family),
                    (&family, &family)
                );
            } else {
                assert!(is_refused(outcome) && kept.is_none(), "{number}");
                assert_eq!(
                    is_refused(other),
                    client(number) != "c",
                    "{number}: one of the two"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_token_that_is_shown_twice_within_its_grace_rotates_twice() {
    for test in testing::both().await {
        let store = store_with_ada(&test).await;
        store
            .write_session(begin(0, "c", 0))
            .await
            .expect("written");
        let rotations = (0..9).map(|new| rotate_with_grace("h0", &format!("n{new}")));
        for (new, outcome) in together(&store, rotations).await.into_iter().enumerate() {
            assert_eq!(family_of(&outcome.expect("answered")), "f0");
            assert!(
                store
                    .refresh_token(&format!("n{new}"))
                    .await
                    .expect("read")
                    .is_some()
            );
        }
    }
}

#[tokio::test]
async fn of_rotations_that_come_together_each_finds_its_own_user() {
    for test in testing::both().await {
        let store = store_with_ada(&test).await;
        let ada = store.user("p", "ada").await.expect("read").expect("there");
        for (username, groups) in [
            ("bob", &[][..]),
            ("eve", &["b", "a"]),
            ("bad", &["a"]),
            ("dan", &["a"]),
        ] {
            let user = User {
                username: username.into(),
                sub: username.into(),
                ..ada.clone()
            };
            store.add_user(&user).await.expect("a user");
            for name in groups {
                let group = GroupRow {
                    pool_id: "p".into(),
                    name: (*name).into(),
                    description: None,
                    precedence: None,
                    created_at: 0,
                    updated_at: 0,
                };
                let _there_already = store.add_group(&group).await;
                store.join_group(&user, name).await.expect("in it");
            }
        }
        let names = ["ada", "bob", "eve", "bad", "dan"];
        let begins = names.iter().enumerate().map(|(number, name)| {
            let SessionWrite::Begin(one) = begin(number, "c", 0) else {
                panic!("a sign-in")
            };
            SessionWrite::Begin(Begin {
                username: (*name).into(),
                ..one
            })
        });
        together(&store, begins)
            .await
            .into_iter()
            .for_each(|begun| drop(begun.expect("written")));
        // What bad is, nobody can read; and the second time the token that bob would get is there
        // already.
        execute(
            &test.database,
            "UPDATE pool_user SET status = '?' WHERE username = 'bad'",
        )
        .await;
        for (olds, news) in [
            ("h", ["n0", "n1", "n2", "n3", "n4"]),
            ("n", ["m0", "h0", "m2", "m3", "m4"]),
        ] {
            let rotations = news.iter().enumerate();
            let rotations =
                rotations.map(|(number, new)| rotate_with_grace(&format!("{olds}{number}"), new));
            let outcomes = together(&store, rotations).await;
            for (number, groups) in [(0, &[][..]), (2, &["a", "b"]), (4, &["a"])] {
                let Ok(Written::Rotated(found)) = &outcomes[number] else {
                    panic!("{:?}", outcomes[number])
                };
                assert_eq!(found.user.username, names[number]);
                assert_eq!(found.groups, groups);
            }
            assert_eq!(
                (outcomes[1].is_ok(), outcomes[3].is_ok()),
                (olds == "h", false),
                "{outcomes:?}"
            );
        }
        assert!(
            store
                .refresh_token("n1")
                .await
                .expect("read")
                .expect("kept")
                .rotated_at
                .is_none()
        );
    }
}

async fn execute(database: &Database, sql: &'static str) {
    match database {
        Database::Postgres(pool) => pool.execute(sql).await.map(drop),
        Database::Sqlite(sqlite) => sqlite.writer.execute(sql).await.map(drop),
    }
    .expect("the statement is good");
}
