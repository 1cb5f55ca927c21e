mod trust;

use postern_core::clock::Timestamp;

use super::*;

fn limiter(limits: AttemptLimits) -> (AttemptLimiter, Clock) {
    let clock = Clock::manual(Timestamp(1_000_000));
    (
        AttemptLimiter::new(Cache::memory(clock.clone()), clock.clone(), limits),
        clock,
    )
}

fn from(address: &str) -> ClientContext {
    ClientContext::new("t".into(), address.parse().ok())
}

/// Makes a wrong guess and returns whether it was evaluated.
async fn guess(limiter: &AttemptLimiter, address: &str, account: &str) -> bool {
    let Some(mut attempt) = limiter
        .admit(AttemptKind::Password, &from(address), account)
        .await
    else {
        return false;
    };
    limiter.record_failure(&mut attempt).await;
    true
}

#[tokio::test]
async fn delay_of_an_account_doubles_with_each_failure() {
    let (limiter, clock) = limiter(AttemptLimits::default());
    // Each guess comes from another network, so that only the account's limit applies.
    for network in 0..5 {
        assert!(guess(&limiter, &format!("10.0.{network}.1"), "ada@example.com").await);
    }
    for seconds in [1, 2, 4, 8] {
        assert!(
            guess(&limiter, "10.9.9.9", "ada@example.com").await,
            "after the delay"
        );
        assert!(
            !guess(&limiter, "10.9.9.9", "ADA@example.com").await,
            "within {seconds} s"
        );
        clock.advance(Duration::from_secs(seconds));
    }
    assert!(
        guess(&limiter, "10.8.8.8", "bob@example.com").await,
        "another account"
    );
}

#[tokio::test]
async fn throttled_attempt_counts_in_no_scope() {
    let (limiter, _) = limiter(AttemptLimits {
        per_account: 1,
        per_address: 4,
        ..AttemptLimits::default()
    });
    for _ in 0..2 {
        assert!(guess(&limiter, "10.0.0.1", "ada@example.com").await);
    }
    for _ in 0..20 {
        assert!(!guess(&limiter, "10.0.0.1", "ada@example.com").await);
    }
    for account in ["bob@example.com", "eve@example.com"] {
        assert!(guess(&limiter, "10.0.0.1", account).await, "{account}");
    }
    // The address is delayed now; its attempts do not count for an account.
    for _ in 0..20 {
        assert!(!guess(&limiter, "10.0.0.1", "kim@example.com").await);
    }
    for address in ["10.0.1.1", "10.0.2.1"] {
        assert!(guess(&limiter, address, "kim@example.com").await);
    }
}

#[tokio::test]
async fn process_counts_alone_without_the_shared_cache() {
    let clock = Clock::manual(Timestamp(1_000_000));
    // Nothing listens on port 1.
    let unavailable = Cache::open("redis://127.0.0.1:1", &clock).expect("a URL");
    let limiter = AttemptLimiter::new(
        unavailable,
        clock,
        AttemptLimits {
            per_account: 1,
            ..AttemptLimits::default()
        },
    );
    assert!(guess(&limiter, "10.0.0.1", "ada@example.com").await);
    assert!(guess(&limiter, "10.0.0.1", "ada@example.com").await);
    assert!(!guess(&limiter, "10.0.0.1", "ada@example.com").await);
}

#[test]
fn networks_have_prefixes_of_24_and_64_bits() {
    let of = |text: &str| network(text.parse::<IpAddr>().expect("an address").to_canonical());
    assert_eq!(of("192.0.2.77"), "192.0.2.0/24");
    assert_eq!(of("::ffff:192.0.2.77"), "192.0.2.0/24");
    assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
}
