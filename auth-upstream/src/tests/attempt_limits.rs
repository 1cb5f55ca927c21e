//! Attempt limits of codes, registrations, callbacks and passwords.

use postern_common::{Code, Problem, Secret};
use serde_json::json;

use super::second_factor::{CODE, answer, challenge, session_of};
use crate::client::ClientContext;
use crate::flows::{ConfirmationRequest, ResetRequest};
use crate::testing::browser::{callback, sign_in as sign_in_at_provider, start};
use crate::testing::{Fixture, StubFailure, client_at, email, login, registration};

const ADA: &str = "ada@example.com";

/// Starts a registration and returns its confirmation session.
async fn start_registration(fixture: &Fixture, client: &ClientContext) -> String {
    let problem = fixture
        .service
        .flows
        .registration
        .register(client, &registration(ADA, "Password-1"))
        .await
        .expect_err("a code");
    session_of(&problem)
}

async fn confirm(
    fixture: &Fixture,
    client: &ClientContext,
    session: &str,
    code: &str,
) -> Result<(), Problem> {
    let (session, code, password) = (
        session.to_owned(),
        code.to_owned(),
        Secret::from("Password-1"),
    );
    let confirmation = ConfirmationRequest {
        session,
        code,
        password,
    };
    fixture
        .service
        .flows
        .registration
        .confirm(client, &confirmation)
        .await
        .map(drop)
        .map_err(Problem::from)
}

#[tokio::test]
async fn confirmation_code_guesses_are_limited_across_networks() {
    let fixture = Fixture::with_config("confirm = 'code'").await;
    let mut session = start_registration(&fixture, &client_at("192.0.2.1")).await;
    let mut bodies = std::collections::BTreeSet::new();
    for network in 0..20 {
        let client = client_at(&format!("198.51.{network}.1"));
        // Registering again with the right password requests a new code, but permits no more
        // guesses.
        if network % 4 == 0 {
            session = start_registration(&fixture, &client).await;
        }
        let rejected = confirm(&fixture, &client, &session, "000000")
            .await
            .expect_err("rejected");
        bodies.insert(rejected.render("id").body);
    }
    assert_eq!(
        (bodies.len(), fixture.pool.count("ConfirmSignUp")),
        (1, 6),
        "five are free, one starts the delay"
    );
    let throttled = confirm(&fixture, &client_at("192.0.2.1"), &session, "123456")
        .await
        .expect_err("throttled");
    assert_eq!(throttled.code(), Code::InvalidCode);
    fixture.clock.advance(std::time::Duration::from_secs(2));
    confirm(&fixture, &client_at("192.0.2.1"), &session, "123456")
        .await
        .expect("after the delay");
}

#[tokio::test]
async fn registrations_of_an_address_and_network_are_limited() {
    let config = "[abuse]\naddress = 3\nnetwork = 5";
    let fixture = Fixture::with_config(config).await;
    let register = |address: &str, number: usize| {
        let (client, email) = (client_at(address), format!("u{number}@example.com"));
        let service = fixture.service.clone();
        async move {
            service
                .flows
                .registration
                .register(&client, &registration(&email, "Password-1"))
                .await
                .map(drop)
                .map_err(Problem::from)
        }
    };
    for number in 0..3 {
        register("192.0.2.1", number).await.expect("registered");
    }
    let throttled = register("192.0.2.1", 3).await.expect_err("throttled");
    assert_eq!(throttled.code(), Code::RateLimited);
    assert_eq!(throttled.render("id").headers["retry-after"], "60");
    assert_eq!(fixture.pool.count("SignUp"), 3, "and costs nothing");
    for (address, number) in [("192.0.2.2", 4), ("192.0.2.3", 5)] {
        register(address, number)
            .await
            .expect("another address of the network");
    }
    register("192.0.2.4", 6)
        .await
        .expect_err("the network is limited as well");
    register("203.0.113.1", 7).await.expect("another network");
    fixture.clock.advance(std::time::Duration::from_secs(1));
    register("192.0.2.1", 8)
        .await
        .expect("one more after the delay");
    register("192.0.2.1", 9)
        .await
        .expect_err("the next delay is longer");
}

#[tokio::test]
async fn only_failed_callbacks_are_counted() {
    let config = "[abuse]\naddress = 3";
    let fixture = Fixture::with_config(config).await;
    let back = async |code: Option<&str>| {
        let url = start(&fixture, None).await;
        let (right, state) = fixture.provider.consent(&url, json!({}));
        let code = code.map_or(right, str::to_owned);
        fixture
            .social()
            .handle_callback(&client_at("192.0.2.1"), callback((code, state)))
            .await
            .into_inner()
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
        "not evaluated"
    );
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.name,
        "temporaryToken",
        "from a loopback address"
    );
    fixture.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(back(None).await.name, "temporaryToken", "after the delay");
}

#[tokio::test]
async fn required_reset_does_not_prove_the_password() {
    let fixture = Fixture::new().await;
    let reset = StubFailure {
        status: 400,
        name: "PasswordResetRequiredException",
        message: "x",
    };
    for _ in 0..12 {
        fixture.pool.failures.add("InitiateAuth", reset.clone());
    }
    let mut codes = Vec::new();
    for number in 0..12 {
        let client = client_at(&format!("198.51.{number}.1"));
        codes.push(
            fixture
                .service
                .flows
                .login
                .sign_in(&client, &login(ADA, "guess"))
                .await
                .expect_err("rejected")
                .code(),
        );
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
        let other = client_at(&format!("203.0.{number}.1"));
        let _ = fixture
            .service
            .flows
            .login
            .sign_in(&other, &login(ADA, "wrong"))
            .await;
    }
    let before = fixture.pool.count("InitiateAuth");
    for _ in 0..3 {
        let _ = fixture
            .service
            .flows
            .login
            .sign_in(&client_at(address), &login(ADA, "wrong"))
            .await;
    }
    fixture.pool.count("InitiateAuth") - before
}

#[tokio::test]
async fn network_is_trusted_after_a_complete_sign_in_only() {
    let fixture = Fixture::new().await;
    let ada = fixture.pool.add_user(ADA, "Temporary-1", true).subject;
    let problem = fixture
        .service
        .flows
        .login
        .sign_in(&client_at("192.0.2.1"), &login(ADA, "Temporary-1"))
        .await
        .expect_err("a challenge");
    assert_eq!(problem.code(), Code::ChallengeRequired);
    assert_eq!(
        evaluated_guesses(&fixture, "192.0.2.1").await,
        0,
        "an incomplete sign-in proves nothing"
    );
    let session = challenge(&fixture, "SOFTWARE_TOKEN_MFA", &ada);
    answer(&fixture, 7, session, CODE, "123456")
        .await
        .expect("complete");
    assert_eq!(evaluated_guesses(&fixture, "198.51.7.9").await, 3);
}

#[tokio::test]
async fn network_trust_ends_with_password_and_account() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    fixture
        .service
        .flows
        .login
        .sign_in(&client_at("192.0.2.1"), &login(ADA, "Password-1"))
        .await
        .expect("signed in");
    let reset = ResetRequest {
        email: email(ADA),
        code: "123456".into(),
        new_password: Secret::from("Password-2"),
    };
    fixture
        .service
        .flows
        .password
        .reset(&client_at("198.51.100.1"), &reset)
        .await
        .expect("reset");
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
    fixture.pool.add_user(ADA, "Password-3", true);
    fixture.clock.advance(std::time::Duration::from_secs(3600));
    fixture
        .service
        .flows
        .login
        .sign_in(&client_at("192.0.2.77"), &login(ADA, "Password-3"))
        .await
        .expect("signed in");
    assert_eq!(evaluated_guesses(&fixture, "198.51.100.1").await, 0);
}

#[tokio::test]
async fn throttled_confirmation_does_not_lock_the_address() {
    let fixture = Fixture::with_config("confirm = 'code'").await;
    let session = start_registration(&fixture, &client_at("192.0.2.1")).await;
    for _ in 0..8 {
        confirm(&fixture, &client_at("192.0.2.1"), &session, "000000")
            .await
            .expect_err("rejected");
    }
    let client = client_at("192.0.2.1");
    let throttled = async {
        let confirmation = confirm(&fixture, &client, &session, "123456");
        let limit = std::time::Duration::from_secs(5);
        Ok::<_, Problem>(tokio::time::timeout(limit, confirmation).await)
    };
    let locks = &fixture.service.flows.registration.locks;
    let throttled = locks.with_address(&email(ADA), Box::pin(throttled)).await;
    assert_eq!(
        throttled
            .expect("the lock is free")
            .expect("does not wait for the lock")
            .expect_err("throttled")
            .code(),
        Code::InvalidCode
    );
}

#[tokio::test]
async fn reset_limit_of_the_pool_reads_as_a_wrong_code() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    let limit = StubFailure {
        status: 400,
        name: "LimitExceededException",
        message: "Attempt limit exceeded",
    };
    fixture.pool.failures.add("ConfirmForgotPassword", limit);
    let new_password = Secret::from("Password-2");
    let reset = |address: &str| ResetRequest {
        email: email(address),
        code: "0".into(),
        new_password: new_password.clone(),
    };
    let known = fixture
        .service
        .flows
        .password
        .reset(&client_at("192.0.2.1"), &reset(ADA))
        .await
        .expect_err("rejected");
    let unknown = reset("nobody@example.com");
    let unknown = fixture
        .service
        .flows
        .password
        .reset(&client_at("192.0.2.1"), &unknown)
        .await
        .expect_err("rejected");
    assert_eq!(known.render("id").body, unknown.render("id").body);
}

#[tokio::test]
async fn attempts_that_the_pool_did_not_evaluate_are_refunded() {
    // The circuit breaker opens after three calls to an unavailable pool.
    let rows = [
        (503, "ServiceUnavailableException", 3, Code::Unavailable),
        (400, "TooManyRequestsException", 12, Code::RateLimited),
    ];
    for (status, name, times, expected) in rows {
        let fixture = Fixture::new().await;
        fixture.pool.add_user(ADA, "Password-1", true);
        let login = login(ADA, "Password-1");
        for _ in 0..times {
            fixture.pool.failures.add(
                "InitiateAuth",
                StubFailure {
                    status,
                    name,
                    message: "x",
                },
            );
        }
        for _ in 0..12 {
            let rejected = fixture
                .service
                .flows
                .login
                .sign_in(&client_at("192.0.2.1"), &login)
                .await
                .expect_err(name);
            assert_eq!(rejected.code(), expected, "not a wrong password");
        }
        fixture.clock.advance(std::time::Duration::from_secs(1));
        fixture
            .service
            .flows
            .login
            .sign_in(&client_at("192.0.2.1"), &login)
            .await
            .expect("the pool has recovered");
    }
}

#[tokio::test]
async fn reset_code_that_was_not_sent_is_refunded() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Password-1", true);
    let ask = async || {
        let task = fixture
            .service
            .flows
            .password
            .request_code(client_at("192.0.2.1"), email(ADA));
        task.expect("a task").await.expect("no panic");
    };
    for _ in 0..3 {
        fixture
            .pool
            .failures
            .add("ForgotPassword", StubFailure::INTERNAL_ERROR);
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
        "five are free, one starts the delay"
    );
}

#[tokio::test]
async fn other_reset_errors_count_for_the_client_address() {
    let fixture = Fixture::with_config("[abuse]\naddress = 3").await;
    let weak = StubFailure {
        status: 400,
        name: "InvalidPasswordException",
        message: "x",
    };
    for _ in 0..10 {
        fixture
            .pool
            .failures
            .add("ConfirmForgotPassword", weak.clone());
    }
    for number in 0..10 {
        let email = email(&format!("u{number}@example.com"));
        let reset = ResetRequest {
            email,
            code: "1".into(),
            new_password: Secret::from("a"),
        };
        let _ = fixture
            .service
            .flows
            .password
            .reset(&client_at("192.0.2.1"), &reset)
            .await;
    }
    assert_eq!(
        fixture.pool.count("ConfirmForgotPassword"),
        3,
        "across accounts"
    );
}
