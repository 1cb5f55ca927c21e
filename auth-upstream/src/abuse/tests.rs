use postern_common::clock::Timestamp;

use super::*;

fn at_the_door(limits: AbuseLimits) -> (Abuse, Clock) {
    let clock = Clock::manual(Timestamp(1_000_000));
    (
        Abuse::new(Cache::memory(clock.clone()), clock.clone(), limits),
        clock,
    )
}

fn from(address: &str) -> Visitor {
    Visitor {
        request_id: "t".into(),
        address: address.parse().ok(),
    }
}

/// One wrong guess; whether it was looked at.
async fn guess(abuse: &Abuse, address: &str, who: &str) -> bool {
    let Some(mut attempt) = abuse.admit(Door::Password, &from(address), who).await else {
        return false;
    };
    abuse.failed(&mut attempt).await;
    true
}

async fn sign_in(abuse: &Abuse, address: &str, who: &str) -> bool {
    let Some(attempt) = abuse.admit(Door::Password, &from(address), who).await else {
        return false;
    };
    abuse.succeeded(attempt).await;
    abuse.trust_network(&from(address), who, Some("s-1")).await;
    true
}

#[tokio::test]
async fn an_account_waits_twice_as_long_each_time() {
    let (abuse, clock) = at_the_door(AbuseLimits::default());
    // Each guess comes from another network, so that the account alone counts.
    for network in 0..5 {
        assert!(guess(&abuse, &format!("10.0.{network}.1"), "ada@example.com").await);
    }
    for seconds in [1, 2, 4, 8] {
        assert!(
            guess(&abuse, "10.9.9.9", "ada@example.com").await,
            "after the wait"
        );
        assert!(
            !guess(&abuse, "10.9.9.9", "ADA@example.com").await,
            "within {seconds} s"
        );
        clock.advance(Duration::from_secs(seconds));
    }
    assert!(
        guess(&abuse, "10.8.8.8", "bob@example.com").await,
        "another account"
    );
    assert_eq!(wait_after(30), LONGEST_WAIT);
}

#[tokio::test]
async fn guesses_at_the_same_time_are_no_way_around() {
    let (abuse, _) = at_the_door(AbuseLimits::default());
    let mut looked_at = 0;
    let mut open = Vec::new();
    for _ in 0..50 {
        let attempt = abuse
            .admit(Door::Password, &from("10.0.0.1"), "ada@example.com")
            .await;
        looked_at += usize::from(attempt.is_some());
        open.extend(attempt);
    }
    assert_eq!(looked_at, 6, "five are free, and one opens the first wait");
}

#[tokio::test]
async fn a_stranger_does_not_lock_out_who_was_here_before() {
    let (abuse, _) = at_the_door(AbuseLimits::default());
    assert!(sign_in(&abuse, "192.0.2.7", "ada@example.com").await);
    for _ in 0..40 {
        guess(&abuse, "198.51.100.1", "ada@example.com").await;
        guess(&abuse, "192.0.2.200", "someone.else@example.com").await;
    }
    assert!(
        !guess(&abuse, "203.0.113.1", "ada@example.com").await,
        "a stranger waits"
    );
    assert!(
        sign_in(&abuse, "192.0.2.7", "ada@example.com").await,
        "she does not"
    );
}

#[tokio::test]
async fn an_address_waits_and_its_network_follows() {
    let limits = AbuseLimits {
        address: 2,
        network: 3,
        ..AbuseLimits::default()
    };
    let (abuse, _) = at_the_door(limits);
    for who in ["a@example.com", "b@example.com"] {
        assert!(guess(&abuse, "10.0.0.1", who).await);
    }
    assert!(!guess(&abuse, "10.0.0.1", "c@example.com").await);
    assert!(guess(&abuse, "10.0.0.2", "c@example.com").await);
    assert!(
        !guess(&abuse, "10.0.0.3", "d@example.com").await,
        "the network"
    );
    assert!(
        guess(&abuse, "10.0.1.3", "d@example.com").await,
        "another network"
    );
}

#[tokio::test]
async fn a_flood_leaves_those_alone_who_never_failed() {
    let (abuse, _) = at_the_door(AbuseLimits {
        all: 3,
        ..AbuseLimits::default()
    });
    for n in 0..4 {
        guess(&abuse, &format!("10.{n}.0.1"), &format!("u{n}@example.com")).await;
    }
    assert!(!guess(&abuse, "10.3.0.1", "new@example.com").await);
    assert!(guess(&abuse, "10.77.0.1", "new@example.com").await);
}

#[tokio::test]
async fn what_nobody_could_look_at_does_not_count() {
    let (abuse, clock) = at_the_door(AbuseLimits::default());
    let who = "ada@example.com";
    let refund = async || {
        let attempt = abuse
            .admit(Door::Password, &from("10.0.0.1"), who)
            .await
            .expect("not held back");
        abuse.refund(attempt).await;
    };
    for _ in 0..20 {
        refund().await;
    }
    for _ in 0..5 {
        assert!(
            guess(&abuse, "10.0.0.1", who).await,
            "all that are free still are"
        );
    }
    for _ in 0..20 {
        refund().await;
    }
    for seconds in [1, 2] {
        assert!(
            guess(&abuse, "10.0.0.1", who).await,
            "after the wait, which is as long as it was"
        );
        assert!(!guess(&abuse, "10.0.0.1", who).await, "within {seconds} s");
        clock.advance(Duration::from_secs(seconds));
    }
}

#[tokio::test]
async fn success_forgives_the_account() {
    let (abuse, _) = at_the_door(AbuseLimits {
        account: 2,
        ..AbuseLimits::default()
    });
    for _ in 0..5 {
        assert!(guess(&abuse, "10.0.0.1", "ada@example.com").await);
        assert!(sign_in(&abuse, "10.0.0.1", "ada@example.com").await);
    }
}

#[tokio::test]
async fn without_the_shared_cache_each_process_counts_for_itself() {
    let clock = Clock::manual(Timestamp(1_000_000));
    // Nothing listens there.
    let away = Cache::open("redis://127.0.0.1:1").await.expect("a URL");
    let abuse = Abuse::new(
        away,
        clock,
        AbuseLimits {
            account: 1,
            ..AbuseLimits::default()
        },
    );
    assert!(guess(&abuse, "10.0.0.1", "ada@example.com").await);
    assert!(guess(&abuse, "10.0.0.1", "ada@example.com").await);
    assert!(!guess(&abuse, "10.0.0.1", "ada@example.com").await);
}

#[test]
fn networks_are_24_and_64_bits() {
    let of = |text: &str| network(text.parse::<IpAddr>().expect("an address").to_canonical());
    assert_eq!(of("192.0.2.77"), "192.0.2.0/24");
    assert_eq!(of("::ffff:192.0.2.77"), "192.0.2.0/24");
    assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
}
