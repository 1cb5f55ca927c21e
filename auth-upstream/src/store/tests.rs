use postern_common::database::testing::{self, TestDatabase};

use super::*;

/// A fresh store of each kind; the databases go when the second parts are dropped.
async fn stores() -> Vec<(Store, TestDatabase)> {
    let mut stores = Vec::new();
    for test in testing::both().await {
        let store = Store::new(test.database.clone()).await.expect("migrated");
        stores.push((store, test));
    }
    stores
}

#[tokio::test]
async fn every_replica_gets_the_same_key() {
    for (store, _database) in stores().await {
        assert_eq!(
            store
                .key("sealing", "first", Timestamp(1))
                .await
                .expect("key"),
            "first"
        );
        assert_eq!(
            store
                .key("sealing", "second", Timestamp(2))
                .await
                .expect("key"),
            "first"
        );
        store.takes_writes().await.expect("answers");
    }
}

#[tokio::test]
async fn a_registration_is_remembered_until_it_ends() {
    for (store, _database) in stores().await {
        store
            .begin_registration("r1", "ada@example.com", Timestamp(10), Timestamp(70))
            .await
            .expect("begun");
        assert!(
            store
                .due_registrations(Timestamp(69), 9)
                .await
                .expect("read")
                .is_empty()
        );
        store.name_registration("r1", "sub-1").await.expect("named");
        let due = store
            .due_registrations(Timestamp(70), 9)
            .await
            .expect("read");
        let expected = Pending {
            id: "r1".into(),
            email: "ada@example.com".into(),
            subject: Some("sub-1".into()),
            began_at: 10,
            attempts: 0,
        };
        assert_eq!(
            store.registration("r1").await.expect("read").as_ref(),
            Some(&expected)
        );
        assert_eq!(due, [expected]);
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
            .begin_registration("r2", "ada@example.com", Timestamp(10), Timestamp(70))
            .await
            .expect("begun");
        assert_eq!(store.count_registrations().await.expect("count"), 2);
        store
            .end_registrations_of("Ada@Example.com")
            .await
            .expect("ended");
        assert_eq!(store.count_registrations().await.expect("count"), 0);
    }
}

#[tokio::test]
async fn the_first_writer_decides_who_a_subject_is() {
    for (store, _database) in stores().await {
        let identity = |user_id: &str| SocialIdentity {
            user_id: user_id.to_owned(),
            username: Some("u".to_owned()),
            social_only: true,
            profile_saved: false,
        };
        let (issuer, subject) = ("https://accounts.google.com", "1");
        assert_eq!(
            store.social_identity(issuer, subject).await.expect("read"),
            None
        );
        for (user_id, now) in [("a", 1), ("b", 2)] {
            let kept = store
                .add_social_identity(issuer, subject, &identity(user_id), Timestamp(now))
                .await;
            assert_eq!(kept.expect("kept"), identity("a"), "the first writer's");
        }
        assert_eq!(
            store.social_identity(issuer, subject).await.expect("read"),
            Some(identity("a"))
        );
        store
            .save_social_token(issuer, subject, "v1.k.n.c", Timestamp(3))
            .await
            .expect("saved");
        assert_eq!(token(&store).await.as_deref(), Some("v1.k.n.c"));
        let first = (String::new(), String::new());
        let stored = store
            .sealed_tokens(&first, 9)
            .await
            .expect("read")
            .remove(0);
        assert!(
            store
                .replace_token(&stored, "v1.l.n.c", Timestamp(3))
                .await
                .expect("replaced")
        );
        assert!(
            !store
                .replace_token(&stored, "v1.m.n.c", Timestamp(3))
                .await
                .expect("another is there")
        );
        assert_eq!(token(&store).await.as_deref(), Some("v1.l.n.c"));
        let last = (issuer.to_owned(), subject.to_owned());
        assert!(
            store
                .sealed_tokens(&last, 9)
                .await
                .expect("read")
                .is_empty()
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
                .expect("there")
                .profile_saved
        );
        assert!(store.has_social_identity("a").await.expect("read"));
        store
            .forget_social_identity(issuer, subject, "b")
            .await
            .expect("another's stays");
        assert!(store.has_social_identity("a").await.expect("read"));
        store
            .forget_social_identity(issuer, subject, "a")
            .await
            .expect("forgotten");
        assert!(!store.has_social_identity("a").await.expect("read"));
    }
}

/// The only provider's refresh token in the store, as it is stored.
async fn token(store: &Store) -> Option<String> {
    let select = "SELECT refresh_token FROM auth_social_identities";
    let row = match &store.database {
        Database::Postgres(pool) => sqlx::query_scalar(select).fetch_one(pool).await,
        Database::Sqlite(sqlite) => sqlx::query_scalar(select).fetch_one(&sqlite.readers).await,
    };
    row.expect("one identity")
}

#[tokio::test]
async fn a_silent_database_is_unavailable_until_it_is_back() {
    let test = testing::postgres().await;
    let (relay, url) = testing::Relay::start(&test.url).await;
    let options = postern_common::database::Options::new("postern-auth");
    let store = Store::new(Database::open(&url, options).await.expect("opens"))
        .await
        .expect("migrated");
    store.takes_writes().await.expect("ready");
    relay.fall_silent();
    for _ in 0..2 {
        let asked = std::time::Instant::now();
        let error = store
            .count_registrations()
            .await
            .expect_err("nobody answers");
        assert!(
            asked.elapsed() < Duration::from_secs(20),
            "{:?}",
            asked.elapsed()
        );
        assert_eq!(Problem::from(error).code(), Code::Unavailable);
    }
    store.takes_writes().await.expect_err("not ready");
    relay.recover();
    assert_eq!(
        store
            .count_registrations()
            .await
            .expect("another connection"),
        0
    );
    store.takes_writes().await.expect("ready again");
}
