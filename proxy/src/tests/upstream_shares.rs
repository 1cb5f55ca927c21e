//! Requests in flight of one upstream, shared among client addresses.

use super::*;

/// A connection from 127.0.0.`last`.
pub(super) async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let local = SocketAddr::from(([127, 0, 0, last], 0));
    socket.bind(local).expect("all of 127.0.0.0/8 is local");
    socket.connect(to).await.expect("connects")
}

pub(super) async fn client_from(gateway: &TestGateway, last: u8) -> RawClient {
    RawClient::new(connect_from(last, gateway.address).await)
}

/// Sends raw bytes from 127.0.0.`last`.
pub(super) async fn begin_from(gateway: &TestGateway, last: u8, raw: &str) -> RawClient {
    let mut client = client_from(gateway, last).await;
    client.write(raw).await;
    client
}

/// An HTTP/2 client from 127.0.0.`last` whose streams have a window of this many bytes.
pub(super) async fn http2_from(gateway: &TestGateway, last: u8, window: u32) -> SendRequest<Bytes> {
    http2_client_on(connect_from(last, gateway.address).await, window).await
}

/// Waits until this many requests are in flight to the only address of the upstream.
pub(super) async fn until_in_flight(gateway: &TestGateway, wanted: usize) {
    let shown = format!("\"inFlight\":{wanted}");
    wait_until(async || gateway.admin_get("/upstreams").await.contains(&shown)).await;
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
                held.push(begin_from(&gateway, last, request).await);
                until_in_flight(&gateway, held.len()).await;
            }
            let mut surplus = client_from(&gateway, last).await;
            let refused = surplus.ask(request).await.problem();
            assert_eq!(refused, "503 upstream_unavailable", "{last} {request:?}");
        }
        // The first address has its places back when its clients are gone.
        held.drain(..4);
        until_in_flight(&gateway, 2).await;
        let _client = begin_from(&gateway, 1, request).await;
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
            held.push(gateway.begin(&request).await);
            until_in_flight(&gateway, count).await;
        }
        assert_eq!(gateway.send(&request).await.status, 503, "{forwarded}");
        if most < 8 {
            let other = request.replace("192.0.2.1", "192.0.2.2");
            let _client = gateway.begin(&other).await;
            until_in_flight(&gateway, most + 1).await;
        }
    }
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
        gateway.wait_for_held_data().await;
        until_in_flight(&gateway, 0).await;
        let mut other = http2_from(&gateway, 2, 65_535).await;
        assert_eq!(get(&mut other, "/open", &[]).await.status, 200);
        drop(held);
    }
}
