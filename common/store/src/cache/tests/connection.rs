//! Tests of a Redis that does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;

use super::*;

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
    const DEADLINE: Duration = Duration::from_millis(30);
    let (url, tried) = hung_server().await;
    let cache = Cache::open(&format!("{url}?deadline=30ms"), &Clock::system()).expect("a URL");
    for _ in 0..redis::BREAKER_POLICY.failure_threshold {
        let start = Instant::now();
        assert_eq!(cache.get("a").await, Err(CacheError::Unavailable));
        assert!(start.elapsed() >= DEADLINE);
    }
    let start = Instant::now();
    for _ in 0..1000 {
        assert_eq!(cache.get("a").await, Err(CacheError::Unavailable));
    }
    let cost = start.elapsed();
    assert!(cost < DEADLINE * 100, "1000 calls took {cost:?}");
    let open_time = redis::BREAKER_POLICY.open_time.initial;
    let probes = cost.as_millis() / open_time.as_millis() + 1;
    let most = usize::from(u8::try_from(probes).expect("few")) + 6;
    let tried = tried.load(Ordering::SeqCst);
    assert!(tried <= most, "connections do not accumulate");
}
