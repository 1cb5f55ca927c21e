//! Responses over HTTP/2: complete for readers of every kind, and sent without delay.

use std::future::poll_fn;

use futures_util::future::join_all;
use h2::RecvStream;
use tokio::io::{AsyncRead, AsyncWrite};

use super::scripted_origin::{gateway, start};
use super::*;

/// Streams that are open at once.
const STREAMS: u8 = 20;

/// Returns the body that the origin of these tests sends to this target.
fn body(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(next).collect()
}

/// Starts an origin that answers `/open?SEED-LENGTH`; every second one with chunks.
async fn start_origin() -> SocketAddr {
    start(|mut connection| async move {
        while let Some(request) = connection.take_head().await {
            let query = request.split(['?', ' ']).nth(2).expect("a query");
            let (seed, length) = query.split_once('-').expect("two numbers");
            let seed: u8 = seed.parse().expect("a number");
            let body = body(seed, length.parse().expect("a number"));
            if seed.is_multiple_of(2) {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                connection.send([head.as_bytes(), &body].concat()).await;
                continue;
            }
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            connection.send(head).await;
            // Chunks of many sizes, around those of the buffers as well.
            let mut rest = &body[..];
            for size in [1, 4_095, 16_384, 16_385, 40_000].into_iter().cycle() {
                let (chunk, later) = rest.split_at(rest.len().min(size));
                let line = format!("{:x}\r\n", chunk.len());
                let parts = [line.as_bytes(), chunk, b"\r\n"];
                connection.send(parts.concat()).await;
                rest = later;
                if chunk.is_empty() {
                    break;
                }
            }
        }
    })
    .await
}

/// Opens a connection with windows of this size for each stream and for all.
async fn connect<S>(stream: S, window: u32, all: u32) -> SendRequest<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let shaking = builder
        .initial_connection_window_size(all)
        .handshake(stream);
    let (client, connection) = shaking.await.expect("a handshake");
    tokio::spawn(connection);
    client.ready().await.expect("ready")
}

/// Requests a body on every stream at once, and checks each byte.
async fn check_all_streams(mut client: SendRequest<Bytes>, length: usize, case: &str) {
    let exchanges: Vec<_> = (0..STREAMS)
        .map(|seed| {
            let target = format!("/open?{seed}-{length}");
            let (answer, _) = send(&mut client, head("GET", &target, &[]), true);
            async move { reply(answer).await.expect("a response") }
        })
        .collect();
    for (seed, response) in (0..STREAMS).zip(join_all(exchanges).await) {
        assert_eq!(response.status, 200, "{case}");
        assert_eq!(response.body.len(), length, "{case}");
        assert!(response.body == body(seed, length), "{case}: stream {seed}");
    }
}

#[tokio::test]
async fn every_byte_of_many_large_responses_arrives() {
    let address = start_origin().await;
    let plain = gateway(&[address], "", "").await;
    let upstream = format!("addresses = [\"{address}\"]");
    let encrypted = TlsGateway::start(OriginBehavior::Answer, "", &upstream).await;
    for (window, all, length) in [
        (500, 65_535, 20_000),
        (16_385, 65_535, 200_000),
        (65_535, 65_535, 200_000),
        (1 << 20, 16 << 20, 400_000),
    ] {
        let case = format!("windows of {window} and {all} bytes");
        let stream = plain.connect().await.stream;
        stream.set_nodelay(true).expect("a socket");
        let client = connect(stream, window, all).await;
        check_all_streams(client, length, &case).await;
        let stream = encrypted.connect().await;
        stream.get_ref().0.set_nodelay(true).expect("a socket");
        let client = connect(stream, window, all).await;
        check_all_streams(client, length, &format!("TLS, {case}")).await;
    }
    // The sockets hold the gateway up, and not the windows.
    let stream = connect_narrow(plain.address, 4 << 10).await;
    let client = connect(stream, 1 << 20, 16 << 20).await;
    check_all_streams(client, 100_000, "narrow sockets").await;
    let client = connect(encrypted.connect_narrow("h2").await, 1 << 20, 16 << 20).await;
    check_all_streams(client, 100_000, "TLS, narrow sockets").await;
}

#[tokio::test]
async fn data_frames_fill_tls_records() {
    let gateway = gateway(&[start_origin().await], "", "").await;
    let mut client = connect(gateway.connect().await.stream, 1 << 20, 16 << 20).await;
    let mut body = open_body(&mut client, "/open?2-400000").await;
    let mut sizes = Vec::new();
    while let Some(data) = body.data().await {
        sizes.push(data.expect("data").len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), 400_000);
    // The head of a frame has 9 bytes.
    assert!(sizes.iter().all(|size| size + 9 <= 16 << 10), "{sizes:?}");
    let small = sizes.iter().filter(|size| **size < 1_000).count();
    assert!(small * 4 < sizes.len(), "{sizes:?}");
}

/// Nothing else happens on the connection until the first event has arrived.
#[tokio::test]
async fn events_are_forwarded_over_http2_without_delay() {
    let front = TlsGateway::start(OriginBehavior::Events, "", "").await;
    let mut client = front.client().await;
    let exchange = async {
        let mut events = open_body(&mut client, "/open").await;
        let first = events.data().await.expect("an event").expect("data");
        assert_eq!(first, "first..\n", "before the second event");
        let (_other, _) = send(&mut client, head("GET", "/open", &[]), true);
        let second = events.data().await.expect("an event").expect("data");
        assert_eq!(second, "second.\n");
    };
    in_time(exchange).await;
}

/// Returns the statuses and `Link` fields of all responses to a request.
async fn interim_and_final(
    client: &mut SendRequest<Bytes>,
    fields: &[(&str, &str)],
) -> Vec<String> {
    let (mut answer, _) = send(client, head("GET", "/open", fields), true);
    let shown = |head: &HeaderMap, status: u16| format!("{status} {:?}", head.get("link"));
    let mut seen = Vec::new();
    while let Some(interim) = poll_fn(|cx| answer.poll_informational(cx)).await {
        let interim = interim.expect("no reset");
        seen.push(shown(interim.headers(), interim.status().as_u16()));
    }
    let last = answer.await.expect("a response");
    seen.push(shown(last.headers(), last.status().as_u16()));
    seen
}

#[tokio::test]
async fn interim_responses_are_forwarded_over_http2() {
    let origin = start(|mut connection| async move {
        while connection.take_head().await.is_some() {
            let hints =
                "HTTP/1.1 103 Early Hints\r\nConnection: X-Hop\r\nX-Hop: a\r\nLink: </a>\r\n\r\n";
            connection.send("HTTP/1.1 102 Processing\r\n\r\n").await;
            connection.send(hints).await;
            connection.send(hints.replace("/a", "/b")).await;
            connection.send(OK).await;
        }
    })
    .await;
    let gateway = gateway(&[origin], "", "").await;
    let mut client = http2_client(&gateway, 1 << 20).await;
    for fields in [&[][..], &[("expect", "100-continue")]] {
        let seen = interim_and_final(&mut client, fields).await;
        let (first, second) = ("103 Some(\"</a>\")", "103 Some(\"</b>\")");
        assert_eq!(seen, ["102 None", first, second, "200 None"], "{fields:?}");
    }
}

#[tokio::test]
async fn interim_responses_of_http2_upstreams_are_forwarded() {
    let origin = start_http2(|_request, mut answer| async move {
        for (status, link) in [(100, "</x>"), (103, "</a>"), (103, "</b>")] {
            let interim = http::Response::builder().status(status);
            let interim = interim.header("link", link).body(()).expect("a head");
            answer.send_informational(interim).expect("sent");
            // The head is sent alone.
            tokio::task::yield_now().await;
        }
        answer_http2(answer, &[b"ok"]);
    })
    .await;
    let gateway = gateway(&[origin], "http2 = true", "").await;
    let mut client = http2_client(&gateway, 1 << 20).await;
    let expected = ["103 Some(\"</a>\")", "103 Some(\"</b>\")", "200 None"];
    assert_eq!(interim_and_final(&mut client, &[]).await, expected);
    let mut client = gateway.begin(GET).await;
    for link in ["a", "b"] {
        let interim = client.until("\r\n\r\n").await;
        assert!(interim.starts_with("HTTP/1.1 103 Early Hints\r\n"));
        assert_fields(&interim, &[&format!("link: </{link}>")]);
    }
    let last = client.until("0\r\n\r\n").await;
    assert!(last.starts_with("HTTP/1.1 200 "), "{last}");
    assert!(last.ends_with("\r\n\r\n2\r\nok\r\n0\r\n\r\n"), "{last}");
}

/// A client that gets DATA after the head resets the stream.
#[tokio::test]
async fn answer_of_the_gateway_to_head_has_no_body_over_http2() {
    let gateway = gateway(&[([127, 0, 0, 1], 1).into()], "", "").await;
    let mut client = http2_client(&gateway, 1 << 20).await;
    for (method, target) in [
        ("HEAD", "/any/1"),
        ("HEAD", "/nowhere"),
        ("HEAD", "/open//x"),
        ("HEAD", "/open"),
        ("GET", "/open"),
    ] {
        let response = call(&mut client, method, target, &[]).await;
        assert!(response.status >= 400, "{method} {target}");
        assert_eq!(response.body.is_empty(), method == "HEAD", "{target}");
    }
}

const SLOW_LIMITS: &str = "min_rate = 8000\nstall_timeout = \"1s\"";
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

async fn read_fast(gateway: &TestGateway, count: usize) -> RecvStream {
    let mut client = http2_client(gateway, 1_000).await;
    let mut body = open_body(&mut client, "/open").await;
    assert!(read(&mut body, count).await, "fast");
    body
}

/// Reads at least `count` bytes. Returns whether the response went on.
async fn read(body: &mut RecvStream, count: usize) -> bool {
    let mut read = 0;
    while read < count {
        let Some(Ok(part)) = body.data().await else {
            return false;
        };
        read += part.len();
        let released = body.flow_control().release_capacity(part.len());
        released.expect("received");
    }
    true
}

#[tokio::test]
async fn reader_that_stalls_is_closed_within_two_windows() {
    let origin = TestOrigin::start(OriginBehavior::Flood).await;
    let gateway = gateway(&[origin.address], "", SLOW_LIMITS).await;
    let mut body = read_fast(&gateway, 100_000).await;
    let stalled_at = Instant::now();
    let closed = async { while let Some(Ok(_)) = body.data().await {} };
    in_time(closed).await;
    let waited = stalled_at.elapsed();
    assert!(waited > STALL_TIMEOUT / 2, "{waited:?}");
    assert!(waited < STALL_TIMEOUT * 3, "{waited:?}");
}
