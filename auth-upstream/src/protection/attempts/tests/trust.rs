//! Removal of trusted networks: concurrent sign-ins, and an unavailable cache.

use postern_store::cache::testing::{RedisServer, both};

use super::*;

const ADA: &str = "ada@example.com";
const NETWORK: &str = "192.0.2.0/24";

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
        let started_at = limiter.clock.now();
        trust(&limiter, "198.51.100.1", started_at).await;
        assert!(limiter.is_trusted(ADA, "198.51.100.0/24").await);
        clock.advance(Duration::from_secs(5));
        limiter
            .trust_only(&from("203.0.113.1"), ADA, Some("s-1"))
            .await
            .expect("stored");
        trust(&limiter, "192.0.2.1", started_at).await;
        assert!(!limiter.is_trusted(ADA, NETWORK).await);
        assert!(!limiter.is_trusted(ADA, "198.51.100.0/24").await);
        assert!(limiter.is_trusted(ADA, "203.0.113.0/24").await);
        clock.advance(Duration::from_secs(60));
        trust(&limiter, "192.0.2.1", limiter.clock.now()).await;
        assert!(limiter.is_trusted(ADA, NETWORK).await, "a later sign-in");
        assert!(limiter.is_trusted(ADA, "203.0.113.0/24").await);
        let forgotten = limiter.forget_trusted_networks(ADA).await;
        forgotten.expect("stored");
        assert!(!limiter.is_trusted(ADA, NETWORK).await);
    }
}

#[tokio::test]
async fn removal_is_confirmed_or_fails() {
    let mut redis = RedisServer::start(&["--save", ""]).await;
    let cache = Cache::open(&redis.url(), &Clock::system()).expect("a URL");
    let limiter = AttemptLimiter::new(cache, Clock::system(), AttemptLimits::default());
    redis.kill().await;
    assert!(limiter.forget_trusted_networks(ADA).await.is_err());
    let trusted = limiter.trust_only(&from("192.0.2.1"), ADA, None).await;
    assert!(trusted.is_err());
}
