use postern_common::clock::Timestamp;
use postern_common::database::testing;

use super::super::{GroupRow, PoolStore, TokenFamily};
use super::*;
use crate::pool::model::{
    AppClient, ClientSettings, JsonColumn, PoolSettings, User, UserPool, UserStatus,
};

const NOW: Timestamp = Timestamp(1_000_000);

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

fn start(number: usize, client: &str, password_version: i64) -> StartSession {
    StartSession {
        pool_id: "p".into(),
        username: "ada".into(),
        password_version,
        family: TokenFamily {
            family: format!("f{number}"),
            client_id: client.into(),
            auth_time: 0,
            expires_at: 1,
            revoked_at: None,
        },
        hash: format!("h{number}"),
    }
}

/// Returns a rotation without a grace period.
fn rotation(client: &str, old: &str, new: &str, now: i64) -> RotateToken {
    RotateToken {
        old: old.into(),
        new: new.into(),
        client_id: client.into(),
        now: Timestamp(now),
        grace_start: Timestamp(now),
    }
}

async fn add_to_groups(store: &PoolStore, user: &User) {
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
        store.join_group(user, name).await.expect("a member");
    }
}

async fn ada(store: &PoolStore) -> User {
    let found = store.user("p", "ada").await.expect("read");
    found.expect("the user exists")
}

#[tokio::test]
async fn sign_in_without_valid_preconditions_is_rejected() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    let write = async |session| store.start_session(&session).await;
    let started = write(start(0, "c", 0)).await.expect("written");
    assert_eq!(started, Some(vec![]));
    assert_eq!(write(start(1, "c", 1)).await.expect("answered"), None);
    write(start(2, "nobody", 0))
        .await
        .expect_err("an unknown client");
    let ada = ada(&store).await;
    store.set_enabled(&ada, false, NOW).await.expect("disabled");
    assert_eq!(write(start(3, "c", 0)).await.expect("answered"), None);
    for number in 1..=3 {
        let kept = store.refresh_token(&format!("h{number}")).await;
        assert!(kept.expect("read").is_none(), "{number}");
    }
}

#[tokio::test]
async fn sign_in_and_rotation_return_groups_by_precedence() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    add_to_groups(&store, &ada(&store).await).await;
    let groups = ["first", "second", "last"].map(str::to_owned).to_vec();
    let started = store.start_session(&start(0, "c", 0)).await;
    assert_eq!(started.expect("written"), Some(groups.clone()));
    let rotated = store.rotate_token(&rotation("c", "h0", "n0", 0)).await;
    assert_eq!(rotated.expect("written").expect("rotated").groups, groups);
}

#[tokio::test]
async fn rotation_without_valid_preconditions_is_rejected() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    // A sign-in that is valid until millisecond 1.
    let started = store.start_session(&start(1, "c", 0)).await;
    assert!(started.expect("written").is_some());
    let write = async |rotation| store.rotate_token(&rotation).await.expect("answered");
    let ended = write(rotation("c", "h1", "n0", 1)).await;
    assert!(ended.is_none(), "its sign-in has ended");
    let of_another = write(rotation("another", "h1", "n0", 0)).await;
    assert!(of_another.is_none(), "another client's");
    let rotated = write(rotation("c", "h1", "n1", 0)).await.expect("rotated");
    assert_eq!(
        (
            rotated.family.family.as_str(),
            rotated.user.username.as_str(),
            rotated.rotated_at
        ),
        ("f1", "ada", None)
    );
    let again = write(rotation("c", "h1", "n2", 0)).await;
    assert!(again.is_none(), "used before the grace period");
    let shown = async |hash| store.refresh_token(hash).await.expect("read");
    assert_eq!(shown("h1").await.expect("kept").rotated_at, Some(0));
    assert!(
        shown("n1").await.is_some() && shown("n0").await.is_none() && shown("n2").await.is_none()
    );
    let ada = ada(&store).await;
    store.set_enabled(&ada, false, NOW).await.expect("disabled");
    let disabled = write(rotation("c", "n1", "n3", 0)).await;
    assert!(disabled.is_none(), "its user is disabled");
    store.set_enabled(&ada, true, NOW).await.expect("enabled");
    store.revoke_family("f1", NOW).await.expect("revoked");
    let revoked = write(rotation("c", "n1", "n3", 0)).await;
    assert!(revoked.is_none(), "its sign-in was revoked");
}

#[tokio::test]
async fn concurrent_uses_rotate_once_without_grace_and_always_within_it() {
    let test = testing::sqlite().await;
    let store = store_with_ada(&test).await;
    for (number, grace_start, rotated) in [(0, Timestamp(0), 1), (1, Timestamp(-1), 9)] {
        let started = store.start_session(&start(number, "c", 0)).await;
        assert!(started.expect("written").is_some());
        let rotations: Vec<_> = (0..9)
            .map(|new| RotateToken {
                grace_start,
                ..rotation("c", &format!("h{number}"), &format!("n{number}-{new}"), 0)
            })
            .collect();
        let writes = rotations
            .iter()
            .map(|rotation| store.rotate_token(rotation));
        let outcomes = futures_util::future::join_all(writes).await;
        let found: Vec<_> = outcomes
            .into_iter()
            .filter_map(|outcome| outcome.expect("answered"))
            .collect();
        assert_eq!(found.len(), rotated);
        let family = format!("f{number}");
        assert!(found.iter().all(|found| found.family.family == family));
    }
}
