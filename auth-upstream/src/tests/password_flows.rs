use postern_common::{Code, Secret};

use crate::flows::{ChallengeAnswer, ResetRequest};
use crate::testing::{Fixture, StubFailure, client, email};

fn answer(session: &str, new_password: &str) -> ChallengeAnswer {
    ChallengeAnswer {
        session: session.to_owned(),
        new_password: Some(new_password.to_owned()),
        code: None,
        responses: std::collections::HashMap::new(),
    }
}

#[tokio::test]
async fn right_password_yields_tokens() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let set = fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in");
    assert_eq!(set.expires_at, "2026-11-20T08:30:00.000Z");
    let me = fixture
        .service
        .flows
        .current_user
        .describe(&set.access_token)
        .await
        .expect("a user");
    assert_eq!(me["kind"], "user");
}

#[tokio::test]
async fn wrong_password_and_unknown_user_are_indistinguishable() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let mut bodies = Vec::new();
    for (address, password) in [("ada@example.com", "wrong"), ("bob@example.com", "wrong")] {
        let problem = fixture
            .sign_in(address, password)
            .await
            .expect_err("rejected");
        bodies.push(problem.render("id").body);
    }
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn pool_errors_map_to_their_problem_codes() {
    let fixture = Fixture::new().await;
    let rows = [
        ("TooManyRequestsException", 400, Code::RateLimited),
        ("InternalErrorException", 500, Code::Unavailable),
        ("ResourceNotFoundException", 400, Code::IdpMisconfigured),
    ];
    for (name, status, expected) in rows {
        fixture.pool.failures.add(
            "InitiateAuth",
            StubFailure {
                status,
                name,
                message: "x",
            },
        );
        let rejected = fixture
            .sign_in("ada@example.com", "x")
            .await
            .expect_err(name);
        assert_eq!(rejected.code(), expected, "{name}");
    }
    let rejected = fixture
        .sign_in("ada@example.com", "x")
        .await
        .expect_err("rejected");
    assert_eq!(rejected.code(), Code::InvalidCredentials);
}

#[tokio::test]
async fn circuit_breaker_opens_for_an_unresponsive_pool() {
    let fixture = Fixture::with_config("pool_deadline = '200ms'").await;
    for _ in 0..3 {
        fixture.pool.failures.add(
            "InitiateAuth",
            StubFailure {
                status: 0,
                name: "hangs",
                message: "",
            },
        );
    }
    for _ in 0..6 {
        let rejected = fixture
            .sign_in("ada@example.com", "x")
            .await
            .expect_err("unavailable");
        assert_eq!(rejected.code(), Code::Unavailable);
    }
    assert_eq!(fixture.pool.count("InitiateAuth"), 3);
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let rejected = fixture
        .sign_in("ada@example.com", "x")
        .await
        .expect_err("rejected");
    assert_eq!(rejected.code(), Code::InvalidCredentials);
}

#[tokio::test]
async fn throttled_guess_reads_as_a_wrong_password() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let mut bodies = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let rejected = fixture
            .sign_in("ada@example.com", "wrong")
            .await
            .expect_err("rejected");
        bodies.insert(rejected.render("id").body);
    }
    assert_eq!((bodies.len(), fixture.pool.count("InitiateAuth")), (1, 6));
}

#[tokio::test]
async fn failed_guesses_do_not_prevent_a_refresh() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let set = fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in");
    for _ in 0..20 {
        fixture
            .sign_in("ada@example.com", "wrong")
            .await
            .expect_err("rejected");
    }
    fixture.refresh(&set).await.expect("not locked out");
}

#[tokio::test]
async fn challenge_is_sealed_and_answered_with_the_pool_user_name() {
    let fixture = Fixture::new().await;
    fixture
        .pool
        .add_user("ada@example.com", "Temporary-1", true);
    let rejected = fixture.sign_in("ada@example.com", "Temporary-1").await;
    let body = rejected.expect_err("a challenge").to_json("id");
    assert_eq!(body["code"], "challenge_required");
    assert_eq!(body["challenge"]["name"], "NEW_PASSWORD_REQUIRED");
    assert!(body["challenge"]["parameters"]["USER_ID_FOR_SRP"].is_null());
    let session = body["challenge"]["session"].as_str().expect("a session");
    assert!(!session.contains("pool-session"));
    fixture
        .service
        .flows
        .challenge
        .answer(&client(), answer(session, "Password-2"))
        .await
        .expect("signed in");
    fixture
        .sign_in("ada@example.com", "Password-2")
        .await
        .expect("signed in");

    let forged = fixture
        .service
        .flows
        .challenge
        .answer(&client(), answer("v1.a.b.c", "x"))
        .await
        .expect_err("rejected");
    assert_eq!(forged.code(), Code::InvalidChallenge);
}

#[tokio::test]
async fn admin_flow_uses_the_administrative_calls() {
    let config = "flow = 'admin_user_password'";
    let fixture = Fixture::with_config(config).await;
    fixture
        .pool
        .add_user("ada@example.com", "Temporary-1", true);
    let rejected = fixture.sign_in("ada@example.com", "Temporary-1").await;
    let body = rejected.expect_err("a challenge").to_json("id");
    let session = body["challenge"]["session"].as_str().expect("a session");
    let set = fixture
        .service
        .flows
        .challenge
        .answer(&client(), answer(session, "Password-2"))
        .await
        .expect("signed in");
    fixture.refresh(&set).await.expect("refreshed");
    let calls = [
        "AdminInitiateAuth",
        "AdminRespondToAuthChallenge",
        "InitiateAuth",
    ];
    assert_eq!(calls.map(|call| fixture.pool.count(call)), [1, 1, 0]);
}

#[tokio::test]
async fn password_reset_does_not_reveal_users() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    for address in ["ada@example.com", "bob@example.com"] {
        fixture
            .service
            .flows
            .password
            .request_code(client(), email(address))
            .expect("a task")
            .await
            .expect("done");
    }
    for _ in 0..20 {
        fixture
            .service
            .flows
            .password
            .request_code(client(), email("ada@example.com"))
            .expect("a task")
            .await
            .expect("done");
    }
    assert_eq!(
        fixture.pool.count("ForgotPassword"),
        7,
        "five messages are free, and one starts the first delay"
    );

    let reset = |address: &str, code: &str| ResetRequest {
        email: email(address),
        code: code.to_owned(),
        new_password: Secret::from("Password-2"),
    };
    let mut refusals = Vec::new();
    for wrong in [
        reset("ada@example.com", "000000"),
        reset("bob@example.com", "123456"),
    ] {
        let rejected = fixture
            .service
            .flows
            .password
            .reset(&client(), &wrong)
            .await
            .expect_err("rejected");
        refusals.push(rejected.render("id").body);
    }
    assert_eq!(refusals[0], refusals[1]);
    fixture
        .service
        .flows
        .password
        .reset(&client(), &reset("ada@example.com", "123456"))
        .await
        .expect("reset");
    fixture
        .sign_in("ada@example.com", "Password-2")
        .await
        .expect("signed in");
}

#[tokio::test]
async fn password_reset_revokes_earlier_refresh_tokens() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let thief = fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in");
    let (code, new_password) = ("123456".to_owned(), Secret::from("Password-2"));
    let reset = ResetRequest {
        email: email("ada@example.com"),
        code,
        new_password,
    };
    fixture
        .service
        .flows
        .password
        .reset(&client(), &reset)
        .await
        .expect("reset");
    let rejected = fixture.refresh(&thief).await.expect_err("ended");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
}
