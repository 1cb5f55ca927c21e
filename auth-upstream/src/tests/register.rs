use std::sync::Arc;
use std::sync::atomic::Ordering;

use postern_common::{Code, Secret};

use crate::register::Confirmation;
use crate::testing::{Failure, Fixture, LATER, Wish, login, registration, visitor};

const ADA: &str = "ada@example.com";

#[tokio::test]
async fn a_registration_makes_a_user_and_a_profile_and_can_be_repeated() {
    let fixture = Fixture::new().await;
    let first = fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect("registered");
    let user = fixture.pool.user(ADA).expect("a user");
    let profile = fixture.actors.profile(&user.subject).expect("a profile");
    assert_eq!(
        (&profile["email"], &profile["profile"]["firstName"]),
        (&ADA.into(), &"Ada".into())
    );
    let second = fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect("repeated");
    assert_ne!(first.refresh_token, second.refresh_token);
    assert_eq!(
        fixture
            .auth
            .store
            .count_registrations()
            .await
            .expect("count"),
        0
    );

    let other = fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-2"))
        .await
        .expect_err("taken");
    assert_eq!(other.code(), Code::EmailNotAvailable);
    let weak = fixture
        .auth
        .register(&visitor(), &registration("bob@example.com", "short"))
        .await;
    assert_eq!(weak.expect_err("weak").code(), Code::WeakPassword);
    assert_eq!(
        fixture
            .auth
            .store
            .count_registrations()
            .await
            .expect("count"),
        0
    );
}

#[tokio::test]
async fn a_double_click_registers_once() {
    let fixture = Fixture::new().await;
    let mut clicks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let auth = Arc::clone(&fixture.auth);
        clicks.spawn(async move {
            auth.register(&visitor(), &registration(ADA, "Password-1"))
                .await
                .is_ok()
        });
    }
    assert!(clicks.join_all().await.into_iter().all(|ok| ok));
    assert_eq!(fixture.pool.count("AdminDeleteUser"), 0);
}

#[tokio::test]
async fn without_a_profile_the_user_goes_again() {
    for no_credentials in [false, true] {
        let fixture = Fixture::with(Wish {
            no_credentials,
            ..Wish::default()
        })
        .await;
        fixture
            .pool
            .auto_confirm
            .store(no_credentials, Ordering::SeqCst);
        fixture.actors.failing.store(3, Ordering::SeqCst);
        let refused = fixture
            .auth
            .register(&visitor(), &registration(ADA, "Password-1"))
            .await;
        assert_eq!(refused.expect_err("away").code(), Code::Unavailable);
        let deleted = fixture.pool.count(if no_credentials {
            "DeleteUser"
        } else {
            "AdminDeleteUser"
        });
        assert_eq!((deleted, fixture.pool.user(ADA).is_some()), (1, false));
        assert_eq!(
            fixture
                .auth
                .store
                .count_registrations()
                .await
                .expect("count"),
            0
        );
        fixture
            .auth
            .register(&visitor(), &registration(ADA, "Password-1"))
            .await
            .expect("the repeat");
    }
}

#[tokio::test]
async fn a_short_outage_of_the_actor_service_is_ridden_out() {
    let fixture = Fixture::new().await;
    fixture.actors.failing.store(2, Ordering::SeqCst);
    fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect("registered");
}

#[tokio::test]
async fn whatever_the_actor_service_says_a_registration_that_fails_leaves_nothing() {
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
        fixture.actors.refusing.store(status, Ordering::SeqCst);
        let refused = fixture
            .auth
            .register(&visitor(), &registration(ADA, "Password-1"))
            .await;
        assert_eq!(refused.expect_err("refused").code(), expected, "{status}");
        assert!(fixture.pool.user(ADA).is_none(), "{status}");
        assert_eq!(
            fixture
                .auth
                .store
                .count_registrations()
                .await
                .expect("count"),
            0,
            "{status}"
        );
    }
    fixture.actors.refusing.store(0, Ordering::SeqCst);
    fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect("the repeat");
}

#[tokio::test]
async fn a_user_who_could_not_be_deleted_is_not_forgotten() {
    let fixture = Fixture::new().await;
    fixture.actors.failing.store(3, Ordering::SeqCst);
    let away = Failure {
        status: 500,
        name: "InternalErrorException",
        message: "x",
    };
    fixture.pool.script.add("AdminDeleteUser", away);
    fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect_err("away");
    assert!(fixture.pool.user(ADA).is_some());
    assert_eq!(fixture.auth.compensate_due().await.expect("looked"), 1);
    assert!(fixture.pool.user(ADA).is_none());
    assert_eq!(
        fixture
            .auth
            .store
            .count_registrations()
            .await
            .expect("count"),
        0
    );
}

/// What is left when the process is killed at each point, and what becomes of it.
#[tokio::test]
async fn a_registration_that_was_cut_off_is_finished_or_undone() {
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
            .auth
            .store
            .begin_registration("r", ADA, now, now.plus(LATER))
            .await
            .expect("begun");
        let request = registration(ADA, "Password-1");
        let mut subject = String::new();
        if signed_up {
            subject = fixture
                .auth
                .pool
                .sign_up(&request.email, &request.password)
                .await
                .expect("made")
                .subject;
        }
        if subject_noted {
            fixture
                .auth
                .store
                .name_registration("r", &subject)
                .await
                .expect("noted");
        }
        if profile_saved {
            let saved = fixture
                .auth
                .actors
                .register(&subject, &request.email, &request.profile)
                .await;
            saved.expect("saved");
        }
        assert_eq!(fixture.auth.compensate_due().await.expect("not due yet"), 0);
        fixture.clock.advance(LATER);
        assert_eq!(fixture.auth.compensate_due().await.expect("due"), 1);
        assert_eq!(
            fixture.pool.user(ADA).is_some(),
            profile_saved,
            "{signed_up} {subject_noted}"
        );
        assert_eq!(
            fixture
                .auth
                .store
                .count_registrations()
                .await
                .expect("count"),
            0
        );
    }
}

#[tokio::test]
async fn the_compensation_never_touches_an_older_account() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    let now = fixture.clock.now();
    fixture
        .auth
        .store
        .begin_registration("r", ADA, now, now)
        .await
        .expect("begun");
    assert_eq!(fixture.auth.compensate_due().await.expect("due"), 1);
    fixture
        .auth
        .login(&visitor(), &login(ADA, "Password-1"))
        .await
        .expect("still there");
}

#[tokio::test]
async fn an_outage_postpones_the_compensation() {
    let fixture = Fixture::new().await;
    let now = fixture.clock.now();
    fixture
        .auth
        .store
        .begin_registration("r", ADA, now, now)
        .await
        .expect("begun");
    fixture
        .auth
        .store
        .name_registration("r", "subject-1")
        .await
        .expect("noted");
    fixture.actors.failing.store(1, Ordering::SeqCst);
    assert_eq!(fixture.auth.compensate_due().await.expect("away"), 0);
    assert_eq!(fixture.auth.compensate_due().await.expect("not due"), 0);
    fixture.clock.advance(LATER);
    assert_eq!(fixture.auth.compensate_due().await.expect("due"), 1);
}

#[tokio::test]
async fn a_pool_that_wants_the_address_confirmed_asks_for_the_code() {
    let fixture = Fixture::with(Wish {
        config: "confirm = 'code'",
        ..Wish::default()
    })
    .await;
    let asked = fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect_err("a code");
    let body = asked.to_json("id");
    assert_eq!(
        (&body["status"], &body["challenge"]["name"]),
        (&401.into(), &"CONFIRM_SIGN_UP".into())
    );
    let session = body["challenge"]["session"]
        .as_str()
        .expect("a session")
        .to_owned();
    let confirmation = |code: &str| Confirmation {
        session: session.clone(),
        code: code.to_owned(),
        password: Secret::from("Password-1"),
    };
    let wrong = fixture
        .auth
        .confirm_registration(&visitor(), &confirmation("000000"))
        .await
        .expect_err("wrong");
    assert_eq!(wrong.code(), Code::InvalidCode);
    fixture
        .auth
        .confirm_registration(&visitor(), &confirmation("123456"))
        .await
        .expect("registered");
    let subject = fixture.pool.user(ADA).expect("a user").subject;
    assert_eq!(
        fixture.actors.profile(&subject).expect("saved")["profile"]["firstName"],
        "Ada"
    );
    fixture
        .auth
        .confirm_registration(&visitor(), &confirmation("123456"))
        .await
        .expect("a safe repeat");
}

#[tokio::test]
async fn an_unconfirmed_user_who_signs_in_is_asked_for_the_code() {
    let fixture = Fixture::with(Wish {
        config: "confirm = 'code'",
        ..Wish::default()
    })
    .await;
    fixture
        .auth
        .register(&visitor(), &registration(ADA, "Password-1"))
        .await
        .expect_err("a code");
    let asked = fixture
        .auth
        .login(&visitor(), &login(ADA, "Password-1"))
        .await
        .expect_err("a code");
    assert_eq!(asked.to_json("id")["challenge"]["name"], "CONFIRM_SIGN_UP");
}
