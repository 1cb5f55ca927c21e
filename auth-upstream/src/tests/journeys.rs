use postern_common::{Code, Secret};

use crate::challenge::Answer;
use crate::password::Reset;
use crate::testing::{Failure, Fixture, Wish, email, login, visitor};

fn answer(session: &str, new_password: &str) -> Answer {
    Answer {
        session: session.to_owned(),
        new_password: Some(new_password.to_owned()),
        code: None,
        responses: std::collections::HashMap::new(),
    }
}

#[tokio::test]
async fn a_password_gives_a_token_set() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let set = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-1"))
        .await
        .expect("signed in");
    assert_eq!(set.expires_at, "2026-11-20T08:30:00.000Z");
    let me = fixture.auth.me(&set.access_token).await.expect("a user");
    assert_eq!(me["kind"], "user");
}

#[tokio::test]
async fn wrong_password_and_unknown_user_read_the_same() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let mut bodies = Vec::new();
    for (address, password) in [("ada@example.com", "wrong"), ("bob@example.com", "wrong")] {
        let problem = fixture
            .auth
            .login(&visitor(), &login(address, password))
            .await
            .expect_err("refused");
        bodies.push(problem.render("id").body);
    }
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn what_the_pool_says_under_load_is_told_as_it_is() {
    let fixture = Fixture::new().await;
    let rows = [
        ("TooManyRequestsException", 400, Code::RateLimited),
        ("InternalErrorException", 500, Code::Unavailable),
        ("ResourceNotFoundException", 400, Code::IdpMisconfigured),
    ];
    for (name, status, expected) in rows {
        fixture.pool.script.add(
            "InitiateAuth",
            Failure {
                status,
                name,
                message: "x",
            },
        );
        let refused = fixture
            .auth
            .login(&visitor(), &login("ada@example.com", "x"))
            .await
            .expect_err(name);
        assert_eq!(refused.code(), expected, "{name}");
    }
    let refused = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "x"))
        .await
        .expect_err("wrong");
    assert_eq!(refused.code(), Code::InvalidCredentials);
}

#[tokio::test]
async fn a_pool_that_hangs_is_not_asked_by_everybody() {
    let fixture = Fixture::with(Wish {
        config: "pool_deadline = '200ms'",
        ..Wish::default()
    })
    .await;
    for _ in 0..3 {
        fixture.pool.script.add(
            "InitiateAuth",
            Failure {
                status: 0,
                name: "hangs",
                message: "",
            },
        );
    }
    for _ in 0..6 {
        let refused = fixture
            .auth
            .login(&visitor(), &login("ada@example.com", "x"))
            .await
            .expect_err("away");
        assert_eq!(refused.code(), Code::Unavailable);
    }
    assert_eq!(fixture.pool.count("InitiateAuth"), 3);
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let refused = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "x"))
        .await
        .expect_err("wrong");
    assert_eq!(refused.code(), Code::InvalidCredentials);
}

#[tokio::test]
async fn guessing_is_answered_as_before_and_not_looked_at() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let mut bodies = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let refused = fixture
            .auth
            .login(&visitor(), &login("ada@example.com", "wrong"))
            .await
            .expect_err("no");
        bodies.insert(refused.render("id").body);
    }
    assert_eq!((bodies.len(), fixture.pool.count("InitiateAuth")), (1, 6));
}

#[tokio::test]
async fn a_live_refresh_token_outlives_a_strangers_guesses() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let set = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-1"))
        .await
        .expect("in");
    for _ in 0..20 {
        fixture
            .auth
            .login(&visitor(), &login("ada@example.com", "wrong"))
            .await
            .expect_err("no");
    }
    fixture
        .auth
        .refresh(&visitor(), &set.refresh_token)
        .await
        .expect("not locked out");
}

#[tokio::test]
async fn a_challenge_travels_sealed_and_is_answered_under_the_real_name() {
    let fixture = Fixture::new().await;
    fixture
        .pool
        .add_user("ada@example.com", "Temporary-1", true);
    let refused = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Temporary-1"))
        .await;
    let body = refused.expect_err("a challenge").to_json("id");
    assert_eq!(body["code"], "challenge_required");
    assert_eq!(body["challenge"]["name"], "NEW_PASSWORD_REQUIRED");
    assert!(body["challenge"]["parameters"]["USER_ID_FOR_SRP"].is_null());
    let session = body["challenge"]["session"].as_str().expect("a session");
    assert!(!session.contains("pool-session"));
    fixture
        .auth
        .answer_challenge(&visitor(), answer(session, "Password-2"))
        .await
        .expect("signed in");
    fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-2"))
        .await
        .expect("signed in");

    let forged = fixture
        .auth
        .answer_challenge(&visitor(), answer("v1.a.b.c", "x"))
        .await
        .expect_err("refused");
    assert_eq!(forged.code(), Code::InvalidChallenge);
}

#[tokio::test]
async fn a_client_for_servers_alone_is_asked_by_the_admin_calls() {
    let config = "flow = 'admin_user_password'";
    let fixture = Fixture::with(Wish {
        config,
        ..Wish::default()
    })
    .await;
    fixture
        .pool
        .add_user("ada@example.com", "Temporary-1", true);
    let refused = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Temporary-1"))
        .await;
    let body = refused.expect_err("a challenge").to_json("id");
    let session = body["challenge"]["session"].as_str().expect("a session");
    let set = fixture
        .auth
        .answer_challenge(&visitor(), answer(session, "Password-2"))
        .await
        .expect("in");
    fixture
        .auth
        .refresh(&visitor(), &set.refresh_token)
        .await
        .expect("refreshed");
    let calls = [
        "AdminInitiateAuth",
        "AdminRespondToAuthChallenge",
        "InitiateAuth",
    ];
    assert_eq!(calls.map(|call| fixture.pool.count(call)), [1, 1, 0]);
}

#[tokio::test]
async fn a_forgotten_password_tells_nobody_who_is_here() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    for address in ["ada@example.com", "bob@example.com"] {
        fixture
            .auth
            .forgot_password(visitor(), email(address))
            .expect("a task")
            .await
            .expect("done");
    }
    for _ in 0..20 {
        fixture
            .auth
            .forgot_password(visitor(), email("ada@example.com"))
            .expect("a task")
            .await
            .expect("done");
    }
    assert_eq!(
        fixture.pool.count("ForgotPassword"),
        7,
        "five mails are free, and one opens the first wait"
    );

    let reset = |address: &str, code: &str| Reset {
        email: email(address),
        code: code.to_owned(),
        new_password: Secret::from("Password-2"),
    };
    let mut refusals = Vec::new();
    for wrong in [
        reset("ada@example.com", "000000"),
        reset("bob@example.com", "123456"),
    ] {
        let refused = fixture
            .auth
            .reset_password(&visitor(), &wrong)
            .await
            .expect_err("refused");
        refusals.push(refused.render("id").body);
    }
    // An unknown user and a wrong code read the same.
    assert_eq!(refusals[0], refusals[1]);
    fixture
        .auth
        .reset_password(&visitor(), &reset("ada@example.com", "123456"))
        .await
        .expect("reset");
    fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-2"))
        .await
        .expect("signed in");
}

#[tokio::test]
async fn a_new_password_ends_every_sign_in_that_was_there_before() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    let thief = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-1"))
        .await
        .expect("in");
    let (code, new_password) = ("123456".to_owned(), Secret::from("Password-2"));
    let reset = Reset {
        email: email("ada@example.com"),
        code,
        new_password,
    };
    fixture
        .auth
        .reset_password(&visitor(), &reset)
        .await
        .expect("reset");
    let refused = fixture
        .auth
        .refresh(&visitor(), &thief.refresh_token)
        .await
        .expect_err("ended");
    assert_eq!(refused.code(), Code::InvalidRefreshToken);
}
