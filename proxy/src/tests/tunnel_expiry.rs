//! WebSockets end with the token that opened them.

use std::net::SocketAddr;
use std::time::Duration;

use postern_common::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::harness::{ROUTES, RawClient, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

/// Lifetime of a token in seconds, long enough to open a WebSocket on a busy machine.
const TOKEN_LIFETIME_S: u32 = 4;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
const ACCEPTED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
const CLOSE: &[u8] = b"\x88\x0f\x03\xf0token expired";
const MASKED_CLOSE: &[u8] = b"\x88\x8f\0\0\0\0\x03\xf0token expired";

/// Starts an origin that accepts one WebSocket and sends `first`, then `second` when triggered.
/// Returns the bytes that it received.
async fn origin(
    first: &'static [u8],
    second: &'static [u8],
) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let (go_on, told) = oneshot::channel();
    let origin = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert_ne!(
                stream.read_buf(&mut head).await.expect("a head"),
                0,
                "the head ends"
            );
        }
        stream
            .write_all(&[ACCEPTED, first].concat())
            .await
            .expect("writes");
        let mut frames = Vec::new();
        while !frames.ends_with(MASKED_CLOSE)
            && stream
                .read_buf(&mut frames)
                .await
                .is_ok_and(|read| read > 0)
        {}
        let _dropped = told.await;
        let _closed = stream.write_all(second).await;
        frames
    });
    (address, go_on, origin)
}

/// Starts a gateway before it, with an additional line of the route.
async fn gateway(address: SocketAddr, line: &str) -> TestGateway {
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let routes = ROUTES.replace("websocket = true", &format!("websocket = true\n{line}"));
    TestGateway::before(unused, &format!("addresses = [\"{address}\"]"), "", &routes).await
}

/// Opens a WebSocket with a token that expires soon.
async fn open(gateway: &TestGateway) -> RawClient {
    let bearer =
        gateway.user_until(Clock::system().now().unix_seconds() + i64::from(TOKEN_LIFETIME_S));
    let mut client = gateway.connect().await;
    client
        .write(&format!(
            "GET /socket HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {bearer}\r\n{UPGRADE}\r\n"
        ))
        .await;
    assert_eq!(client.response().await.expect("a response").status, 101);
    client
}

/// Returns all bytes until the connection is closed.
async fn rest(client: &mut RawClient) -> Vec<u8> {
    let mut rest = std::mem::take(&mut client.buffer);
    let read = tokio::time::timeout(STEP_TIMEOUT, client.stream.read_to_end(&mut rest)).await;
    let _closed_or_reset = read.expect("the end in time");
    rest
}

#[tokio::test]
async fn websocket_is_closed_with_1008_when_its_token_expires() {
    let (address, go_on, origin) = origin(b"\x81\x05hello", b"").await;
    let gateway = gateway(address, "").await;
    let mut client = open(&gateway).await;
    client
        .stream
        .write_all(b"\x81\x82mask\x05\x08")
        .await
        .expect("writes");
    drop(go_on);
    assert_eq!(rest(&mut client).await, [b"\x81\x05hello", CLOSE].concat());
    let sent = tokio::time::timeout(STEP_TIMEOUT, origin)
        .await
        .expect("the end in time")
        .expect("does not panic");
    assert_eq!(sent, [b"\x81\x82mask\x05\x08", MASKED_CLOSE].concat());
    let events = gateway.finish().await;
    assert_eq!(
        (&events[0]["status"], &events[0]["code"]),
        (&101.into(), &"token_expired".into())
    );
}

#[tokio::test]
async fn websocket_is_closed_at_a_frame_boundary() {
    let (address, go_on, origin) = origin(b"\x81\x0ahello", b"world\x81\x04next").await;
    let gateway = gateway(address, "").await;
    let mut client = open(&gateway).await;
    tokio::spawn(async move {
        // The origin continues after it has received the close frame and answered it.
        let _told = go_on.send(());
    });
    let got = rest(&mut client).await;
    assert_eq!(
        got,
        [b"\x81\x0ahelloworld", CLOSE].concat(),
        "{}",
        String::from_utf8_lossy(&got)
    );
    tokio::time::timeout(STEP_TIMEOUT, origin)
        .await
        .expect("the end in time")
        .expect("does not panic");
}

#[tokio::test]
async fn websocket_outlives_its_token_if_configured() {
    let origin = TestOrigin::start(OriginBehavior::Upgrade).await;
    let gateway = gateway(origin.address, "outlives_token = true").await;
    let mut client = open(&gateway).await;
    assert_eq!(client.bytes(5).await, "hello");
    tokio::time::sleep(Duration::from_secs(u64::from(TOKEN_LIFETIME_S) + 1)).await;
    client.write("ping").await;
    assert_eq!(client.bytes(4).await, "ping");
}
