//! Attempt limits of codes, registrations, callbacks and passwords.

use std::collections::BTreeSet;
use std::time::Duration;

use postern_core::{Code, Problem};

use crate::flows::SocialCallback;
use crate::testing::browser::{self, consent};
use crate::testing::{
    ADA, Fault, Fixture, PASSWORD, client_at, email, land, refused, register, reset, session_of,
};

/// Starts a registration and returns its confirmation session.
async fn start_registration(fixture: &Fixture, address: &str) -> String {
    let client = client_at(address);
    let problem = register(&fixture.service, &client, ADA, PASSWORD).await;
    session_of(&problem.expect_err("a code"))
}

#[tokio::test]
async fn confirmation_code_guesses_are_limited_for_each_network() {
    let fixture = Fixture::with_confirmation().await;
    let session = start_registration(&fixture, "192.0.2.1").await;
    let mut bodies = BTreeSet::new();
    for _ in 0..20 {
        let client = client_at("198.51.100.1");
        let rejected = fixture.confirm(&client, &session, "wrong", PASSWORD);
        let rejected = rejected.await;
        bodies.insert(rejected.expect_err("rejected").render("id").body);
    }
    assert_eq!(
        (bodies.len(), fixture.count("AdminGetUser")),
        (1, 6),
        "five are free, one starts the delay"
    );
    let code = fixture.code(ADA, "account-confirm");
    let right = async |address: &str| {
        let client = client_at(address);
        fixture.confirm(&client, &session, &code, PASSWORD).await
    };
    // A throttled confirmation does not wait for the lock of the address.
    let throttled = async { Ok::<_, Problem>(right("198.51.100.2").await) };
    let flows = fixture.flows();
    let throttled = flows.with_address(&email(ADA), Box::pin(throttled)).await;
    let throttled = throttled.expect("the lock is free").expect_err("throttled");
    assert_eq!(throttled.code(), Code::InvalidCode);
    right("192.0.2.1").await.expect("another network");
    // Of a confirmed address the password decides, but not without end.
    let calls = fixture.count("AdminGetUser");
    for _ in 0..20 {
        let _ = right("203.0.113.1").await;
    }
    assert_eq!(fixture.count("AdminGetUser"), calls + 6);
}

#[tokio::test]
async fn registrations_of_an_address_and_network_are_limited() {
    let config = "[abuse]\naddress = 3\nnetwork = 5";
    let fixture = Fixture::with_config(config).await;
    let register = async |address: &str, number: usize| {
        let (client, email) = (client_at(address), format!("u{number}@example.com"));
        register(&fixture.service, &client, &email, PASSWORD).await
    };
    for number in 0..3 {
        register("192.0.2.1", number).await.expect("registered");
    }
    let throttled = refused(register("192.0.2.1", 3).await, Code::RateLimited);
    assert_eq!(throttled.render("id").headers["retry-after"], "60");
    assert_eq!(fixture.count("SignUp"), 3, "and costs nothing");
    for (address, number) in [("192.0.2.2", 4), ("192.0.2.3", 5)] {
        let registered = register(address, number).await;
        registered.expect("another address of the network");
    }
    let throttled = register("192.0.2.4", 6).await;
    throttled.expect_err("the network is limited as well");
    register("203.0.113.1", 7).await.expect("another network");
    fixture.clock.advance(Duration::from_secs(1));
    let registered = register("192.0.2.1", 8).await;
    registered.expect("one more after the delay");
    let throttled = register("192.0.2.1", 9).await;
    throttled.expect_err("the next delay is longer");
}

#[tokio::test]
async fn only_failed_callbacks_are_counted() {
    let fixture = Fixture::with_config("[abuse]\naddress = 3").await;
    let back = async |code: Option<&str>| {
        let client = client_at("192.0.2.1");
        let url = fixture.flows().start_social_sign_in(&client, 0, None).await;
        let mut callback = consent(&url.expect("a URL"), browser::ADA).await;
        callback.code = code.map(str::to_owned).or(callback.code);
        land(&fixture.service, &client, callback).await
    };
    for _ in 0..5 {
        assert_eq!(back(None).await.name, "temporaryToken");
    }
    // Not those of an outage.
    fixture.inject("/token", 4, Fault::Answer(502, "text/html", String::new()));
    for _ in 0..4 {
        assert_eq!(back(None).await.value, "provider_error");
    }
    for _ in 0..3 {
        assert_eq!(back(Some("guessed")).await.value, "provider_error");
    }
    assert_eq!(
        back(None).await.value,
        "temporarily_unavailable",
        "not evaluated"
    );
    let elsewhere = browser::sign_in(&fixture, browser::ADA).await;
    assert_eq!(elsewhere.name, "temporaryToken", "without an address");
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(back(None).await.name, "temporaryToken", "after the delay");
}

/// Pages of other sites make browsers open callbacks: as images, or by forms.
#[tokio::test]
async fn callbacks_that_others_started_cost_nothing() {
    let fixture = Fixture::with_config("[abuse]\naddress = 1\nnetwork = 1").await;
    let started = async |address| {
        let client = client_at(address);
        let url = fixture.flows().start_social_sign_in(&client, 0, None).await;
        consent(&url.expect("a URL"), browser::ADA).await
    };
    let follow = async |callback| land(&fixture.service, &client_at("192.0.2.1"), callback).await;
    let of_attacker = async || started("198.51.100.1").await;
    let used = of_attacker().await;
    assert_eq!(follow(used.clone()).await.name, "temporaryToken");
    let mut expired = of_attacker().await;
    fixture.clock.advance(Duration::from_secs(600));
    expired.code = Some("x".to_owned());
    // What is sealed here for another purpose is no state.
    let state = of_attacker().await.state.expect("a state");
    let key_ring = &fixture.flows().key_ring;
    let content = key_ring.open(&["postern social state"], &state);
    let foreign = key_ring.seal(&["another"], &content.expect("sealed here"));
    let with_state = |state: &str| SocialCallback {
        state: Some(state.to_owned()),
        ..used.clone()
    };
    for (callback, error) in [
        (SocialCallback::default(), "invalid_request"),
        (with_state("x"), "invalid_state"),
        (with_state(&foreign), "invalid_state"),
        (used.clone(), "invalid_state"),
        (expired, "invalid_state"),
    ] {
        assert_eq!(follow(callback).await.value, error);
    }
    for error in ["user_cancelled_login", "server_error", "invalid_scope"] {
        let mut own = started("192.0.2.1").await;
        own.error = Some(error.to_owned());
        assert_eq!(follow(own).await.name, "error");
    }
    // The failure counts for the attacker, who has started the sign-in.
    for error in ["provider_error", "temporarily_unavailable"] {
        let mut guessed = of_attacker().await;
        guessed.code = Some("x".to_owned());
        assert_eq!(follow(guessed).await.value, error);
    }
    let own = started("192.0.2.1").await;
    assert_eq!(follow(own).await.name, "temporaryToken");
}

#[tokio::test]
async fn social_sign_ins_of_an_account_have_a_quota() {
    let fixture = Fixture::with_config("[abuse]\nsign_ins = 2").await;
    for _ in 0..2 {
        let landing = browser::sign_in(&fixture, browser::ADA).await;
        assert_eq!(landing.name, "temporaryToken");
    }
    let calls = fixture.count("InitiateAuth");
    let landing = browser::sign_in(&fixture, browser::ADA).await;
    assert_eq!(landing.value, "temporarily_unavailable");
    assert_eq!(fixture.count("InitiateAuth"), calls);
    let bob = browser::Person {
        email: "bob@example.com",
        is_verified: true,
    };
    let landing = browser::sign_in(&fixture, bob).await;
    assert_eq!(landing.name, "temporaryToken", "of another account");
    fixture.clock.advance(Duration::from_secs(600));
    let landing = browser::sign_in(&fixture, browser::ADA).await;
    assert_eq!(landing.name, "temporaryToken", "in the next window");
}

#[tokio::test]
async fn required_reset_does_not_prove_the_password() {
    let fixture = Fixture::new().await;
    let fault = Fault::exception("PasswordResetRequiredException", "x");
    fixture.inject("InitiateAuth", 12, fault);
    let mut codes = Vec::new();
    for number in 0..12 {
        let rejected = fixture
            .sign_in_at(&format!("198.51.{number}.1"), "guess")
            .await;
        codes.push(rejected.expect_err("rejected").code());
    }
    assert_eq!(codes[5], Code::ChallengeRequired);
    assert_eq!(
        codes[6..],
        [Code::InvalidCredentials; 6],
        "throttled, because nothing was proven"
    );
}

/// Makes failures from other networks until the account is delayed, then three with `address`.
/// Returns how many of these three were evaluated.
async fn evaluated_guesses(fixture: &Fixture, address: &str) -> usize {
    for number in 0..8 {
        let _ = fixture
            .sign_in_at(&format!("203.0.{number}.1"), "wrong")
            .await;
    }
    let before = fixture.count("InitiateAuth");
    for _ in 0..3 {
        let _ = fixture.sign_in_at(address, "wrong").await;
    }
    fixture.count("InitiateAuth") - before
}

#[tokio::test]
async fn network_is_trusted_after_a_complete_sign_in_only() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let problem = fixture.sign_in_at("192.0.2.1", "Temporary-1").await;
    let session = session_of(&problem.expect_err("a challenge"));
    assert_eq!(
        evaluated_guesses(&fixture, "192.0.2.1").await,
        0,
        "an incomplete sign-in proves nothing"
    );
    let client = client_at("198.51.7.1");
    let answered = fixture.answer(&client, session, Err("Password-2")).await;
    answered.expect("complete");
    assert_eq!(evaluated_guesses(&fixture, "198.51.7.9").await, 3);
}

#[tokio::test]
async fn network_trust_ends_with_password_and_account() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let signed_in = fixture.sign_in_at("192.0.2.1", PASSWORD).await;
    signed_in.expect("signed in");
    fixture.reset("198.51.100.1", "Password-2").await;
    assert_eq!(
        evaluated_guesses(&fixture, "192.0.2.1").await,
        0,
        "trusted for the old password"
    );
    assert_eq!(
        evaluated_guesses(&fixture, "198.51.100.1").await,
        3,
        "trusted by the reset"
    );
    // Another account has the address now.
    fixture.pool().change_user("AdminDeleteUser", ADA).await;
    fixture.pool().add_user(ADA, "Password-3", true).await;
    fixture.clock.advance(Duration::from_secs(3600));
    let signed_in = fixture.sign_in_at("192.0.2.77", "Password-3").await;
    signed_in.expect("signed in");
    assert_eq!(evaluated_guesses(&fixture, "198.51.100.1").await, 0);
}

#[tokio::test]
async fn attempts_that_the_pool_did_not_evaluate_are_refunded() {
    let throttled = Fault::exception("TooManyRequestsException", "x");
    // The circuit breaker opens after three calls to an unavailable pool.
    for (fault, times, expected) in [
        (Fault::internal_error(), 3, Code::Unavailable),
        (Fault::Silence, 3, Code::Unavailable),
        (throttled, 12, Code::RateLimited),
    ] {
        // Fewer than the attempts, for the account as well.
        let fixture = Fixture::with(|it| {
            it.config = "[abuse]\naddress = 3";
            it.deadline = matches!(fault, Fault::Silence).then_some(Duration::from_secs(1));
        })
        .await;
        fixture.add_ada().await;
        fixture.inject("InitiateAuth", times, fault);
        for _ in 0..12 {
            let rejected = fixture.sign_in_at("192.0.2.1", PASSWORD).await;
            let rejected = rejected.expect_err("not evaluated");
            assert_eq!(rejected.code(), expected, "not a wrong password");
        }
        fixture.clock.advance(Duration::from_secs(1));
        let signed_in = fixture.sign_in_at("192.0.2.1", PASSWORD).await;
        signed_in.expect("the pool has recovered");
    }
}

#[tokio::test]
async fn reset_code_that_was_not_sent_is_refunded() {
    let fixture = Fixture::with_config("[abuse]\naddress = 3").await;
    let ask = async |account: &str| {
        let (flows, client) = (fixture.flows(), client_at("192.0.2.1"));
        let task = flows.request_code(client, email(account));
        task.expect("a task").await.expect("no panic");
    };
    fixture.inject("AdminGetUser", 3, Fault::internal_error());
    for _ in 0..12 {
        ask(ADA).await;
    }
    fixture.clock.advance(Duration::from_secs(1));
    let before = fixture.count("AdminGetUser");
    for account in [ADA, "bob@example.com", "eve@example.com", "kim@example.com"] {
        ask(account).await;
    }
    assert_eq!(
        fixture.count("AdminGetUser"),
        before + 3,
        "three are free for the address"
    );
}

#[tokio::test]
async fn other_reset_errors_count_for_the_client_address() {
    let fixture = Fixture::with_config("codes = 'pool'\n[abuse]\naddress = 3").await;
    let fault = Fault::exception("InvalidPasswordException", "x");
    fixture.inject("ConfirmForgotPassword", 10, fault);
    for number in 0..10 {
        let weak = reset(&format!("u{number}@example.com"), "1", "a");
        let client = client_at("192.0.2.1");
        let _ = fixture.flows().reset_password(&client, &weak).await;
    }
    assert_eq!(fixture.count("ConfirmForgotPassword"), 3, "across accounts");
}
