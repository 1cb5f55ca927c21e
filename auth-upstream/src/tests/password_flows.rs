//! Sign-in with a password, its challenges, and password resets.

use std::collections::BTreeSet;

use postern_core::Code;

use crate::testing::{ADA, Fault, Fixture, PASSWORD, client, login, refused, session_of};

#[tokio::test]
async fn throttled_guess_reads_as_a_wrong_password() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let set = fixture.sign_in(PASSWORD).await.expect("signed in");
    let unknown = login("bob@example.com", "wrong");
    let unknown = fixture.flows().sign_in(&client(), &unknown).await;
    let mut bodies = BTreeSet::from([unknown.expect_err("rejected").render("id").body]);
    let before = fixture.count("InitiateAuth");
    for _ in 0..20 {
        let rejected = fixture.sign_in("wrong").await.expect_err("rejected");
        bodies.insert(rejected.render("id").body);
    }
    let evaluated = fixture.count("InitiateAuth") - before;
    assert_eq!((bodies.len(), evaluated), (1, 6));
    fixture.refresh(&set).await.expect("not locked out");
}

#[tokio::test]
async fn challenge_is_sealed_and_answered_with_the_pool_user_name() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let rejected = fixture.sign_in("Temporary-1").await;
    let rejected = rejected.expect_err("a challenge");
    let body = rejected.to_json("id");
    assert_eq!(body["code"], "challenge_required");
    assert_eq!(body["challenge"]["name"], "NEW_PASSWORD_REQUIRED");
    assert!(body["challenge"]["parameters"]["USER_ID_FOR_SRP"].is_null());
    let session = session_of(&rejected);
    let answered = fixture
        .answer(&client(), session.clone(), Err("Password-2"))
        .await;
    answered.expect("signed in");
    let sent = fixture.bodies("RespondToAuthChallenge");
    let pool_session = sent[0]["Session"].as_str().expect("the pool's session");
    assert!(!session.contains(pool_session));
    fixture.sign_in("Password-2").await.expect("signed in");

    let client = client();
    let forged = fixture.answer(&client, "v1.a.b.c".to_owned(), Err("x"));
    refused(forged.await, Code::InvalidChallenge);
}

#[tokio::test]
async fn password_reset_revokes_earlier_refresh_tokens() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let thief = fixture.sign_in(PASSWORD).await.expect("signed in");
    fixture.reset("192.0.2.1", "Password-2").await;
    refused(fixture.refresh(&thief).await, Code::InvalidRefreshToken);
    // Cognito leaves them valid, unlike the development pool.
    assert_eq!(fixture.count("AdminUserGlobalSignOut"), 1);
}

#[tokio::test]
async fn pool_makes_the_codes_if_configured() {
    let fixture = Fixture::with_config("codes = 'pool'").await;
    fixture.add_ada().await;
    let done = || Fault::status(200);
    fixture.inject("ForgotPassword", 1, done());
    fixture.request_code(ADA).await;
    // Before any proof, the pool's own limit reveals nothing.
    let fault = Fault::exception("LimitExceededException", "Attempt limit exceeded");
    fixture.inject("ConfirmForgotPassword", 1, fault);
    fixture.inject("ConfirmForgotPassword", 1, done());
    let reset = async || fixture.try_reset(&client(), "123456", "Password-2").await;
    refused(reset().await, Code::InvalidCode);
    reset().await.expect("reset");
    let calls = ["ForgotPassword", "ConfirmForgotPassword"];
    assert_eq!(calls.map(|call| fixture.count(call)), [1, 2]);
    assert!(fixture.messages(ADA, "account-reset").is_empty());
}
