//! Limits on guessing beyond passwords: codes, registrations, ways back from the provider.

use postern_common::{Code, Problem, Secret};
use serde_json::json;

use crate::auth::Visitor;
use crate::challenge::Answer;
use crate::password::Reset;
use crate::pool::PoolChallenge;
use crate::register::Confirmation;
use crate::testing::social::{begin, callback, land};
use crate::testing::{Failure, Fixture, Wish, email, login, registration};

const ADA: &str = "ada@example.com";

fn from(address: &str) -> Visitor {
    Visitor {
        request_id: "test".into(),
        address: Some(address.parse().expect("an address")),
    }
}

/// The session of a registration that waits for its code.
async fn waiting(fixture: &Fixture, visitor: &Visitor) -> String {
    let asked = fixture
        .auth
        .register(visitor, &registration(ADA, "Password-1"))
        .await
        .expect_err("a code");
    session_of(&asked)
}

async fn confirm(
    fixture: &Fixture,
    visitor: &Visitor,
    session: &str,
    code: &str,
) -> Result<(), Problem> {
    let (session, code, password) = (
        session.to_owned(),
        code.to_owned(),
        Secret::from("Password-1"),
    );
    let confirmation = Confirmation {
        session,
        code,
        password,
    };
    fixture
        .auth
        .confirm_registration(visitor, &confirmation)
        .await
        .map(drop)
}

#[tokio::test]
async fn a_code_is_guessed_at_a_few_times_from_wherever() {
    let fixture = Fixture::with(Wish {
        config: "confirm = 'code'",
        ..Wish::default()
    })
    .await;
    let mut session = waiting(&fixture, &from("192.0.2.1")).await;
    let mut bodies = std::collections::BTreeSet::new();
    for network in 0..20 {
        let visitor = from(&format!("198.51.{network}.1"));
        // The guesser knows the password, and gets a new code by registering again: neither gives
        // more guesses.
        if network % 4 == 0 {
            session = waiting(&fixture, &visitor).await;
        }
        let refused = confirm(&fixture, &visitor, &session, "000000")
            .await
            .expect_err("wrong");
        bodies.insert(refused.render("id").body);
    }
    assert_eq!(
        (bodies.len(), fixture.pool.count("ConfirmSignUp")),
        (1, 6),
        "five are free, one opens the wait"
    );
    let held = confirm(&fixture, &from("192.0.2.1"), &session, "123456")
        .await
        .expect_err("held back");
    assert_eq!(held.code(), Code::InvalidCode);
    fixture.clock.advance(std::time::Duration::from_secs(2));
    confirm(&fixture, &from("192.0.2.1"), &session, "123456")
        .await
        .expect("after the wait");
}

#[tokio::test]
async fn an_address_registers_so_many_and_then_waits() {
    let config = "[abuse]\naddress = 3\nnetwork = 5";
    let fixture = Fixture::with(Wish {
        config,
        ..Wish::default()
    })
    .await;
    let register = |address: &str, number: usize| {
        let (visitor, email) = (from(address), format!("u{number}@example.com"));
        let auth = fixture.auth.clone();
        async move {
            auth.register(&visitor, &registration(&email, "Password-1"))
                .await
                .map(drop)
        }
    };
    for number in 0..3 {
        register("192.0.2.1", number).await.expect("registered");
    }
    let held = register("192.0.2.1", 3).await.expect_err("held back");
    assert_eq!(held.code(), Code::RateLimited);
    assert_eq!(held.render("id").headers["retry-after"], "60");
    assert_eq!(fixture.pool.count("SignUp"), 3, "and costs nothing");
    for (address, number) in [("192.0.2.2", 4), ("192.0.2.3", 5)] {
        register(address, number)
            .await
            .expect("another address of the network");
    }
    register("192.0.2.4", 6)
        .await
        .expect_err("the network waits, too");
    register("203.0.113.1", 7).await.expect("another network");
    fixture.clock.advance(std::time::Duration::from_secs(1));
    register("192.0.2.1", 8)
        .await
        .expect("one more after the wait");
    register("192.0.2.1", 9)
        .await
        .expect_err("and the next wait is longer");
}

#[tokio::test]
async fn ways_back_that_fail_are_counted_and_those_that_succeed_are_not() {
    let config = "[abuse]\naddress = 3";
    let fixture = Fixture::with(Wish {
        config,
        ..Wish::default()
    })
    .await;
    let social = fixture.auth.social.as_ref().expect("on");
    let back = async |code: Option<&str>| {
        let url = begin(&fixture, None).await;
        let (right, state) = fixture.provider.consent(&url, json!({}));
        let code = code.map_or(right, str::to_owned);
        fixture
            .auth
            .finish_social(&from("192.0.2.1"), social, callback((code, state)))
            .await
    };
    for _ in 0..5 {
        assert_eq!(back(None).await.name, "temporaryToken");
    }
    for _ in 0..3 {
        assert_eq!(back(Some("guessed")).await.value, "provider_error");
    }
    assert_eq!(
        back(None).await.value,
        "temporarily_unavailable",
        "not looked at"
    );
    assert_eq!(
        land(&fixture, json!({})).await.name,
        "temporaryToken",
        "from this machine"
    );
    fixture.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(back(None).await.name, "temporaryToken", "after the wait");
}

/// A sealed challenge of the stub's.
fn challenge(fixture: &Fixture, name: &str, username: &str) -> String {
    let challenge = PoolChallenge {
        name: name.to_owned(),
        session: "pool-session".to_owned(),
        username: username.to_owned(),
        parameters: std::collections::HashMap::new(),
    };
    session_of(&fixture.auth.challenge_required(&challenge, &email(ADA)))
}

fn session_of(problem: &Problem) -> String {
    problem.to_json("id")["challenge"]["session"]
        .as_str()
        .expect("a session")
        .to_owned()
}

/// Answers a challenge from a network that is given by its number.
async fn answer(
    fixture: &Fixture,
    network: usize,
    session: String,
    (name, value): (&str, &str),
) -> Result<(), Problem> {
    let responses = [(name.to_owned(), value.to_owned())].into_iter().collect();
    let answer = Answer {
        session,
        new_password: None,
        code: None,
        responses,
    };
    fixture
        .auth
        .answer_challenge(&from(&format!("198.51.{network}.1")), answer)
        .await
        .map(drop)
}

const CODE: &str = "SOFTWARE_TOKEN_MFA_CODE";

#[tokio::test]
async fn a_second_factor_is_guessed_at_a_few_times_however_often_the_sign_in_begins() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Password-1", true).subject;
    let mut bodies = std::collections::BTreeSet::new();
    for number in 0..20 {
        let session = challenge(&fixture, "SOFTWARE_TOKEN_MFA", &ada);
        let refused = answer(&fixture, number, session, (CODE, "000000"))
            .await
            .expect_err("wrong");
        assert_eq!(refused.code(), Code::InvalidChallenge);
        bodies.insert(refused.render("id").body);
    }
    assert_eq!(
        (bodies.len(), fixture.pool.count("RespondToAuthChallenge")),
        (1, 6)
    );
    fixture.clock.advance(std::time::Duration::from_secs(2));
    let session = challenge(&fixture, "SOFTWARE_TOKEN_MFA", &ada);
    answer(&fixture, 1, session, (CODE, "123456"))
        .await
        .expect("after the wait");
}

#[tokio::test]
async fn choosing_a_factor_forgives_no_wrong_code() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Password-1", true).subject;
    let mut looked_at = 0;
    for number in 0..20 {
        let choice = challenge(&fixture, "SELECT_MFA_TYPE", &ada);
        let chosen = answer(&fixture, number, choice, ("ANSWER", "SOFTWARE_TOKEN_MFA")).await;
        let chosen = chosen.expect_err("a code is asked for, or the choice is held back");
        if chosen.code() == Code::ChallengeRequired {
            let refused = answer(&fixture, number, session_of(&chosen), (CODE, "000000")).await;
            assert_eq!(refused.expect_err("wrong").code(), Code::InvalidChallenge);
        }
        looked_at = fixture.pool.count("RespondToAuthChallenge");
    }
    assert_eq!(looked_at, 6, "choices and codes count alike");
}

#[tokio::test]
async fn custom_challenges_are_answered_a_few_times() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Password-1", true).subject;
    let mut session = challenge(&fixture, "CUSTOM_CHALLENGE", &ada);
    for number in 0..20 {
        let refused = answer(&fixture, number, session.clone(), ("ANSWER", "guess"))
            .await
            .expect_err("wrong");
        if refused.code() == Code::ChallengeRequired {
            session = session_of(&refused);
        }
    }
    assert_eq!(fixture.pool.count("RespondToAuthChallenge"), 6);
    fixture.clock.advance(std::time::Duration::from_secs(2));
    answer(&fixture, 1, session, ("ANSWER", "right"))
        .await
        .expect("after the wait");
}

#[tokio::test]
async fn a_required_reset_does_not_count_as_a_right_password() {
    let fixture = Fixture::new().await;
    let reset = Failure {
        status: 400,
        name: "PasswordResetRequiredException",
        message: "x",
    };
    for _ in 0..12 {
        fixture.pool.script.add("InitiateAuth", reset.clone());
    }
    let mut codes = Vec::new();
    for number in 0..12 {
        let visitor = from(&format!("198.51.{number}.1"));
        codes.push(
            fixture
                .auth
                .login(&visitor, &login(ADA, "guess"))
                .await
                .expect_err("refused")
                .code(),
        );
    }
    assert_eq!(codes[5], Code::ChallengeRequired);
    assert_eq!(
        codes[6..],
        [Code::InvalidCredentials; 6],
        "held back: nothing was proven"
    );
}

/// How many of a few wrong passwords from a network are looked at while strangers' failures hold
/// the account back.
async fn looked_at(fixture: &Fixture, address: &str) -> usize {
    for number in 0..8 {
        let stranger = from(&format!("203.0.{number}.1"));
        let _ = fixture.auth.login(&stranger, &login(ADA, "wrong")).await;
    }
    let before = fixture.pool.count("InitiateAuth");
    for _ in 0..3 {
        let _ = fixture
            .auth
            .login(&from(address), &login(ADA, "wrong"))
            .await;
    }
    fixture.pool.count("InitiateAuth") - before
}

#[tokio::test]
async fn a_network_is_trusted_only_after_a_complete_sign_in() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Temporary-1", true).subject;
    let asked = fixture
        .auth
        .login(&from("192.0.2.1"), &login(ADA, "Temporary-1"))
        .await
        .expect_err("more");
    assert_eq!(asked.code(), Code::ChallengeRequired);
    assert_eq!(
        looked_at(&fixture, "192.0.2.1").await,
        0,
        "half a sign-in is no proof"
    );
    let session = challenge(&fixture, "SOFTWARE_TOKEN_MFA", &ada);
    answer(&fixture, 7, session, (CODE, "123456"))
        .await
        .expect("complete");
    assert_eq!(looked_at(&fixture, "198.51.7.9").await, 3);
}

#[tokio::test]
async fn trust_in_a_network_ends_with_the_password_and_with_the_account() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    fixture
        .auth
        .login(&from("192.0.2.1"), &login(ADA, "Password-1"))
        .await
        .expect("signed in");
    let reset = Reset {
        email: email(ADA),
        code: "123456".into(),
        new_password: Secret::from("Password-2"),
    };
    fixture
        .auth
        .reset_password(&from("198.51.100.1"), &reset)
        .await
        .expect("reset");
    assert_eq!(
        looked_at(&fixture, "192.0.2.1").await,
        0,
        "who knew the old password"
    );
    assert_eq!(
        looked_at(&fixture, "198.51.100.1").await,
        3,
        "who proved to own the address"
    );
    // The address belongs to another account now.
    fixture.pool.add_user(ADA, "Password-3", true);
    fixture.clock.advance(std::time::Duration::from_secs(3600));
    fixture
        .auth
        .login(&from("192.0.2.77"), &login(ADA, "Password-3"))
        .await
        .expect("signed in");
    assert_eq!(looked_at(&fixture, "198.51.100.1").await, 0);
}

#[tokio::test]
async fn a_confirmation_that_is_held_back_takes_no_lock() {
    let fixture = Fixture::with(Wish {
        config: "confirm = 'code'",
        ..Wish::default()
    })
    .await;
    let session = waiting(&fixture, &from("192.0.2.1")).await;
    for _ in 0..8 {
        confirm(&fixture, &from("192.0.2.1"), &session, "000000")
            .await
            .expect_err("wrong");
    }
    let guard = fixture.auth.lock_address(&email(ADA)).await.expect("free");
    let visitor = from("192.0.2.1");
    let held = confirm(&fixture, &visitor, &session, "123456");
    let held = tokio::time::timeout(std::time::Duration::from_secs(5), held).await;
    assert_eq!(
        held.expect("does not wait for the lock")
            .expect_err("held back")
            .code(),
        Code::InvalidCode
    );
    guard.release().await;
}

#[tokio::test]
async fn the_pools_own_limit_on_resets_reads_as_a_wrong_code() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    let limit = Failure {
        status: 400,
        name: "LimitExceededException",
        message: "Attempt limit exceeded",
    };
    fixture.pool.script.add("ConfirmForgotPassword", limit);
    let new_password = Secret::from("Password-2");
    let reset = |address: &str| Reset {
        email: email(address),
        code: "0".into(),
        new_password: new_password.clone(),
    };
    let known = fixture
        .auth
        .reset_password(&from("192.0.2.1"), &reset(ADA))
        .await
        .expect_err("refused");
    let unknown = reset("nobody@example.com");
    let unknown = fixture
        .auth
        .reset_password(&from("192.0.2.1"), &unknown)
        .await
        .expect_err("refused");
    assert_eq!(known.render("id").body, unknown.render("id").body);
}

#[tokio::test]
async fn a_pool_that_did_not_look_is_not_held_against_those_who_tried() {
    // One that is away is asked three times and then left alone.
    let rows = [
        (503, "ServiceUnavailableException", 3, Code::Unavailable),
        (400, "TooManyRequestsException", 12, Code::RateLimited),
    ];
    for (status, name, times, expected) in rows {
        let fixture = Fixture::new().await;
        fixture.pool.add_user(ADA, "Password-1", true);
        let login = login(ADA, "Password-1");
        for _ in 0..times {
            fixture.pool.script.add(
                "InitiateAuth",
                Failure {
                    status,
                    name,
                    message: "x",
                },
            );
        }
        for _ in 0..12 {
            let refused = fixture
                .auth
                .login(&from("192.0.2.1"), &login)
                .await
                .expect_err(name);
            assert_eq!(
                refused.code(),
                expected,
                "and not that the password is wrong"
            );
        }
        fixture.clock.advance(std::time::Duration::from_secs(1));
        fixture
            .auth
            .login(&from("192.0.2.1"), &login)
            .await
            .expect("as soon as the pool looks again");
    }
}

#[tokio::test]
async fn a_code_that_could_not_be_sent_does_not_count() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    let ask = async || {
        let asked = fixture.auth.forgot_password(from("192.0.2.1"), email(ADA));
        asked.expect("there is room").await.expect("no panic");
    };
    for _ in 0..3 {
        fixture.pool.script.add(
            "ForgotPassword",
            Failure {
                status: 500,
                name: "InternalErrorException",
                message: "x",
            },
        );
    }
    for _ in 0..12 {
        ask().await;
    }
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let before = fixture.pool.count("ForgotPassword");
    for _ in 0..8 {
        ask().await;
    }
    assert_eq!(
        fixture.pool.count("ForgotPassword"),
        before + 6,
        "five are free, one opens the wait"
    );
}

#[tokio::test]
async fn resets_that_say_nothing_of_the_code_count_for_their_address() {
    let fixture = Fixture::with(Wish {
        config: "[abuse]\naddress = 3",
        ..Wish::default()
    })
    .await;
    let weak = Failure {
        status: 400,
        name: "InvalidPasswordException",
        message: "x",
    };
    for _ in 0..10 {
        fixture
            .pool
            .script
            .add("ConfirmForgotPassword", weak.clone());
    }
    for number in 0..10 {
        let email = email(&format!("u{number}@example.com"));
        let reset = Reset {
            email,
            code: "1".into(),
            new_password: Secret::from("a"),
        };
        let _ = fixture
            .auth
            .reset_password(&from("192.0.2.1"), &reset)
            .await;
    }
    assert_eq!(
        fixture.pool.count("ConfirmForgotPassword"),
        3,
        "whichever account is named"
    );
}
