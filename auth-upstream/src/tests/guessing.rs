//! Limits on guessing beyond passwords: codes, registrations, ways back from the provider.

use postern_common::{Code, Problem, Secret};
use serde_json::json;

use crate::auth::Visitor;
use crate::challenge::Answer;
use crate::pool::PoolChallenge;
use crate::register::Confirmation;
use crate::testing::social::{begin, callback, land};
use crate::testing::{Failure, Fixture, Wish, email, login, registration};

const ADA: &str = "ada@example.com";

fn from(address: &str) -> Visitor {
    Visitor { request_id: "test".into(), address: Some(address.parse().expect("an address")) }
}

/// The session of a registration that waits for its code.
async fn waiting(fixture: &Fixture, visitor: &Visitor) -> String {
    let asked = fixture.auth.register(visitor, &registration(ADA, "Password-1")).await.expect_err("a code");
    asked.to_json("id")["challenge"]["session"].as_str().expect("a session").to_owned()
}

async fn confirm(fixture: &Fixture, visitor: &Visitor, session: &str, code: &str) -> Result<(), Problem> {
    let (session, code, password) = (session.to_owned(), code.to_owned(), Secret::from("Password-1"));
    let confirmation = Confirmation { session, code, password };
    fixture.auth.confirm_registration(visitor, &confirmation).await.map(drop)
}

#[tokio::test]
async fn a_code_is_guessed_at_a_few_times_from_wherever() {
    let fixture = Fixture::with(Wish { config: "confirm = 'code'", ..Wish::default() }).await;
    let mut session = waiting(&fixture, &from("192.0.2.1")).await;
    let mut bodies = std::collections::BTreeSet::new();
    for network in 0..20 {
        let visitor = from(&format!("198.51.{network}.1"));
        // The guesser knows the password, and gets a new code by registering again: neither gives more guesses.
        if network % 4 == 0 {
            session = waiting(&fixture, &visitor).await;
        }
        let refused = confirm(&fixture, &visitor, &session, "000000").await.expect_err("wrong");
        bodies.insert(refused.render("id").body);
    }
    assert_eq!(
        (bodies.len(), fixture.pool.count("ConfirmSignUp")),
        (1, 6),
        "five are free, one opens the wait"
    );
    let held = confirm(&fixture, &from("192.0.2.1"), &session, "123456").await.expect_err("held back");
    assert_eq!(held.code(), Code::InvalidCode);
    fixture.clock.advance(std::time::Duration::from_secs(2));
    confirm(&fixture, &from("192.0.2.1"), &session, "123456").await.expect("after the wait");
}

#[tokio::test]
async fn an_address_registers_so_many_and_then_waits() {
    let config = "[abuse]\naddress = 3\nnetwork = 5";
    let fixture = Fixture::with(Wish { config, ..Wish::default() }).await;
    let register = |address: &str, number: usize| {
        let (visitor, email) = (from(address), format!("u{number}@example.com"));
        let auth = fixture.auth.clone();
        async move { auth.register(&visitor, &registration(&email, "Password-1")).await.map(drop) }
    };
    for number in 0..3 {
        register("192.0.2.1", number).await.expect("registered");
    }
    let held = register("192.0.2.1", 3).await.expect_err("held back");
    assert_eq!(held.code(), Code::RateLimited);
    assert_eq!(held.render("id").headers["retry-after"], "60");
    assert_eq!(fixture.pool.count("SignUp"), 3, "and costs nothing");
    for (address, number) in [("192.0.2.2", 4), ("192.0.2.3", 5)] {
        register(address, number).await.expect("another address of the network");
    }
    register("192.0.2.4", 6).await.expect_err("the network waits, too");
    register("203.0.113.1", 7).await.expect("another network");
    fixture.clock.advance(std::time::Duration::from_secs(1));
    register("192.0.2.1", 8).await.expect("one more after the wait");
    register("192.0.2.1", 9).await.expect_err("and the next wait is longer");
}

#[tokio::test]
async fn ways_back_that_fail_are_counted_and_those_that_succeed_are_not() {
    let config = "[abuse]\naddress = 3";
    let fixture = Fixture::with(Wish { config, ..Wish::default() }).await;
    let social = fixture.auth.social.as_ref().expect("on");
    let back = async |code: Option<&str>| {
        let url = begin(&fixture, None).await;
        let (right, state) = fixture.provider.consent(&url, json!({}));
        let code = code.map_or(right, str::to_owned);
        fixture.auth.finish_social(&from("192.0.2.1"), social, callback((code, state))).await
    };
    for _ in 0..5 {
        assert_eq!(back(None).await.name, "temporaryToken");
    }
    for _ in 0..3 {
        assert_eq!(back(Some("guessed")).await.value, "provider_error");
    }
    assert_eq!(back(None).await.value, "temporarily_unavailable", "not looked at");
    assert_eq!(land(&fixture, json!({})).await.name, "temporaryToken", "from this machine");
    fixture.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(back(None).await.name, "temporaryToken", "after the wait");
}

/// A sealed challenge of the stub's, which takes no code for right.
fn factor(fixture: &Fixture) -> String {
    let challenge = PoolChallenge {
        name: "SOFTWARE_TOKEN_MFA".to_owned(),
        session: "another-session".to_owned(),
        username: "u-1".to_owned(),
        parameters: std::collections::HashMap::new(),
    };
    let body = fixture.auth.challenge_required(&challenge).to_json("id");
    body["challenge"]["session"].as_str().expect("a session").to_owned()
}

#[tokio::test]
async fn a_second_factor_is_guessed_at_a_few_times_however_often_the_sign_in_begins() {
    let fixture = Fixture::new().await;
    let mut bodies = std::collections::BTreeSet::new();
    for number in 0..20 {
        let (session, code) = (factor(&fixture), Some(format!("{number:06}")));
        let answer = Answer { session, new_password: None, code, responses: Default::default() };
        let visitor = from(&format!("198.51.{number}.1"));
        let refused = fixture.auth.answer_challenge(&visitor, answer).await.expect_err("wrong");
        assert_eq!(refused.code(), Code::InvalidChallenge);
        bodies.insert(refused.render("id").body);
    }
    assert_eq!((bodies.len(), fixture.pool.count("RespondToAuthChallenge")), (1, 6));
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
            fixture.pool.script.add("InitiateAuth", Failure { status, name, message: "x" });
        }
        for _ in 0..12 {
            let refused = fixture.auth.login(&from("192.0.2.1"), &login).await.expect_err(name);
            assert_eq!(refused.code(), expected, "and not that the password is wrong");
        }
        fixture.clock.advance(std::time::Duration::from_secs(1));
        fixture.auth.login(&from("192.0.2.1"), &login).await.expect("as soon as the pool looks again");
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
        fixture
            .pool
            .script
            .add("ForgotPassword", Failure { status: 500, name: "InternalErrorException", message: "x" });
    }
    for _ in 0..12 {
        ask().await;
    }
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let before = fixture.pool.count("ForgotPassword");
    for _ in 0..8 {
        ask().await;
    }
    assert_eq!(fixture.pool.count("ForgotPassword"), before + 6, "five are free, one opens the wait");
}
