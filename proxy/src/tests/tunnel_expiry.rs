//! WebSockets and event streams end with the token that opened them.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::scripted_origin::start;
use super::*;

/// Lifetime of a token in seconds, long enough to open a WebSocket on a busy machine.
const TOKEN_LIFETIME_S: u32 = 4;

const ACCEPTED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// Starts an origin that accepts one WebSocket and sends these bytes, once or until the connection
/// ends. Returns the bytes that it received, and when the connection ended.
async fn origin(
    sent: &'static [u8],
    is_endless: bool,
) -> (SocketAddr, UnboundedReceiver<(Vec<u8>, Timestamp)>) {
    let (report, reports) = unbounded_channel();
    let address = start(move |mut connection| {
        let report = report.clone();
        async move {
            connection.take_head().await.expect("a head");
            connection.send([ACCEPTED, sent].concat()).await;
            while is_endless && connection.stream.write_all(sent).await.is_ok() {}
            let mut received = Vec::new();
            let _closed_or_reset = connection.stream.read_to_end(&mut received).await;
            let _test_ended = report.send((received, Clock::system().now()));
        }
    });
    (address.await, reports)
}

/// Starts a gateway before it, with an additional line of the route.
async fn gateway(address: SocketAddr, line: &str) -> TestGateway {
    let routes = ROUTES.replace("websocket = true", &format!("websocket = true\n{line}"));
    let upstream = format!("addresses = [\"{address}\"]");
    TestGateway::routed(OriginBehavior::Answer, &upstream, "", &routes).await
}

/// Opens a WebSocket with a token that expires soon. Returns the expiry as well.
async fn open(gateway: &TestGateway) -> (RawClient, Timestamp) {
    let expires_at = Clock::system().now().unix_seconds() + i64::from(TOKEN_LIFETIME_S);
    let token = gateway.user_until(expires_at);
    let client = gateway.tunnel(&bearer(&token)).await;
    (client, Timestamp::from_unix_seconds(expires_at))
}

/// Returns all bytes until the connection is closed.
async fn rest(client: &mut RawClient) -> Vec<u8> {
    let mut rest = std::mem::take(&mut client.buffer);
    let _closed_or_reset = in_time(client.stream.read_to_end(&mut rest)).await;
    rest
}

#[tokio::test]
async fn websocket_is_closed_on_both_sides_at_token_expiry() {
    // The first bytes of a frame.
    let (address, mut origin) = origin(b"\x81\x0ahello", false).await;
    let gateway = gateway(address, "").await;
    let (mut client, expires_at) = open(&gateway).await;
    let sent = b"\x81\x82mask\x05\x08";
    client.stream.write_all(sent).await.expect("writes");
    let got = rest(&mut client).await;
    let client_end = Clock::system().now();
    let (received, upstream_end) = in_time(origin.recv()).await.expect("a report");
    assert_eq!(got, b"\x81\x0ahello", "nothing is added");
    assert_eq!(received, sent, "nothing is added");
    for (side, end) in [("client", client_end), ("upstream", upstream_end)] {
        let (early, late) = (expires_at.since(end), end.since(expires_at));
        assert!(early.is_zero(), "{side}: {early:?} too early");
        assert!(late < Duration::from_secs(1), "{side}: {late:?} late");
    }
    let expected = json!({ "status": 101, "code": "token_expired" });
    gateway.assert_event(&expected).await;
}

/// A reader that takes nothing is given 20 seconds otherwise.
#[tokio::test]
async fn websocket_that_is_not_read_ends_with_its_token() {
    let (address, mut origin) = origin(&[b'x'; 32 << 10], true).await;
    let gateway = gateway(address, "").await;
    let (mut client, expires_at) = open(&gateway).await;
    let (_, end) = in_time(origin.recv()).await.expect("a report");
    assert!(expires_at.since(end).is_zero(), "too early");
    assert!(end.since(expires_at) < Duration::from_secs(6), "late");
    rest(&mut client).await;
    let expected = json!({ "status": 101, "code": "token_expired" });
    gateway.assert_event(&expected).await;
}

#[tokio::test]
async fn event_stream_ends_at_token_expiry() {
    let origin = start(|mut connection| async move {
        connection.take_head().await;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n\r\n";
        connection.send(head).await;
        loop {
            connection.send("data: x\n\n").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let gateway = gateway(origin, "").await;
    let now = Clock::system().now();
    let token = gateway.user_until(now.unix_seconds() + 2);
    let expires_at = Timestamp::from_unix_seconds(now.unix_seconds() + 2);
    let mut client = gateway.connect().await;
    let fields = bearer(&token);
    let request = format!("GET /socket HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    client.write(&request).await;
    let head = client.until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let _events = rest(&mut client).await;
    let end = Clock::system().now();
    assert!(expires_at.since(end).is_zero(), "too early");
    assert!(end.since(expires_at) < Duration::from_secs(1), "late");
    assert_eq!(gateway.finish().await[0]["code"], "token_expired");
}
