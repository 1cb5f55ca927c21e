use postern_common::clock::Timestamp;
use postern_common::database::testing;
use sqlx::Executor;

use super::super::{GroupRow, PoolStore, TokenFamily};
use super::*;
use crate::pool::model::{
    AppClient, ClientSettings, JsonColumn, PoolSettings, User, UserPool, UserStatus,
};

const NOW: Timestamp = Timestamp(1_000_000);

fn has_started(written: &SessionOutcome) -> bool {
    matches!(written, SessionOutcome::Started { groups } if groups.is_empty())
}

fn is_rejected(written: &SessionOutcome) -> bool {
    matches!(written, SessionOutcome::Rejected)
}

async fn store_with_ada(database: &testing::TestDatabase) -> PoolStore {
    let store = PoolStore::open(database.database.clone())
        .await
        .expect("tables");
    let pool = UserPool {
        id: "p".into(),
        name: "p".into(),
        settings: PoolSettings::default(),
        created_at: 0,
        updated_at: 0,
    };
    store.put_pool(&pool).await.expect("a pool");
    let client = AppClient {
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
        status: UserStatus::Confirmed,
        enabled: 1,
        attributes: JsonColumn::default(),
        password: None,
        password_version: 0,
        temporary_until: None,
        created_at: 0,
        updated_at: 0,
    };
    store.add_user(&user).await.expect("a user");
    store
}

fn start(number: usize, client: &str, password_version: i64) -> SessionWrite {
    SessionWrite::StartSession(StartSession {
        pool_id: "p".into(),
        username: "ada".into(),
        password_version,
        attempts: Some("ada".into()),
        now: NOW,
        family: TokenFamily {
            family: format!("f{number}"),
            client_id: client.into(),
            auth_time: 0,
            expires_at: 1,
            revoked_at: None,
        },
        hash: format!("h{number}"),
    })
}

/// Returns a rotation without a grace period.
fn rotation(client: &str, old: &str, new: &str, now: i64) -> SessionWrite {
    SessionWrite::RotateToken(RotateToken {
        old: old.into(),
        new: new.into(),
        client_id: client.into(),
        now: Timestamp(now),
        grace_start: Timestamp(now),
    })
}

fn group(name: &str, precedence: Option<i64>) -> GroupRow {
    GroupRow {
        pool_id: "p".into(),
        name: name.into(),
        description: None,
        precedence,
        created_at: 0,
        updated_at: 0,
    }
}

async fn assert_rejected(store: &PoolStore, write: SessionWrite) {
    let outcome = store.write_session(write).await.expect("answered");
    assert!(is_rejected(&outcome), "{outcome:?}");
}

#[tokio::test]
async fn sign_in_without_valid_preconditions_is_rejected() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    let quiet_since = Timestamp(0);
    store
        .count_failure("p", "ada", NOW, quiet_since)
        .await
        .expect("counted");
    // Separately first, then all of them in one transaction.
    let alone = store
        .write_session(start(0, "c", 0))
        .await
        .expect("written");
    assert!(has_started(&alone), "{alone:?}");
    assert_eq!(
        store.locked_until("p", "ada").await.expect("read"),
        0,
        "forgiven"
    );
    assert_rejected(&store, start(1, "c", 1)).await;
    for _ in 0..5 {
        store
            .count_failure("p", "ada", NOW, quiet_since)
            .await
            .expect("counted");
    }
    assert_rejected(&store, start(2, "c", 0)).await;
    assert_eq!(
        store.locked_until("p", "ada").await.expect("read"),
        NOW.0 + 1000,
        "still locked"
    );
    let write_concurrently = (3..20).map(|number| store.write_session(start(number, "c", 0)));
    for outcome in futures_util::future::join_all(write_concurrently).await {
        assert!(is_rejected(&outcome.expect("answered")));
    }
    store.clear_attempts("p", "ada").await.expect("forgotten");
    let ada = store
        .user("p", "ada")
        .await
        .expect("read")
        .expect("the user exists");
    for (name, precedence) in [("last", None), ("second", Some(2)), ("first", Some(1))] {
        store
            .add_group(&group(name, precedence))
            .await
            .expect("a group");
        store
            .join_group(&ada, name)
            .await
            .expect("the user joins the group");
    }
    let in_groups = store
        .write_session(start(21, "c", 0))
        .await
        .expect("written");
    let groups = ["first", "second", "last"].map(str::to_owned).to_vec();
    assert!(matches!(in_groups, SessionOutcome::Started { groups: now } if now == groups));
    store.set_enabled(&ada, false, NOW).await.expect("disabled");
    assert_rejected(&store, start(20, "c", 0)).await;
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

#[tokio::test]
async fn failing_write_does_not_affect_others() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    store
        .write_session(start(100, "nobody", 0))
        .await
        .expect_err("an unknown client");
    let writes = (0..20).map(|number| {
        let client = if number % 5 == 0 { "nobody" } else { "c" };
        store.write_session(start(number, client, 0))
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
    // A sign-in that is valid until millisecond 1.
    let write = async |write| store.write_session(write).await.expect("answered");
    assert!(
        is_rejected(&write(rotation("c", "h1", "n0", 1)).await),
        "its sign-in has ended"
    );
    assert!(
        is_rejected(&write(rotation("another", "h1", "n0", 0)).await),
        "another client's"
    );
    let rotated = write(rotation("c", "h1", "n1", 0)).await;
    assert!(
        matches!(&rotated, SessionOutcome::Rotated(found) if found.family.family == "f1" && found.user.username == "ada"
            && found.rotated_at.is_none()),
        "{rotated:?}"
    );
    assert!(
        is_rejected(&write(rotation("c", "h1", "n2", 0)).await),
        "used before the grace period"
    );
    let shown = async |hash| store.refresh_token(hash).await.expect("read");
    assert_eq!(shown("h1").await.expect("kept").rotated_at, Some(0));
    assert!(
        shown("n1").await.is_some() && shown("n0").await.is_none() && shown("n2").await.is_none()
    );
    let ada = store
        .user("p", "ada")
        .await
        .expect("read")
        .expect("the user exists");
    store.set_enabled(&ada, false, NOW).await.expect("disabled");
    assert!(
        is_rejected(&write(rotation("c", "n1", "n3", 0)).await),
        "its user is disabled"
    );
    store.set_enabled(&ada, true, NOW).await.expect("enabled");
    store.revoke_family("f1", NOW).await.expect("revoked");
    assert!(
        is_rejected(&write(rotation("c", "n1", "n3", 0)).await),
        "its sign-in was revoked"
    );
}

/// Returns a rotation with a grace period that includes a token rotated at 0.
fn rotation_with_grace(old: &str, new: &str) -> SessionWrite {
    SessionWrite::RotateToken(RotateToken {
        old: old.into(),
        new: new.into(),
        client_id: "c".into(),
        now: Timestamp(0),
        grace_start: Timestamp(-1),
    })
}

/// Returns the results of concurrent writes.
async fn write_concurrently(
    store: &PoolStore,
    writes: impl IntoIterator<Item = SessionWrite>,
) -> Vec<Result<SessionOutcome, sqlx::Error>> {
    let written = writes.into_iter().map(|write| store.write_session(write));
    futures_util::future::join_all(written).await
}

fn family_of(written: &SessionOutcome) -> &str {
    if let SessionOutcome::Rotated(found) = written {
        &found.family.family
    } else {
        ""
    }
}

#[tokio::test]
async fn batched_rotations_are_validated_separately() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    for outcome in write_concurrently(&store, (0..20).map(|number| start(number, "c", 0))).await {
        assert!(has_started(&outcome.expect("written")));
    }
    // Each token is used twice without a grace period: the later use is rejected. Some are used
    // by another client.
    let client = |number: usize| {
        if number.is_multiple_of(5) {
            "another"
        } else {
            "c"
        }
    };
    let shows = (0..40).map(|turn| {
        let number = turn % 20;
        rotation(
            client(number),
            &format!("h{number}"),
            &format!("n{turn}"),
            0,
        )
    });
    let outcomes = write_concurrently(&store, shows).await;
    for (turn, outcome) in outcomes.iter().enumerate() {
        let (number, outcome) = (turn % 20, outcome.as_ref().expect("answered"));
        let other = outcomes[(turn + 20) % 40].as_ref().expect("answered");
        let kept = store
            .refresh_token(&format!("n{turn}"))
            .await
            .expect("read");
        if let SessionOutcome::Rotated(found) = outcome {
            assert!(is_rejected(other) && client(number) == "c", "{number}");
            let (kept, family) = (kept.expect("a new code"), format!("f{number}"));
            assert_eq!(
                (&found.family.family, &kept.family.family),
                (&family, &family)
            );
        } else {
            assert!(is_rejected(outcome) && kept.is_none(), "{number}");
            assert_eq!(
                is_rejected(other),
                client(number) != "c",
                "{number}: one of the two"
            );
        }
    }
}

#[tokio::test]
async fn token_used_twice_within_grace_rotates_twice() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    store
        .write_session(start(0, "c", 0))
        .await
        .expect("written");
    let rotations = (0..9).map(|new| rotation_with_grace("h0", &format!("n{new}")));
    for (new, outcome) in write_concurrently(&store, rotations)
        .await
        .into_iter()
        .enumerate()
    {
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

/// Adds users besides `ada`, some of them in groups.
async fn add_users_in_groups(store: &PoolStore) {
    let ada = store
        .user("p", "ada")
        .await
        .expect("read")
        .expect("the user exists");
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
            let _exists_already = store.add_group(&group(name, None)).await;
            store
                .join_group(&user, name)
                .await
                .expect("the user joins the group");
        }
    }
}

#[tokio::test]
async fn batched_rotations_return_their_own_users() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    add_users_in_groups(&store).await;
    let names = ["ada", "bob", "eve", "bad", "dan"];
    let starts = names.iter().enumerate().map(|(number, name)| {
        let SessionWrite::StartSession(one) = start(number, "c", 0) else {
            panic!("a sign-in")
        };
        SessionWrite::StartSession(StartSession {
            username: (*name).into(),
            ..one
        })
    });
    write_concurrently(&store, starts)
        .await
        .into_iter()
        .for_each(|started| drop(started.expect("written")));
    // The status `bad` is unreadable; in the second case the successor of bob's token exists
    // already.
    store
        .sqlite
        .writer
        .execute("UPDATE pool_user SET status = '?' WHERE username = 'bad'")
        .await
        .expect("the statement succeeds");
    for (olds, news) in [
        ("h", ["n0", "n1", "n2", "n3", "n4"]),
        ("n", ["m0", "h0", "m2", "m3", "m4"]),
    ] {
        let rotations = news.iter().enumerate();
        let rotations =
            rotations.map(|(number, new)| rotation_with_grace(&format!("{olds}{number}"), new));
        let outcomes = write_concurrently(&store, rotations).await;
        for (number, groups) in [(0, &[][..]), (2, &["a", "b"]), (4, &["a"])] {
            let Ok(SessionOutcome::Rotated(found)) = &outcomes[number] else {
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
