use postern_common::database::testing::{self, TestDatabase};

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

#[tokio::test]
async fn replicas_get_the_same_key() {
    for (store, _database) in stores().await {
        assert_eq!(
            store
                .key_or_insert("sealing", "first", Timestamp(1))
                .await
                .expect("key"),
            "first"
        );
        assert_eq!(
            store
                .key_or_insert("sealing", "second", Timestamp(2))
                .await
                .expect("key"),
            "first"
        );
        store.check_writable().await.expect("writable");
    }
}

const SELECT_EMAIL: &str = "SELECT email FROM auth_pending_registrations";

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one sequence of changes")]
async fn registration_is_pending_until_it_is_deleted() {
    for (store, _database) in stores().await {
        store
            .insert_registration("r1", "ada@example.com", Timestamp(10), Timestamp(70))
            .await
            .expect("inserted");
        assert!(
            store
                .due_registrations(Timestamp(69), 9)
                .await
                .expect("read")
                .is_empty()
        );
        store
            .set_registration_subject("r1", "sub-1")
            .await
            .expect("updated");
        let due = store
            .due_registrations(Timestamp(70), 9)
            .await
            .expect("read");
        let expected = PendingRegistration {
            id: "r1".into(),
            email: "ada@example.com".into(),
            subject: Some("sub-1".into()),
            profile: None,
            began_at: 10,
            attempts: 0,
        };
        assert_eq!(
            store.registration("r1").await.expect("read").as_ref(),
            Some(&expected)
        );
        assert_eq!(due, [expected]);
        let stored = match &store.database {
            Database::Postgres(pool) => sqlx::query_scalar(SELECT_EMAIL).fetch_one(pool).await,
            Database::Sqlite(it) => {
                sqlx::query_scalar(SELECT_EMAIL)
                    .fetch_one(&it.readers)
                    .await
            }
        };
        let stored: String = stored.expect("one registration");
        assert!(!stored.contains("ada"), "{stored}");
        store
            .postpone_registration("r1", Timestamp(200))
            .await
            .expect("postponed");
        assert!(
            store
                .due_registrations(Timestamp(199), 9)
                .await
                .expect("read")
                .is_empty()
        );
        assert_eq!(
            store
                .due_registrations(Timestamp(200), 9)
                .await
                .expect("read")[0]
                .attempts,
            1
        );
        store
            .insert_registration("r2", "ada@example.com", Timestamp(10), Timestamp(70))
            .await
            .expect("inserted");
        assert_eq!(store.count_registrations().await.expect("count"), 2);
        let ada = "Ada@Example.com";
        let awaited = store.await_confirmation("r2", ada, "sealed", Timestamp(300));
        awaited.await.expect("updated");
        let interrupted = store.registration("r1").await.expect("read");
        assert_eq!(interrupted, None, "deleted");
        let awaiting = store.awaiting_registration(ada).await.expect("read");
        assert_eq!(awaiting.as_deref(), Some("r2"));
        assert_eq!(store.count_registrations().await.expect("count"), 0);
        store.delete_registrations_of(ada).await.expect("deleted");
        let awaiting = store.awaiting_registration(ada).await.expect("read");
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
async fn first_writer_determines_the_user_of_an_identity() {
    for (store, _database) in stores().await {
        let (issuer, subject) = (ISSUER, "1");
        assert_eq!(
            store.social_identity(issuer, subject).await.expect("read"),
            None
        );
        for (user_id, now) in [("a", 1), ("b", 2)] {
            let kept = store
                .insert_social_identity(issuer, subject, &identity(user_id), Timestamp(now))
                .await;
            assert_eq!(kept.expect("kept"), identity("a"), "the first one is kept");
        }
        assert_eq!(
            store.social_identity(issuer, subject).await.expect("read"),
            Some(identity("a"))
        );
        store
            .mark_profile_saved(issuer, subject, Timestamp(4))
            .await
            .expect("marked");
        assert!(
            store
                .social_identity(issuer, subject)
                .await
                .expect("read")
                .expect("an identity")
                .profile_saved
        );
        assert!(store.has_social_identity("a").await.expect("read"));
        store
            .delete_social_identity(issuer, subject, "b")
            .await
            .expect("another user: no effect");
        assert!(store.has_social_identity("a").await.expect("read"));
        store
            .delete_social_identity(issuer, subject, "a")
            .await
            .expect("deleted");
        assert!(!store.has_social_identity("a").await.expect("read"));
    }
}

#[tokio::test]
async fn provider_token_is_replaced_unless_it_has_changed() {
    for (store, _database) in stores().await {
        let (issuer, subject) = (ISSUER, "1");
        store
            .insert_social_identity(issuer, subject, &identity("a"), Timestamp(1))
            .await
            .expect("inserted");
        store
            .save_provider_token(issuer, subject, "v1.k.n.c", Timestamp(3))
            .await
            .expect("saved");
        assert_eq!(token(&store).await.as_deref(), Some("v1.k.n.c"));
        let first = (String::new(), String::new());
        let stored = store
            .provider_tokens(&first, 9)
            .await
            .expect("read")
            .remove(0);
        assert!(
            store
                .replace_provider_token(&stored, "v1.l.n.c", Timestamp(3))
                .await
                .expect("replaced")
        );
        assert!(
            !store
                .replace_provider_token(&stored, "v1.m.n.c", Timestamp(3))
                .await
                .expect("the stored token has changed")
        );
        assert_eq!(token(&store).await.as_deref(), Some("v1.l.n.c"));
        let last = (issuer.to_owned(), subject.to_owned());
        assert!(
            store
                .provider_tokens(&last, 9)
                .await
                .expect("read")
                .is_empty()
        );
    }
}

/// Returns the only stored refresh token, sealed.
async fn token(store: &AuthStore) -> Option<String> {
    let select = "SELECT refresh_token FROM auth_social_identities";
    let row = match &store.database {
        Database::Postgres(pool) => sqlx::query_scalar(select).fetch_one(pool).await,
        Database::Sqlite(sqlite) => sqlx::query_scalar(select).fetch_one(&sqlite.readers).await,
    };
    row.expect("one identity")
}

#[tokio::test]
async fn unresponsive_database_is_unavailable_until_it_recovers() {
    let test = testing::postgres().await;
    let (relay, url) = testing::Relay::start(&test.url).await;
    let options = postern_common::database::DatabaseOptions::new("postern-auth");
    let store = AuthStore::new(Database::open(&url, options).await.expect("opens"))
        .await
        .expect("migrated");
    store.check_writable().await.expect("ready");
    relay.stop_forwarding();
    for _ in 0..2 {
        let started_at = std::time::Instant::now();
        let error = store.count_registrations().await.expect_err("timeout");
        assert!(
            started_at.elapsed() < Duration::from_secs(20),
            "{:?}",
            started_at.elapsed()
        );
        assert_eq!(Problem::from(error).code(), Code::Unavailable);
    }
    store.check_writable().await.expect_err("not ready");
    relay.recover();
    assert_eq!(
        store.count_registrations().await.expect("a new connection"),
        0
    );
    store.check_writable().await.expect("ready again");
}

#[tokio::test]
async fn locked_sqlite_file_is_unavailable_in_time() {
    let test = testing::sqlite().await;
    let options = postern_common::database::DatabaseOptions::new("operator");
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
    assert_eq!(store.count_registrations().await.expect("reads"), 0);
}
