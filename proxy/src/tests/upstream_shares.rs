//! Requests in flight of one upstream, shared among client addresses.

use std::net::Ipv4Addr;

use super::scripted_origin::start;
use super::*;

/// A connection from 127.0.0.`last`.
async fn connect_from(gateway: &TestGateway, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind((Ipv4Addr::new(127, 0, 0, last), 0).into())
        .expect("binds");
    socket.connect(gateway.address).await.expect("connects")
}

pub(super) async fn client_from(gateway: &TestGateway, last: u8) -> RawClient {
    RawClient::new(connect_from(gateway, last).await)
}

/// An HTTP/2 client from 127.0.0.`last` whose streams have a window of this many bytes.
pub(super) async fn http2_from(gateway: &TestGateway, last: u8, window: u32) -> SendRequest<Bytes> {
    http2_client_on(connect_from(gateway, last).await, window).await
}

/// Requests in flight to the only address of the upstream.
async fn in_flight(gateway: &TestGateway) -> usize {
    let text = gateway.admin_get("/upstreams").await;
    let rest = text.split("\"inFlight\":").nth(1).expect("a number");
    let digits = rest
        .trim_start()
        .split(|c: char| !c.is_ascii_digit())
        .next();
    digits.expect("digits").parse().expect("a number")
}

/// Waits until this many requests are in flight.
async fn until_in_flight(gateway: &TestGateway, wanted: usize) {
    wait_until(async || in_flight(gateway).await == wanted).await;
}

/// Whether a response waits for its reader.
async fn is_held(gateway: &TestGateway) -> bool {
    let metrics = gateway.admin_get("/metrics").await;
    !metrics.contains("postern_response_buffer_bytes 0\n")
}

/// Requests that stay in flight, one of them without its body.
fn unfinished_requests() -> [&'static str; 3] {
    [
        GET,
        "POST /open HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        "POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: 100000\r\n\r\nx",
    ]
}

#[tokio::test]
async fn address_gets_an_eighth_of_a_half_full_upstream() {
    for request in unfinished_requests() {
        let gateway = TestGateway::with(OriginBehavior::Hang, "", "in_flight = 8").await;
        let mut held = Vec::new();
        for (last, added) in [(1, 4), (2, 1), (3, 1)] {
            for _ in 0..added {
                let mut client = client_from(&gateway, last).await;
                client.write(request).await;
                held.push(client);
                until_in_flight(&gateway, held.len()).await;
            }
            let mut surplus = client_from(&gateway, last).await;
            let refused = surplus.ask(request).await;
            assert_eq!(
                refused.problem(),
                "503 upstream_unavailable",
                "127.0.0.{last} {request:?}"
            );
        }
        // The first address has its places back when its clients are gone.
        held.drain(..4);
        until_in_flight(&gateway, 2).await;
        let mut client = client_from(&gateway, 1).await;
        client.write(request).await;
        until_in_flight(&gateway, 3).await;
    }
}

#[tokio::test]
async fn trusted_proxy_has_no_share_but_its_clients_have() {
    let limits = "trusted_proxies = [\"127.0.0.1/32\"]";
    for (forwarded, most) in [("", 8), ("X-Forwarded-For: 192.0.2.1\r\n", 4)] {
        let gateway = TestGateway::with(OriginBehavior::Hang, limits, "in_flight = 8").await;
        let request = format!("GET /open HTTP/1.1\r\nHost: gate\r\n{forwarded}\r\n");
        let mut held = Vec::new();
        for count in 1..=most {
            let mut client = gateway.connect().await;
            client.write(&request).await;
            held.push(client);
            until_in_flight(&gateway, count).await;
        }
        assert_eq!(gateway.send(&request).await.status, 503, "{forwarded}");
        if most < 8 {
            let other = request.replace("192.0.2.1", "192.0.2.2");
            let mut client = gateway.connect().await;
            client.write(&other).await;
            until_in_flight(&gateway, most + 1).await;
        }
    }
}

/// An origin whose answer to `/any/N` has N bytes.
async fn sized_origin() -> SocketAddr {
    start(|mut connection| async move {
        while let Some(head) = connection.take_head().await {
            let path = head.split(' ').nth(1).expect("a path");
            let length = path.rsplit('/').next().and_then(|n| n.parse().ok());
            let length: usize = length.expect("a length");
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            connection
                .send([head.into_bytes(), vec![b'x'; length]].concat())
                .await;
        }
    })
    .await
}

/// Asks for growing answers that the client does not read, until one waits for its reader although
/// the upstream has nothing more to do with it.
async fn hold_answered(gateway: &TestGateway, fields: &str) -> Option<TcpStream> {
    for length in (4..=96).map(|kib| kib << 10) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4 << 10).expect("a size");
        let mut stream = socket.connect(gateway.address).await.expect("connects");
        let request = format!("GET /any/{length} HTTP/1.1\r\nHost: gate\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if is_held(gateway).await && in_flight(gateway).await == 0 {
                return Some(stream);
            }
        }
        drop(stream);
        until_in_flight(gateway, 0).await;
    }
    None
}

#[tokio::test]
async fn place_is_free_once_the_upstream_has_answered() {
    let upstream = format!("addresses = [\"{}\"]\nin_flight = 1", sized_origin().await);
    let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
    let fields = format!("Authorization: Bearer {}\r\n", gateway.user());
    let held = hold_answered(&gateway, &fields).await;
    assert!(held.is_some(), "no place was free beside a slow reader: ");
    let other = gateway.get("/any/1", &fields).await;
    assert_eq!((other.status, other.body.as_str()), (200, "x"));
}

#[tokio::test]
async fn place_is_free_beside_a_stream_without_a_window() {
    for is_http2 in [false, true] {
        let http2 = start_http2(|_, answer| async move { answer_http2(answer, &[b"xxxxx"]) }).await;
        let origin = TestOrigin::start(OriginBehavior::Answer).await;
        let address = if is_http2 { http2 } else { origin.address };
        let upstream = format!("http2 = {is_http2}\nin_flight = 1");
        let gateway = scripted_origin::gateway(&[address], &upstream, "").await;
        let mut slow = http2_from(&gateway, 1, 0).await;
        let held = open_body(&mut slow, "/open").await;
        wait_until(async || is_held(&gateway).await).await;
        until_in_flight(&gateway, 0).await;
        let mut other = http2_from(&gateway, 2, 65_535).await;
        assert_eq!(get(&mut other, "/open", &[]).await.status, 200);
        drop(held);
    }
}
