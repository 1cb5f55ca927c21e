//! Limits on the cost of clients that disconnect or know the password.

use std::time::{Duration, Instant};

use postern_core::Code;
use postern_store::cache::testing::redis;

use crate::protection::{AttemptKind, AttemptLimiter};
use crate::testing::{
    ADA, Fixture, FixtureOptions, PASSWORD, PausePoint, client, client_at, refused, sign_in,
};

const TIMEOUT: Duration = Duration::from_secs(30);

fn limiter(fixture: &Fixture) -> &AttemptLimiter {
    &fixture.flows().limiter
}

async fn with_limits(config: &'static str) -> Fixture {
    let fixture = Fixture::with_config(config).await;
    fixture.add_ada().await;
    fixture
}

/// Starts a sign-in and disconnects during the call to the pool.
async fn disconnect(fixture: &Fixture, address: &str, account: String) {
    let held = fixture.pause("InitiateAuth", PausePoint::Before);
    let (service, client) = (fixture.service.clone(), client_at(address));
    let request = tokio::spawn(async move { sign_in(&service, &client, &account, "guess").await });
    held.reached().await;
    request.abort();
    let _ = request.await.expect_err("aborted");
    held.release();
}

/// Returns whether a password from the address is evaluated.
async fn is_admitted(fixture: &Fixture, address: &str) -> bool {
    let (limiter, client) = (limiter(fixture), client_at(address));
    let attempt = limiter
        .check_anonymous(AttemptKind::Password, &client)
        .await;
    let is_admitted = attempt.is_some();
    if let Some(attempt) = attempt {
        attempt.settle().await;
    }
    is_admitted
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
        assert!(
            is_admitted(&fixture, "192.0.2.1").await,
            "{number} are free"
        );
        disconnect(&fixture, "192.0.2.1", format!("u{number}@example.com")).await;
    }
    wait_until_throttled(&fixture, "192.0.2.1").await;
    assert!(is_admitted(&fixture, "192.0.2.9").await, "the same network");
    let asked = fixture.count("InitiateAuth");
    refused(
        fixture.sign_in_at("192.0.2.1", PASSWORD).await,
        Code::InvalidCredentials,
    );
    assert_eq!(fixture.count("InitiateAuth"), asked);
    for address in ["192.0.2.2", "192.0.2.3"] {
        disconnect(&fixture, address, "u9@example.com".to_owned()).await;
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
    for (password, expected) in [
        (PASSWORD, None),
        ("Temporary-1", Some(Code::ChallengeRequired)),
    ] {
        let is_permanent = expected.is_none();
        fixture
            .pool()
            .set_password(ADA, password, is_permanent)
            .await;
        for _ in 0..5 {
            // No network is trusted, as if each sign-in were that of another account.
            let forgotten = limiter(&fixture).forget_trusted_networks(ADA).await;
            forgotten.expect("forgotten");
            let outcome = fixture.sign_in_at("192.0.2.1", password).await;
            assert_eq!(outcome.err().map(|problem| problem.code()), expected);
        }
    }
    // Tasks that count would have run by now.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(is_admitted(&fixture, "192.0.2.1").await);
}

#[tokio::test]
async fn right_password_is_limited_with_retry_after() {
    let fixture = with_limits("[abuse]\nsign_ins = 3").await;
    for _ in 0..3 {
        fixture.sign_in(PASSWORD).await.expect("signed in");
    }
    fixture.clock.advance(Duration::from_secs(60));
    let asked = fixture.count("InitiateAuth");
    for _ in 0..3 {
        let problem = refused(fixture.sign_in(PASSWORD).await, Code::RateLimited);
        assert_eq!(problem.render("id").headers["retry-after"], "540");
    }
    assert_eq!(
        fixture.count("InitiateAuth"),
        asked,
        "costs the pool nothing"
    );
    fixture.clock.advance(Duration::from_secs(540));
    fixture.sign_in(PASSWORD).await.expect("after the wait");
}

#[tokio::test]
async fn rejected_sign_in_leaves_no_token_at_the_pool() {
    let url = redis().await.url;
    let shared = |it: &mut FixtureOptions| {
        it.config = "[abuse]\nsign_ins = 2";
        it.cache = Some(url);
    };
    let fixture = Fixture::with(shared).await;
    fixture.add_ada().await;
    let other = fixture.replica().await;
    for service in [&fixture.service, &other] {
        let outcome = sign_in(service, &client(), ADA, PASSWORD).await;
        outcome.expect("signed in");
    }
    refused(fixture.sign_in(PASSWORD).await, Code::RateLimited);
    assert_eq!(fixture.count("RevokeToken"), 1);
}

#[tokio::test]
async fn sign_in_limit_reveals_nothing_to_guesses() {
    let fixture = with_limits("[abuse]\nsign_ins = 2\naddress = 3").await;
    let guess = async |address: &str, account: &str, password: &str| {
        let client = client_at(address);
        let rejected = sign_in(&fixture.service, &client, account, password).await;
        let response = rejected.expect_err("rejected").render("id");
        (response.status, response.headers, response.body)
    };
    let before = guess("198.51.100.1", ADA, "wrong").await;
    let unknown = guess("198.51.101.1", "nobody@example.com", "wrong").await;
    for _ in 0..2 {
        fixture.sign_in(PASSWORD).await.expect("signed in");
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
    let signed_in = fixture.sign_in_at("192.0.2.1", PASSWORD).await;
    signed_in.expect("the owner signs in");
    // A challenge stops the other client each time.
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let mut codes = Vec::new();
    for number in 0..6 {
        let address = format!("198.51.{number}.1");
        let stranger = fixture.sign_in_at(&address, "Temporary-1").await;
        codes.push(stranger.expect_err("stopped").code());
    }
    assert_eq!(codes[..2], [Code::ChallengeRequired; 2], "{codes:?}");
    assert_eq!(codes[2..], [Code::RateLimited; 4], "{codes:?}");
    refused(
        fixture.sign_in_at("192.0.2.77", "Temporary-1").await,
        Code::ChallengeRequired,
    );
}

#[tokio::test]
async fn new_password_is_accepted_where_the_old_one_was_limited() {
    let fixture = with_limits("[abuse]\nsign_ins = 2").await;
    for _ in 0..2 {
        fixture.sign_in(PASSWORD).await.expect("signed in");
    }
    fixture.reset("192.0.2.1", "Password-2").await;
    let signed_in = fixture.sign_in_at("192.0.2.1", "Password-2").await;
    signed_in.expect("signed in");
}

#[tokio::test]
async fn remembered_old_password_does_not_reset_failures() {
    let fixture = with_limits("[abuse]\nsign_ins = 2\naccount = 3").await;
    for _ in 0..2 {
        fixture.sign_in(PASSWORD).await.expect("signed in");
    }
    fixture.pool().set_password(ADA, "Password-2", true).await;
    let asked = fixture.count("InitiateAuth");
    for _ in 0..6 {
        let _ = fixture.sign_in("wrong").await.expect_err("rejected");
        let _ = fixture.sign_in(PASSWORD).await.expect_err("rejected");
    }
    assert_eq!(
        fixture.count("InitiateAuth") - asked,
        4,
        "three are free, one starts the delay"
    );
}
