//! Removal of trusted networks: concurrent sign-ins, and an unavailable cache.

use postern_store::cache::testing::{RedisServer, both};
use tokio::time::{Instant, sleep};

use super::*;

const ADA: &str = "ada@example.com";
const NETWORK: &str = "192.0.2.0/24";
/// Long enough for a removal to be retried on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn trust(limiter: &AttemptLimiter, address: &str, started_at: Timestamp) {
    limiter
        .trust_network(&from(address), ADA, Some("s-1"), started_at)
        .await;
}

#[tokio::test]
async fn sign_in_before_a_removal_adds_no_network_after_it() {
    for store in both().await {
        let clock = Clock::manual(Timestamp(1_000_000));
        let limiter = AttemptLimiter::new(store.cache, clock.clone(), AttemptLimits::default());
        let started_at = limiter.now();
        trust(&limiter, "198.51.100.1", started_at).await;
        assert!(limiter.is_trusted(ADA, "198.51.100.0/24").await);
        clock.advance(Duration::from_secs(5));
        limiter
            .trust_only(&from("203.0.113.1"), ADA, Some("s-1"))
            .await;
        trust(&limiter, "192.0.2.1", started_at).await;
        assert!(!limiter.is_trusted(ADA, NETWORK).await);
        assert!(!limiter.is_trusted(ADA, "198.51.100.0/24").await);
        assert!(limiter.is_trusted(ADA, "203.0.113.0/24").await);
        clock.advance(Duration::from_secs(60));
        trust(&limiter, "192.0.2.1", limiter.now()).await;
        assert!(limiter.is_trusted(ADA, NETWORK).await, "a later sign-in");
        assert!(limiter.is_trusted(ADA, "203.0.113.0/24").await);
        limiter.forget_trusted_networks(ADA).await;
        assert!(!limiter.is_trusted(ADA, NETWORK).await);
    }
}

#[tokio::test]
async fn concurrent_sign_ins_add_both_networks() {
    for store in both().await {
        let clock = Clock::manual(Timestamp(1_000_000));
        let limiter = AttemptLimiter::new(store.cache, clock, AttemptLimits::default());
        let now = limiter.now();
        join(
            trust(&limiter, "192.0.2.1", now),
            trust(&limiter, "198.51.100.1", now),
        )
        .await;
        assert!(limiter.is_trusted(ADA, NETWORK).await, "{}", store.url);
        assert!(
            limiter.is_trusted(ADA, "198.51.100.0/24").await,
            "{}",
            store.url
        );
    }
}

#[tokio::test]
async fn removal_during_an_outage_takes_effect_afterwards() {
    let mut redis = RedisServer::start(&["--save", "3600 1", "--appendonly", "no"]).await;
    let limiter = async || {
        let url = format!("{}?deadline=2000ms", redis.url());
        let cache = Cache::open(&url).await.expect("a URL");
        AttemptLimiter::new(cache, Clock::system(), AttemptLimits::default())
    };
    let (first, second) = (limiter().await, limiter().await);
    trust(&first, "192.0.2.1", first.now()).await;
    assert!(second.is_trusted(ADA, NETWORK).await);
    redis.command("SAVE").await;
    redis.kill().await;
    first.forget_trusted_networks(ADA).await;
    redis.restart().await;
    // The list was restored from the snapshot.
    assert!(!first.is_trusted(ADA, NETWORK).await);
    let began = Instant::now();
    while first.removals.contains(&trusted_key_of_ada()) {
        assert!(began.elapsed() < TIMEOUT, "the removal is not retried");
        assert!(!first.is_trusted(ADA, NETWORK).await);
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!first.is_trusted(ADA, NETWORK).await);
    while second.counters.shared().ping().await.is_err() {
        assert!(began.elapsed() < TIMEOUT, "Redis is unavailable");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!second.is_trusted(ADA, NETWORK).await, "another process");
}

fn trusted_key_of_ada() -> String {
    format!("{KEY_PREFIX}:trusted:{}", account_digest(ADA))
}
