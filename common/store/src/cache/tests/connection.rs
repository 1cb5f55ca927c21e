//! Tests of a Redis that does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;
use tokio::time::Instant;

use super::super::*;

/// Starts a server that accepts connections, never answers, and counts them.
async fn hung_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let tried = Arc::new(AtomicUsize::new(0));
    let count = tried.clone();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            held.push(connection);
        }
    });
    (url, tried)
}

#[tokio::test]
async fn unresponsive_server_opens_the_circuit_breaker() {
    let (url, tried) = hung_server().await;
    let options = CacheOptions {
        deadline: Duration::from_millis(30),
        ..CacheOptions::default()
    };
    let cache = Cache::open_with(&url, &options).expect("a URL");
    for _ in 0..breaker::FAILURE_THRESHOLD {
        let start = Instant::now();
        assert_eq!(cache.get("a").await, Err(CacheError::Unavailable));
        assert!(start.elapsed() >= options.deadline);
    }
    let start = Instant::now();
    for _ in 0..1000 {
        assert_eq!(cache.get("a").await, Err(CacheError::Unavailable));
    }
    let cost = start.elapsed();
    assert!(cost < options.deadline * 100, "1000 calls took {cost:?}");
    let probes = cost.as_millis() / breaker::OPEN_DURATION.as_millis() + 1;
    let most = usize::from(u8::try_from(probes).expect("few")) + 6;
    assert!(
        tried.load(Ordering::SeqCst) <= most,
        "connections do not accumulate"
    );
}
