//! Registrations and their compensation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use postern_common::{Code, Secret};

use crate::flows::ConfirmationRequest;
use crate::testing::{
    Fixture, FixtureOptions, REGISTRATION_DUE, StubFailure, client, registration,
};

const ADA: &str = "ada@example.com";

#[tokio::test]
async fn registration_creates_user_and_profile_idempotently() {
    let fixture = Fixture::new().await;
    let first = fixture
        .register(ADA, "Password-1")
        .await
        .expect("registered");
    let user = fixture.pool.user(ADA).expect("a user");
    let profile = fixture.actors.profile(&user.subject).expect("a profile");
    assert_eq!(
        (&profile["email"], &profile["profile"]["firstName"]),
        (&ADA.into(), &"Ada".into())
    );
    let second = fixture.register(ADA, "Password-1").await.expect("repeated");
    assert_ne!(first.refresh_token, second.refresh_token);
    assert_eq!(fixture.pending_registrations().await, 0);

    let other = fixture
        .register(ADA, "Password-2")
        .await
        .expect_err("taken");
    assert_eq!(other.code(), Code::EmailNotAvailable);
    let weak = fixture.register("bob@example.com", "short").await;
    assert_eq!(weak.expect_err("weak").code(), Code::WeakPassword);
    assert_eq!(fixture.pending_registrations().await, 0);
}

#[tokio::test]
async fn concurrent_registrations_create_one_user() {
    let fixture = Fixture::new().await;
    let mut clicks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let service = Arc::clone(&fixture.service);
        clicks.spawn(async move {
            service
                .flows
                .registration
                .register(&client(), &registration(ADA, "Password-1"))
                .await
                .is_ok()
        });
    }
    assert!(clicks.join_all().await.into_iter().all(|ok| ok));
    assert_eq!(fixture.pool.count("AdminDeleteUser"), 0);
}

#[tokio::test]
async fn user_is_deleted_if_the_profile_is_not_saved() {
    for no_credentials in [false, true] {
        let fixture = Fixture::with(FixtureOptions {
            no_credentials,
            ..FixtureOptions::default()
        })
        .await;
        fixture
            .pool
            .auto_confirm
            .store(no_credentials, Ordering::SeqCst);
        fixture.actors.failures_left.store(3, Ordering::SeqCst);
        let rejected = fixture.register(ADA, "Password-1").await;
        assert_eq!(rejected.expect_err("unavailable").code(), Code::Unavailable);
        let deleted = fixture.pool.count(if no_credentials {
            "DeleteUser"
        } else {
            "AdminDeleteUser"
        });
        assert_eq!((deleted, fixture.pool.user(ADA).is_some()), (1, false));
        assert_eq!(fixture.pending_registrations().await, 0);
        fixture
            .register(ADA, "Password-1")
            .await
            .expect("the repeated registration");
    }
}

#[tokio::test]
async fn profile_is_saved_after_a_short_outage() {
    let fixture = Fixture::new().await;
    fixture.actors.failures_left.store(2, Ordering::SeqCst);
    fixture
        .register(ADA, "Password-1")
        .await
        .expect("registered");
}

#[tokio::test]
async fn failed_registration_leaves_nothing_behind() {
    let rows = [
        (422, Code::ValidationFailed),
        (400, Code::ValidationFailed),
        (409, Code::ValidationFailed),
        (413, Code::ValidationFailed),
        (401, Code::Internal),
        (403, Code::Internal),
        (404, Code::Internal),
        (500, Code::Unavailable),
        (302, Code::Unavailable),
    ];
    let fixture = Fixture::new().await;
    for (status, expected) in rows {
        fixture
            .actors
            .rejection_status
            .store(status, Ordering::SeqCst);
        let rejected = fixture.register(ADA, "Password-1").await;
        assert_eq!(rejected.expect_err("rejected").code(), expected, "{status}");
        assert!(fixture.pool.user(ADA).is_none(), "{status}");
        assert_eq!(fixture.pending_registrations().await, 0, "{status}");
    }
    fixture.actors.rejection_status.store(0, Ordering::SeqCst);
    fixture
        .register(ADA, "Password-1")
        .await
        .expect("the repeated registration");
}

#[tokio::test]
async fn failed_deletion_is_repeated_by_the_compensation() {
    let fixture = Fixture::new().await;
    fixture.actors.failures_left.store(3, Ordering::SeqCst);
    let away = StubFailure::INTERNAL_ERROR;
    fixture.pool.failures.add("AdminDeleteUser", away);
    fixture
        .register(ADA, "Password-1")
        .await
        .expect_err("unavailable");
    assert!(fixture.pool.user(ADA).is_some());
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool.user(ADA).is_none());
    assert_eq!(fixture.pending_registrations().await, 0);
}

/// Each row is the state after a crash at another point.
#[tokio::test]
async fn interrupted_registration_is_completed_or_undone() {
    for (signed_up, subject_noted, profile_saved) in [
        (false, false, false),
        (true, false, false),
        (true, true, false),
        (true, true, true),
        (true, false, true),
    ] {
        let fixture = Fixture::new().await;
        let now = fixture.clock.now();
        fixture
            .service
            .store
            .insert_registration("r", ADA, now, now.plus(REGISTRATION_DUE))
            .await
            .expect("inserted");
        let request = registration(ADA, "Password-1");
        let mut subject = String::new();
        if signed_up {
            subject = fixture
                .service
                .pool
                .sign_up(&request.email, &request.password)
                .await
                .expect("created")
                .subject;
        }
        if subject_noted {
            fixture
                .service
                .store
                .set_registration_subject("r", &subject)
                .await
                .expect("updated");
        }
        if profile_saved {
            let saved = fixture
                .service
                .actor_service
                .save_profile(&subject, &request.email, &request.profile)
                .await;
            saved.expect("saved");
        }
        assert_eq!(fixture.compensate().await, 0);
        fixture.clock.advance(REGISTRATION_DUE);
        assert_eq!(fixture.compensate().await, 1);
        assert_eq!(
            fixture.pool.user(ADA).is_some(),
            profile_saved,
            "{signed_up} {subject_noted}"
        );
        assert_eq!(fixture.pending_registrations().await, 0);
    }
}

#[tokio::test]
async fn compensation_keeps_older_accounts() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    let now = fixture.clock.now();
    fixture
        .service
        .store
        .insert_registration("r", ADA, now, now)
        .await
        .expect("inserted");
    assert_eq!(fixture.compensate().await, 1);
    fixture
        .sign_in(ADA, "Password-1")
        .await
        .expect("the account exists");
}

#[tokio::test]
async fn compensation_is_postponed_during_an_outage() {
    let fixture = Fixture::new().await;
    let now = fixture.clock.now();
    fixture
        .service
        .store
        .insert_registration("r", ADA, now, now)
        .await
        .expect("inserted");
    fixture
        .service
        .store
        .set_registration_subject("r", "subject-1")
        .await
        .expect("updated");
    fixture.actors.failures_left.store(1, Ordering::SeqCst);
    assert_eq!(fixture.compensate().await, 0);
    assert_eq!(fixture.compensate().await, 0);
    fixture.clock.advance(REGISTRATION_DUE);
    assert_eq!(fixture.compensate().await, 1);
}

#[tokio::test]
async fn registration_with_confirmation_requires_the_code() {
    let fixture = Fixture::with_config("confirm = 'code'").await;
    let problem = fixture
        .register(ADA, "Password-1")
        .await
        .expect_err("a code");
    let body = problem.to_json("id");
    assert_eq!(
        (&body["status"], &body["challenge"]["name"]),
        (&401.into(), &"CONFIRM_SIGN_UP".into())
    );
    let session = body["challenge"]["session"]
        .as_str()
        .expect("a session")
        .to_owned();
    let confirmation = |code: &str| ConfirmationRequest {
        session: session.clone(),
        code: code.to_owned(),
        password: Secret::from("Password-1"),
    };
    let wrong = fixture
        .service
        .flows
        .registration
        .confirm(&client(), &confirmation("000000"))
        .await
        .expect_err("rejected");
    assert_eq!(wrong.code(), Code::InvalidCode);
    fixture
        .service
        .flows
        .registration
        .confirm(&client(), &confirmation("123456"))
        .await
        .expect("registered");
    let subject = fixture.pool.user(ADA).expect("a user").subject;
    assert_eq!(
        fixture.actors.profile(&subject).expect("saved")["profile"]["firstName"],
        "Ada"
    );
    fixture
        .service
        .flows
        .registration
        .confirm(&client(), &confirmation("123456"))
        .await
        .expect("idempotent");
}

#[tokio::test]
async fn sign_in_of_an_unconfirmed_user_requires_the_code() {
    let fixture = Fixture::with_config("confirm = 'code'").await;
    fixture
        .register(ADA, "Password-1")
        .await
        .expect_err("a code");
    let problem = fixture
        .sign_in(ADA, "Password-1")
        .await
        .expect_err("a code");
    assert_eq!(
        problem.to_json("id")["challenge"]["name"],
        "CONFIRM_SIGN_UP"
    );
}
