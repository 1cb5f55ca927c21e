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

async fn sign_in(limiter: &AttemptLimiter, address: &str, account: &str) -> bool {
    let Some(attempt) = limiter
        .admit(AttemptKind::Password, &from(address), account)
        .await
    else {
        return false;
    };
    limiter.record_success(attempt).await;
    let (client, now) = (from(address), limiter.now());
    limiter
        .trust_network(&client, account, Some("s-1"), now)
        .await;
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
async fn concurrent_guesses_do_not_exceed_the_limit() {
    let (limiter, _) = limiter(AttemptLimits::default());
    let mut evaluated = 0;
    let mut admitted = Vec::new();
    for _ in 0..50 {
        let attempt = limiter
            .admit(AttemptKind::Password, &from("10.0.0.1"), "ada@example.com")
            .await;
        evaluated += usize::from(attempt.is_some());
        admitted.extend(attempt);
    }
    assert_eq!(
        evaluated, 6,
        "five are free, and one starts the first delay"
    );
}

#[tokio::test]
async fn failures_elsewhere_do_not_delay_a_trusted_network() {
    let (limiter, _) = limiter(AttemptLimits::default());
    assert!(sign_in(&limiter, "192.0.2.7", "ada@example.com").await);
    for _ in 0..40 {
        guess(&limiter, "198.51.100.1", "ada@example.com").await;
        guess(&limiter, "192.0.2.200", "someone.else@example.com").await;
    }
    assert!(
        !guess(&limiter, "203.0.113.1", "ada@example.com").await,
        "an unknown network is delayed"
    );
    assert!(
        sign_in(&limiter, "192.0.2.7", "ada@example.com").await,
        "the trusted network is not"
    );
}

#[tokio::test]
async fn address_and_network_have_limits_of_their_own() {
    let limits = AttemptLimits {
        per_address: 2,
        per_network: 3,
        ..AttemptLimits::default()
    };
    let (limiter, _) = limiter(limits);
    for account in ["a@example.com", "b@example.com"] {
        assert!(guess(&limiter, "10.0.0.1", account).await);
    }
    assert!(!guess(&limiter, "10.0.0.1", "c@example.com").await);
    assert!(guess(&limiter, "10.0.0.2", "c@example.com").await);
    assert!(
        !guess(&limiter, "10.0.0.3", "d@example.com").await,
        "the network"
    );
    assert!(
        guess(&limiter, "10.0.1.3", "d@example.com").await,
        "another network"
    );
}

#[tokio::test]
async fn flood_delays_only_addresses_with_a_failure() {
    let (limiter, _) = limiter(AttemptLimits {
        total_per_minute: 3,
        ..AttemptLimits::default()
    });
    for n in 0..4 {
        guess(
            &limiter,
            &format!("10.{n}.0.1"),
            &format!("u{n}@example.com"),
        )
        .await;
    }
    assert!(!guess(&limiter, "10.3.0.1", "new@example.com").await);
    assert!(guess(&limiter, "10.77.0.1", "new@example.com").await);
}

#[tokio::test]
async fn refunded_attempt_does_not_count() {
    let (limiter, clock) = limiter(AttemptLimits::default());
    let account = "ada@example.com";
    let refund = async || {
        let attempt = limiter
            .admit(AttemptKind::Password, &from("10.0.0.1"), account)
            .await
            .expect("admitted");
        limiter.refund(attempt).await;
    };
    for _ in 0..20 {
        refund().await;
    }
    for _ in 0..5 {
        assert!(
            guess(&limiter, "10.0.0.1", account).await,
            "all free attempts are left"
        );
    }
    for _ in 0..20 {
        refund().await;
    }
    for seconds in [1, 2] {
        assert!(
            guess(&limiter, "10.0.0.1", account).await,
            "after an unchanged delay"
        );
        assert!(
            !guess(&limiter, "10.0.0.1", account).await,
            "within {seconds} s"
        );
        clock.advance(Duration::from_secs(seconds));
    }
}

#[tokio::test]
async fn refund_does_not_end_the_delay_of_a_later_attempt() {
    let (limiter, clock) = limiter(AttemptLimits::default());
    let account = "ada@example.com";
    let admit = async || {
        limiter
            .admit(AttemptKind::Password, &from("10.0.0.1"), account)
            .await
    };
    for _ in 0..5 {
        assert!(guess(&limiter, "10.0.0.1", account).await);
    }
    let slow = admit().await.expect("admitted");
    clock.advance(Duration::from_secs(1));
    assert!(guess(&limiter, "10.0.0.1", account).await, "delays by 2 s");
    limiter.refund(slow).await;
    assert!(admit().await.is_none(), "the delay goes on");
    clock.advance(Duration::from_secs(2));
    assert!(admit().await.is_some());
}

#[tokio::test]
async fn dropped_attempt_counts_once() {
    let (limiter, _) = limiter(AttemptLimits {
        per_address: 2,
        ..AttemptLimits::default()
    });
    let admit = async |account: &str| {
        limiter
            .admit(AttemptKind::Password, &from("10.0.0.1"), account)
            .await
    };
    drop(admit("a@example.com").await.expect("admitted"));
    tokio::task::yield_now().await;
    let second = admit("b@example.com").await.expect("one is left");
    assert!(admit("c@example.com").await.is_none());
    limiter.record_success(second).await;
    assert!(
        admit("c@example.com").await.is_some(),
        "the right password gives its attempt back"
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
async fn success_resets_the_account() {
    let (limiter, _) = limiter(AttemptLimits {
        per_account: 2,
        ..AttemptLimits::default()
    });
    for _ in 0..5 {
        assert!(guess(&limiter, "10.0.0.1", "ada@example.com").await);
        assert!(sign_in(&limiter, "10.0.0.1", "ada@example.com").await);
    }
}

#[tokio::test]
async fn process_counts_alone_without_the_shared_cache() {
    let clock = Clock::manual(Timestamp(1_000_000));
    // Nothing listens on port 1.
    let unavailable = Cache::open("redis://127.0.0.1:1").await.expect("a URL");
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
