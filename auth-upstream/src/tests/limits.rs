//! Limits on the cost of clients that disconnect or know the password.

use std::time::{Duration, Instant};

use postern_common::{Code, Problem, Secret};

use crate::flows::ResetRequest;
use crate::protection::{AttemptKind, AttemptLimiter};
use crate::testing::{Fixture, FixtureOptions, PausePoint, client, client_at, email, login};

const ADA: &str = "ada@example.com";
const PASSWORD: &str = "Password-1";
const TIMEOUT: Duration = Duration::from_secs(10);

fn limiter(fixture: &Fixture) -> &AttemptLimiter {
    fixture.service.flows.login.guard.limiter()
}

async fn with_limits(config: &'static str) -> Fixture {
    let fixture = Fixture::with_config(config).await;
    fixture.pool.add_user(ADA, PASSWORD, true);
    fixture
}

async fn try_password(fixture: &Fixture, address: &str, password: &str) -> Result<(), Problem> {
    let flow = &fixture.service.flows.login;
    let outcome = flow
        .sign_in(&client_at(address), &login(ADA, password))
        .await;
    outcome.map(drop).map_err(Problem::from)
}

/// Starts a sign-in and disconnects during the call to the pool.
async fn disconnect(fixture: &Fixture, address: &str, account: &str) {
    let held = fixture.pool.pauses.add("InitiateAuth", PausePoint::Before);
    let (service, client) = (fixture.service.clone(), client_at(address));
    let login = login(account, "guess");
    let request = tokio::spawn(async move { service.flows.login.sign_in(&client, &login).await });
    held.reached().await;
    request.abort();
    let _ = request.await.expect_err("aborted");
    held.release();
}

/// Returns whether a password from the address is evaluated.
async fn is_admitted(fixture: &Fixture, address: &str) -> bool {
    let client = client_at(address);
    match limiter(fixture)
        .check_anonymous(AttemptKind::Password, &client)
        .await
    {
        Some(attempt) => {
            attempt.settle().await;
            true
        }
        None => false,
    }
}

/// Waits until the address is throttled: failures of aborted requests are counted by tasks.
async fn wait_until_throttled(fixture: &Fixture, address: &str) {
    let began = Instant::now();
    while is_admitted(fixture, address).await {
        assert!(began.elapsed() < TIMEOUT, "{address} is not throttled");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn aborted_guess_counts_for_address_and_network() {
    let fixture = with_limits("[abuse]\naddress = 3\nnetwork = 5").await;
    for number in 0..3 {
        let account = format!("u{number}@example.com");
        assert!(
            is_admitted(&fixture, "192.0.2.1").await,
            "{number} are free"
        );
        disconnect(&fixture, "192.0.2.1", &account).await;
    }
    wait_until_throttled(&fixture, "192.0.2.1").await;
    assert!(is_admitted(&fixture, "192.0.2.9").await, "the same network");
    let asked = fixture.pool.count("InitiateAuth");
    let refused = try_password(&fixture, "192.0.2.1", PASSWORD).await;
    assert_eq!(
        refused.expect_err("throttled").code(),
        Code::InvalidCredentials
    );
    assert_eq!(fixture.pool.count("InitiateAuth"), asked);
    for address in ["192.0.2.2", "192.0.2.3"] {
        disconnect(&fixture, address, "u9@example.com").await;
    }
    wait_until_throttled(&fixture, "192.0.2.9").await;
    assert!(
        is_admitted(&fixture, "203.0.113.1").await,
        "another network"
    );
}

#[tokio::test]
async fn successful_sign_ins_do_not_count_for_the_address() {
    let fixture = with_limits("[abuse]\naddress = 2").await;
    for _ in 0..5 {
        // Each account signs in from this address for the first time: no network is trusted.
        limiter(&fixture).forget_trusted_networks(ADA).await;
        try_password(&fixture, "192.0.2.1", PASSWORD)
            .await
            .expect("signed in");
    }
    fixture
        .pool
        .alter(ADA, |user| user.password = "Temporary-1".to_owned());
    for _ in 0..5 {
        limiter(&fixture).forget_trusted_networks(ADA).await;
        let asked = try_password(&fixture, "192.0.2.1", "Temporary-1").await;
        assert_eq!(
            asked.expect_err("a challenge").code(),
            Code::ChallengeRequired
        );
    }
    // Tasks that count would have run by now.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(is_admitted(&fixture, "192.0.2.1").await);
}

#[tokio::test]
async fn right_password_is_limited_with_retry_after() {
    let fixture = with_limits("[abuse]\nsign_ins = 3").await;
    let sign_in = async || fixture.sign_in(ADA, PASSWORD).await;
    for _ in 0..3 {
        sign_in().await.expect("signed in");
    }
    fixture.clock.advance(Duration::from_secs(60));
    let asked = fixture.pool.count("InitiateAuth");
    for _ in 0..3 {
        let refused = sign_in().await.expect_err("one too many");
        assert_eq!(refused.code(), Code::RateLimited);
        assert_eq!(refused.render("id").headers["retry-after"], "540");
    }
    assert_eq!(
        fixture.pool.count("InitiateAuth"),
        asked,
        "costs the pool nothing"
    );
    fixture.clock.advance(Duration::from_secs(540));
    sign_in().await.expect("after the wait");
}

#[tokio::test]
async fn rejected_sign_in_leaves_no_token_at_the_pool() {
    let fixture = Fixture::with(FixtureOptions {
        config: "[abuse]\nsign_ins = 2",
        cache: Some(postern_common::cache::testing::redis().await),
        ..FixtureOptions::default()
    })
    .await;
    fixture.pool.add_user(ADA, PASSWORD, true);
    let other = fixture.replica().await;
    for service in [&fixture.service, &other] {
        let login = login(ADA, PASSWORD);
        let outcome = service.flows.login.sign_in(&client(), &login).await;
        outcome.expect("signed in");
    }
    let refused = fixture.sign_in(ADA, PASSWORD).await;
    assert_eq!(refused.expect_err("one too many").code(), Code::RateLimited);
    assert_eq!(fixture.pool.live_refresh_tokens(), 2);
}

#[tokio::test]
async fn sign_in_limit_reveals_nothing_to_guesses() {
    let fixture = with_limits("[abuse]\nsign_ins = 2\naddress = 3").await;
    let guess = async |address: &str, account: &str, password: &str| {
        let flow = &fixture.service.flows.login;
        let rejected = flow
            .sign_in(&client_at(address), &login(account, password))
            .await;
        let response = Problem::from(rejected.expect_err("rejected")).render("id");
        (response.status, response.headers, response.body)
    };
    let before = guess("198.51.100.1", ADA, "wrong").await;
    let unknown = guess("198.51.101.1", "nobody@example.com", "wrong").await;
    for _ in 0..2 {
        fixture.sign_in(ADA, PASSWORD).await.expect("signed in");
    }
    assert_eq!(guess("198.51.102.1", ADA, "wrong").await, before);
    assert_eq!(
        guess("198.51.103.1", "nobody@example.com", "wrong").await,
        unknown
    );
    assert_eq!(before, unknown);
    // A throttled client does not learn from the limit that a guess was right.
    for number in 0..3 {
        guess("203.0.113.1", &format!("u{number}@example.com"), "wrong").await;
    }
    assert_eq!(guess("203.0.113.1", ADA, PASSWORD).await, before);
}

#[tokio::test]
async fn known_password_does_not_lock_out_the_owner() {
    let fixture = with_limits("[abuse]\nsign_ins = 3").await;
    try_password(&fixture, "192.0.2.1", PASSWORD)
        .await
        .expect("the owner signs in");
    // A challenge stops the other client each time.
    fixture
        .pool
        .alter(ADA, |user| user.password = "Temporary-1".to_owned());
    let mut codes = Vec::new();
    for number in 0..6 {
        let address = format!("198.51.{number}.1");
        let stranger = try_password(&fixture, &address, "Temporary-1").await;
        codes.push(stranger.expect_err("stopped").code());
    }
    assert_eq!(codes[..2], [Code::ChallengeRequired; 2], "{codes:?}");
    assert_eq!(codes[2..], [Code::RateLimited; 4], "{codes:?}");
    let owner = try_password(&fixture, "192.0.2.77", "Temporary-1").await;
    assert_eq!(
        owner.expect_err("a challenge").code(),
        Code::ChallengeRequired
    );
}

#[tokio::test]
async fn new_password_is_accepted_where_the_old_one_was_limited() {
    let fixture = with_limits("[abuse]\nsign_ins = 2").await;
    for _ in 0..2 {
        fixture.sign_in(ADA, PASSWORD).await.expect("signed in");
    }
    let reset = ResetRequest {
        email: email(ADA),
        code: "123456".into(),
        new_password: Secret::from("Password-2"),
    };
    let flow = &fixture.service.flows.password;
    flow.reset(&client_at("192.0.2.1"), &reset)
        .await
        .expect("reset");
    try_password(&fixture, "192.0.2.1", "Password-2")
        .await
        .expect("signed in");
}

#[tokio::test]
async fn remembered_old_password_does_not_reset_failures() {
    let fixture = with_limits("[abuse]\nsign_ins = 2\naccount = 3").await;
    for _ in 0..2 {
        fixture.sign_in(ADA, PASSWORD).await.expect("signed in");
    }
    fixture
        .pool
        .alter(ADA, |user| user.password = "Password-2".to_owned());
    let asked = fixture.pool.count("InitiateAuth");
    for _ in 0..6 {
        let _ = fixture.sign_in(ADA, "wrong").await.expect_err("rejected");
        let _ = fixture.sign_in(ADA, PASSWORD).await.expect_err("rejected");
    }
    assert_eq!(
        fixture.pool.count("InitiateAuth") - asked,
        4,
        "three are free, one starts the delay"
    );
}
