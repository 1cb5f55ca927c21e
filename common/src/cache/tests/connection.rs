//! Tests of the connection to Redis: unresponsive, restored and broken.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::super::*;
use super::MINUTE;

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

#[tokio::test]
async fn restored_server_is_reconnected_to() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        listener.local_addr().expect("bound")
    };
    let cache = Cache::open(&format!("redis://{port}"))
        .await
        .expect("a URL");
    for _ in 0..=breaker::FAILURE_THRESHOLD {
        assert_eq!(cache.ping().await, Err(CacheError::Unavailable));
    }
    let listener = TcpListener::bind(port)
        .await
        .expect("the port is still free");
    tokio::spawn(pong(listener));
    let start = Instant::now();
    while cache.ping().await.is_err() {
        assert!(start.elapsed() < MINUTE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Implements the handshake and PING: answers every command with `+PONG`.
async fn pong(listener: TcpListener) {
    while let Ok((mut connection, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(1..) = connection.read(&mut buffer).await {
                let commands = buffer.iter().filter(|byte| **byte == b'*').count();
                let answer = "+PONG\r\n".repeat(commands.max(1));
                buffer = [0; 4096];
                if connection.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn broken_connection_is_replaced() {
    let (ours, proxy) = cuttable().await;
    let through = cache_through(&ours);
    through.set("a", b"1", MINUTE).await.expect("set");
    proxy.cut.notify_waiters();
    let start = Instant::now();
    while through.get("a").await != Ok(Some(b"1".to_vec())) {
        assert!(start.elapsed() < MINUTE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct Proxy {
    cut: tokio::sync::Notify,
}

/// Starts a proxy to the test's Redis whose connections can be cut.
async fn cuttable() -> (String, Arc<Proxy>) {
    let target = ::url::Url::parse(&crate::database::testing::required("POSTERN_TEST_REDIS"))
        .expect("a URL");
    let target = format!(
        "{}:{}",
        target.host_str().expect("a host"),
        target.port().unwrap_or(6379)
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let proxy = Arc::new(Proxy {
        cut: tokio::sync::Notify::new(),
    });
    let switch = proxy.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (target, switch) = (target.clone(), switch.clone());
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(target)
                    .await
                    .expect("Redis accepts connections");
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    () = switch.cut.notified() => {}
                }
            });
        }
    });
    (address, proxy)
}

fn cache_through(address: &str) -> Cache {
    let url = format!(
        "redis://{address}?namespace={}&deadline=5000ms",
        uuid::Uuid::new_v4().simple()
    );
    Cache::open_with(&url, &CacheOptions::default()).expect("a URL")
}
