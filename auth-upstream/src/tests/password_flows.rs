//! Sign-in with a password, its challenges, and password resets.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use postern_core::{Code, Problem};
use serde_json::json;

use super::second_factor::session_of;
use crate::client::ClientContext;
use crate::flows::{ChallengeAnswer, TokenSet};
use crate::testing::{ADA, Fault, Fixture, FixtureOptions, PASSWORD, client, login, plain, reset};

/// Answers the challenge of a temporary password.
pub(super) async fn new_password(
    fixture: &Fixture,
    client: &ClientContext,
    session: &str,
    password: &str,
) -> Result<TokenSet, Problem> {
    let answer = ChallengeAnswer {
        session: session.to_owned(),
        new_password: Some(password.to_owned()),
        code: None,
        responses: HashMap::new(),
    };
    plain(fixture.flows().challenge.answer(client, answer).await)
}

#[tokio::test]
async fn circuit_breaker_opens_for_an_unresponsive_pool() {
    let fixture = Fixture::with(FixtureOptions {
        deadline: Some(Duration::from_millis(500)),
        ..FixtureOptions::default()
    })
    .await;
    fixture.proxy().inject("InitiateAuth", 3, Fault::Silence);
    for _ in 0..6 {
        let rejected = fixture.sign_in("x").await.expect_err("unavailable");
        assert_eq!(rejected.code(), Code::Unavailable);
    }
    assert_eq!(fixture.proxy().count("InitiateAuth"), 3);
    fixture.clock.advance(Duration::from_secs(1));
    fixture.sign_in("x").await.expect_err("rejected");
    assert_eq!(fixture.proxy().count("InitiateAuth"), 4);
}

#[tokio::test]
async fn throttled_guess_reads_as_a_wrong_password() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let set = fixture.sign_in(PASSWORD).await.expect("signed in");
    let unknown = login("bob@example.com", "wrong");
    let unknown = fixture.flows().login.sign_in(&client(), &unknown).await;
    let mut bodies = BTreeSet::from([unknown.expect_err("rejected").render("id").body]);
    let before = fixture.proxy().count("InitiateAuth");
    for _ in 0..20 {
        let rejected = fixture.sign_in("wrong").await.expect_err("rejected");
        bodies.insert(rejected.render("id").body);
    }
    let evaluated = fixture.proxy().count("InitiateAuth") - before;
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
    let answered = new_password(&fixture, &client(), &session, "Password-2").await;
    answered.expect("signed in");
    let sent = fixture.proxy().bodies("RespondToAuthChallenge");
    let pool_session = sent[0]["Session"].as_str().expect("the pool's session");
    assert!(!session.contains(pool_session));
    fixture.sign_in("Password-2").await.expect("signed in");

    let forged = new_password(&fixture, &client(), "v1.a.b.c", "x").await;
    let forged = forged.expect_err("rejected");
    assert_eq!(forged.code(), Code::InvalidChallenge);
}

#[tokio::test]
async fn password_reset_revokes_earlier_refresh_tokens() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let thief = fixture.sign_in(PASSWORD).await.expect("signed in");
    fixture.reset("192.0.2.1", "Password-2").await;
    let rejected = fixture.refresh(&thief).await.expect_err("ended");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
    // Cognito leaves them valid, unlike the development pool.
    assert_eq!(fixture.proxy().count("AdminUserGlobalSignOut"), 1);
}

#[tokio::test]
async fn pool_makes_the_codes_if_configured() {
    let fixture = Fixture::with_config("codes = 'pool'").await;
    fixture.add_ada().await;
    let done = || Fault::answer(200, &json!({}));
    fixture.proxy().inject("ForgotPassword", 1, done());
    fixture.request_code(ADA).await;
    let flow = &fixture.flows().password;
    // Before any proof, the pool's own limit reveals nothing.
    let fault = Fault::exception("LimitExceededException", "Attempt limit exceeded");
    fixture.proxy().inject("ConfirmForgotPassword", 1, fault);
    fixture.proxy().inject("ConfirmForgotPassword", 1, done());
    let right = reset(ADA, "123456", "Password-2");
    let limited = flow.reset(&client(), &right).await.expect_err("rejected");
    assert_eq!(limited.code(), Code::InvalidCode);
    flow.reset(&client(), &right).await.expect("reset");
    let calls = ["ForgotPassword", "ConfirmForgotPassword"];
    assert_eq!(calls.map(|call| fixture.proxy().count(call)), [1, 2]);
    assert!(fixture.messages(ADA, "account-reset").is_empty());
}
