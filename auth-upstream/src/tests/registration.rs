//! Registrations and their compensation.
use postern_core::Code;
use serde_json::json;

use crate::testing::{
    ADA, Fault, Fixture, PASSWORD, REGISTRATION_DUE, client, refused, register, session_of,
};

const REGISTER: &str = "/actors/register";

#[tokio::test]
async fn registration_creates_user_and_profile_idempotently() {
    let fixture = Fixture::new().await;
    let first = fixture.register(PASSWORD).await.expect("registered");
    let subject = fixture.pool().subject(ADA).await.expect("a user");
    let profile = json!({ "actorId": subject, "email": ADA, "profile": { "firstName": "Ada" } });
    assert_eq!(fixture.bodies(REGISTER), [profile]);
    let second = fixture.register(PASSWORD).await.expect("repeated");
    assert_ne!(first.refresh_token, second.refresh_token);

    refused(
        fixture.register("Password-2").await,
        Code::EmailNotAvailable,
    );
    let bob = "bob@example.com";
    refused(
        register(&fixture.service, &client(), bob, "short").await,
        Code::WeakPassword,
    );
    assert_eq!(fixture.pending_registrations().await, 0);
}

#[tokio::test]
async fn user_without_a_profile_is_deleted_without_credentials() {
    let fixture = Fixture::without_credentials().await;
    // A trigger of the pool confirms users.
    let subject = fixture.add_ada().await;
    let created = Fault::answer(200, &json!({ "UserConfirmed": true, "UserSub": subject }));
    fixture.inject("SignUp", 1, created);
    fixture.inject(REGISTER, 3, Fault::status(503));
    fixture.inject("DeleteUser", 1, Fault::status(200));
    refused(fixture.register(PASSWORD).await, Code::Unavailable);
    assert_eq!(fixture.count("DeleteUser"), 1);
    assert_eq!(fixture.pending_registrations().await, 0);
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
    for (answer, expected) in rows {
        fixture.inject(REGISTER, 3, Fault::status(answer));
        let rejected = fixture.register(PASSWORD).await;
        assert_eq!(rejected.expect_err("rejected").code(), expected, "{answer}");
        assert!(fixture.pool().subject(ADA).await.is_none(), "{answer}");
        assert_eq!(fixture.pending_registrations().await, 0, "{answer}");
        fixture.clear(REGISTER);
    }
    // The third attempt saves the profile.
    fixture.inject(REGISTER, 2, Fault::status(503));
    let repeated = fixture.register(PASSWORD).await;
    repeated.expect("the repeated registration");
    assert!(fixture.has_profile().await);
}

#[tokio::test]
async fn user_whose_creation_was_not_answered_is_deleted() {
    let fixture = Fixture::new().await;
    let lost = Fault::change(|answer| *answer = json!("cut off"));
    fixture.inject("SignUp", 1, lost);
    refused(fixture.register(PASSWORD).await, Code::Unavailable);
    assert!(fixture.pool().subject(ADA).await.is_some());
    fixture.clock.advance(REGISTRATION_DUE);
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool().subject(ADA).await.is_none());
}

#[tokio::test]
async fn failed_deletion_is_repeated_by_the_compensation() {
    let fixture = Fixture::new().await;
    fixture.inject(REGISTER, 3, Fault::status(503));
    fixture.inject("AdminDeleteUser", 1, Fault::internal_error());
    fixture.register(PASSWORD).await.expect_err("unavailable");
    assert!(fixture.pool().subject(ADA).await.is_some());
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool().subject(ADA).await.is_none());
    assert_eq!(fixture.pending_registrations().await, 0);
}

#[tokio::test]
async fn compensation_keeps_older_accounts() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    fixture.clock.advance(REGISTRATION_DUE);
    let (store, now) = (&fixture.service.store, fixture.clock.now());
    let inserted = store.insert_registration("r", ADA, now, now).await;
    inserted.expect("inserted");
    assert_eq!(fixture.compensate().await, 1);
    fixture.sign_in(PASSWORD).await.expect("the account exists");
}

#[tokio::test]
async fn compensation_is_postponed_during_an_outage() {
    let fixture = Fixture::new().await;
    let (store, now) = (&fixture.service.store, fixture.clock.now());
    let inserted = store.insert_registration("r", ADA, now, now).await;
    inserted.expect("inserted");
    let updated = store.set_registration_subject("r", "subject-1").await;
    updated.expect("updated");
    fixture.inject("/actors/", 1, Fault::status(503));
    assert_eq!(fixture.compensate().await, 0);
    assert_eq!(fixture.compensate().await, 0);
    fixture.clock.advance(REGISTRATION_DUE);
    assert_eq!(fixture.compensate().await, 1);
}

#[tokio::test]
async fn registration_with_confirmation_requires_the_code() {
    // The development pool makes no codes: its answers to them are injected.
    for config in ["confirm = 'code'", "confirm = 'code'\ncodes = 'pool'"] {
        let fixture = Fixture::with_config(config).await;
        let sent = json!({"DeliveryMedium": "EMAIL", "AttributeName": "email"});
        let sends = Fault::change(move |answer| answer["CodeDeliveryDetails"] = sent.clone());
        fixture.inject("SignUp", 1, sends);
        let problem = fixture.register(PASSWORD).await.expect_err("a code");
        let signed_in = fixture.sign_in(PASSWORD).await.expect_err("a code");
        for body in [&problem, &signed_in].map(|problem| problem.to_json("id")) {
            let found = (&body["status"], &body["challenge"]["name"]);
            assert_eq!(found, (&json!(401), &json!("CONFIRM_SIGN_UP")));
        }
        let confirm = async |code: &str| {
            let session = session_of(&problem);
            fixture.confirm(&client(), &session, code, PASSWORD).await
        };
        let mismatch = Fault::exception("CodeMismatchException", "x");
        fixture.inject("ConfirmSignUp", 1, mismatch);
        refused(confirm("wrong").await, Code::InvalidCode);
        let code = if config.contains("pool") {
            assert!(fixture.messages(ADA, "account-confirm").is_empty());
            fixture.pool().change_user("AdminConfirmSignUp", ADA).await;
            fixture.inject("ConfirmSignUp", 2, Fault::status(200));
            "123456".to_owned()
        } else {
            fixture.code(ADA, "account-confirm")
        };
        confirm(&code).await.expect("registered");
        let sent = &fixture.bodies(REGISTER)[0];
        assert_eq!(sent["profile"]["firstName"], "Ada");
        confirm(&code).await.expect("idempotent");
    }
}
