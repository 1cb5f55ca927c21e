use postern_store::database::testing::{self, TestDatabase};

use super::*;

/// Creates an empty store in each kind of database. The databases exist until they are dropped.
async fn stores() -> Vec<(AuthStore, TestDatabase)> {
    let mut stores = Vec::new();
    for test in testing::both().await {
        let store = AuthStore::new(test.database.clone())
            .await
            .expect("migrated");
        stores.push((store, test));
    }
    stores
}

async fn ok<T, E: std::fmt::Debug>(statement: impl Future<Output = Result<T, E>>) -> T {
    statement.await.expect("no error")
}

#[tokio::test]
async fn replicas_get_the_same_key() {
    for (store, _database) in stores().await {
        for key in ["first", "second"] {
            let stored = store.key_or_insert("sealing", key);
            assert_eq!(ok(stored).await, "first");
        }
        ok(store.check_writable()).await;
    }
}

const SELECT_EMAIL: &str = "SELECT email FROM auth_pending_registrations";

#[tokio::test]
async fn registration_is_pending_until_it_is_deleted() {
    for (store, _database) in stores().await {
        ok(store.insert_registration("r1", "ada@example.com", Timestamp(10), Timestamp(70))).await;
        assert_eq!(ok(store.due_registrations(Timestamp(69), 9)).await, []);
        ok(store.set_registration_subject("r1", "sub-1")).await;
        let due = ok(store.due_registrations(Timestamp(70), 9)).await;
        let expected = PendingRegistration {
            id: "r1".into(),
            email: "ada@example.com".into(),
            subject: Some("sub-1".into()),
            profile: None,
            began_at: 10,
            attempts: 0,
        };
        assert_eq!(ok(store.registration("r1")).await.as_ref(), Some(&expected));
        assert_eq!(due, [expected]);
        let stored: Vec<(String,)> = fetch_all(&store, SELECT_EMAIL).await;
        let stored = &stored[0].0;
        assert!(!stored.contains("ada"), "{stored}");
        ok(store.postpone_registration("r1", Timestamp(200))).await;
        assert_eq!(ok(store.due_registrations(Timestamp(199), 9)).await, []);
        let due = ok(store.due_registrations(Timestamp(200), 9)).await;
        assert_eq!(due[0].attempts, 1);
        ok(store.insert_registration("r2", "ada@example.com", Timestamp(10), Timestamp(70))).await;
        assert_eq!(ok(store.count_registrations()).await, 2);
        let ada = "Ada@Example.com";
        let awaited = store.await_confirmation("r2", ada, "sealed", Timestamp(300));
        awaited.await.expect("updated");
        let interrupted = ok(store.registration("r1")).await;
        assert_eq!(interrupted, None, "deleted");
        let awaiting = ok(store.awaiting_registration(ada)).await;
        assert_eq!(awaiting.as_deref(), Some("r2"));
        assert_eq!(ok(store.count_registrations()).await, 0);
        ok(store.delete_registrations_of(ada)).await;
        let awaiting = ok(store.awaiting_registration(ada)).await;
        assert_eq!(awaiting, None);
    }
}

const ISSUER: &str = "https://accounts.google.com";

fn identity(user_id: &str) -> SocialIdentity {
    SocialIdentity {
        user_id: user_id.to_owned(),
        username: Some("u".to_owned()),
        profile_saved: false,
    }
}

#[tokio::test]
async fn user_name_that_is_an_address_is_sealed() {
    for (store, _database) in stores().await {
        let named = |name: &str| SocialIdentity {
            username: Some(name.to_owned()),
            ..identity("a")
        };
        for (subject, name) in [("1", "a"), ("2", "ada@example.com")] {
            let named = named(name);
            let inserted = store.insert_social_identity((ISSUER, subject), &named);
            assert_eq!(inserted.await.expect("inserted"), named);
            let found = store.social_identity((ISSUER, subject)).await;
            assert_eq!(found.expect("read"), Some(named));
        }
        let select = "SELECT username FROM auth_social_identities ORDER BY subject";
        let names: Vec<(String,)> = fetch_all(&store, select).await;
        assert_eq!(names[0].0, "a");
        assert!(!names[1].0.contains("ada"), "{}", names[1].0);
        // With other keys the account is unknown.
        let other = AuthStore::of(store.database.clone());
        let found = other.social_identity((ISSUER, "2")).await.expect("read");
        assert_eq!(found.expect("an identity").username, None);
        ok(store.delete_social_identities_of("a")).await;
        assert!(!ok(store.has_social_identity("a")).await);
    }
}

#[tokio::test]
async fn first_writer_determines_the_user_of_an_identity() {
    for (store, _database) in stores().await {
        let id = (ISSUER, "1");
        assert_eq!(ok(store.social_identity(id)).await, None);
        for user_id in ["a", "b"] {
            let user = identity(user_id);
            let kept = ok(store.insert_social_identity(id, &user)).await;
            assert_eq!(kept, identity("a"), "the first one is kept");
        }
        let stored = async || ok(store.social_identity(id)).await.expect("an identity");
        assert_eq!(stored().await, identity("a"));
        ok(store.mark_profile_saved(id)).await;
        assert!(stored().await.profile_saved);
        ok(store.save_provider_token(id, "v1.k.n.c")).await;
        assert_eq!(store.provider_tokens().await[0].2, "v1.k.n.c");
        assert!(ok(store.has_social_identity("a")).await);
        ok(store.delete_social_identity(id, "b")).await;
        assert!(ok(store.has_social_identity("a")).await);
        ok(store.delete_social_identity(id, "a")).await;
        assert!(!ok(store.has_social_identity("a")).await);
    }
}

impl AuthStore {
    /// Returns subject, user and sealed refresh token of the identities that have one.
    pub(crate) async fn provider_tokens(&self) -> Vec<(String, String, String)> {
        let select = "SELECT subject, user_id, refresh_token FROM auth_social_identities \
                      WHERE refresh_token IS NOT NULL";
        fetch_all(self, select).await
    }
}

async fn fetch_all<T>(store: &AuthStore, select: &'static str) -> Vec<T>
where
    T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>
        + for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow>
        + Send
        + Unpin,
{
    let rows = with_dialect!(store.database.readers(), pool => sqlx::query_as(select).fetch_all(pool).await);
    rows.expect("rows")
}

#[tokio::test]
async fn locked_sqlite_file_is_unavailable_in_time() {
    let test = testing::sqlite().await;
    let options = postern_store::database::DatabaseOptions::new("operator");
    let other = Database::open(&test.url, options).await.expect("opens");
    let store = AuthStore::new(test.database.clone())
        .await
        .expect("migrated");
    let Database::Sqlite(sqlite) = &other else {
        panic!("SQLite")
    };
    let transaction = sqlite.begin().await.expect("a write lock");
    let started_at = std::time::Instant::now();
    let insert = store.insert_registration("a", "ada@example.com", Timestamp(1), Timestamp(2));
    let error = insert.await.expect_err("locked");
    let elapsed = started_at.elapsed();
    assert_eq!(Problem::from(error).code(), Code::Unavailable);
    // SQLite itself waits for five seconds.
    assert!(elapsed < Duration::from_millis(4_500), "{elapsed:?}");
    transaction.rollback().await.expect("rolled back");
    // It works again. SQLite may have made the insert after all.
    assert!(ok(store.count_registrations()).await <= 1);
}
