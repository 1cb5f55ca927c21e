//! The end of a WebSocket whose client reads nothing while its token expires.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use postern_core::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

/// How long the token lives, in seconds.
const LIFETIME: u32 = 3;

/// From the expiry to the end of the tunnel: two seconds in which both sides may close, and slack.
/// A reader that takes nothing is given 20 seconds otherwise.
const CLOSE_WITHIN: Duration = Duration::from_secs(6);

const ACCEPTED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// An origin that accepts one WebSocket and sends frames until the connection ends.
async fn flooding_origin() -> (SocketAddr, JoinHandle<Instant>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let origin = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut head).await.expect("a head"), 0);
        }
        stream.write_all(ACCEPTED).await.expect("writes");
        let frame = [&b"\x82\x7e\x80\x00"[..], &[b'x'; 32 << 10]].concat();
        while stream.write_all(&frame).await.is_ok() {}
        Instant::now()
    });
    (address, origin)
}

#[tokio::test]
async fn websocket_that_is_not_read_ends_with_its_token() {
    let (address, origin) = flooding_origin().await;
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let gateway =
        TestGateway::before(unused, &format!("addresses = [\"{address}\"]"), "", ROUTES).await;
    let now = Clock::system().now().unix_seconds();
    let bearer = gateway.user_until(now + i64::from(LIFETIME));
    let mut client = gateway.connect().await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
    client
        .write(&format!(
            "GET /socket HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {bearer}\r\n{upgrade}\r\n"
        ))
        .await;
    let opened = Instant::now();
    assert_eq!(client.response().await.expect("an answer").status, 101);
    let most = Duration::from_secs(LIFETIME.into()) + CLOSE_WITHIN;
    let ended = tokio::time::timeout(most, origin)
        .await
        .expect("an end in time");
    let lasted = ended.expect("does not panic") - opened;
    assert!(
        lasted >= Duration::from_secs(u64::from(LIFETIME) - 1),
        "{lasted:?}"
    );
    let mut rest = Vec::new();
    let reading = client.stream.read_to_end(&mut rest);
    let _closed_or_reset = tokio::time::timeout(STEP_TIMEOUT, reading)
        .await
        .expect("an end");
    let events = gateway.finish().await;
    assert_eq!(
        (&events[0]["status"], &events[0]["code"]),
        (&101.into(), &"token_expired".into())
    );
}
