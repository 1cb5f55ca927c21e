//! Uploads: timeouts, retries and flow control while a body is sent to an upstream.

use std::future::pending;

use futures_util::future::join_all;
use tokio::sync::mpsc::unbounded_channel;

use super::response_budget::{counted, held_bytes};
use super::scripted_origin::{gateway, start, start_stalled};
use super::*;

/// More than is read before the request is sent.
const LONG_BODY_BYTES: usize = 40_000;
/// More than the kernel and the gateway hold for an upstream that reads nothing.
const HUGE_BODY_BYTES: usize = 32 << 20;
const HUGE_LIMITS: &str = "body_bytes = \"33MiB\"\nhead_bytes = \"17MiB\"\n";
const PAUSE: Duration = Duration::from_millis(1200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A body that is read before the request is sent, and a longer one, over each protocol.
fn cases() -> impl Iterator<Item = (Protocol, usize)> {
    let lengths = |protocol| [4, LONG_BODY_BYTES].map(|length| (protocol, length));
    PROTOCOLS.into_iter().flat_map(lengths)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + (at % 23) as u8).collect()
}

/// Returns status and body of a response over HTTP/2.
async fn status_and_text(answer: h2::client::ResponseFuture) -> (u16, String) {
    let response = reply(answer).await.expect("a response");
    let body = String::from_utf8(response.body.to_vec());
    (response.status, body.expect("text"))
}

/// Sends a request, half of its body, and the rest after a pause. Returns status and body of the
/// response.
async fn upload_with_pause(
    gateway: &TestGateway,
    protocol: Protocol,
    (method, target): (&str, &str),
    body: Vec<u8>,
) -> (u16, String) {
    let (first, rest) = body.split_at(body.len() / 2);
    let length = body.len().to_string();
    match protocol {
        Protocol::Http1 => {
            let mut client = gateway.connect().await;
            let head = format!("{method} {target} HTTP/1.1\r\nHost: gate\r\nContent-Length: ");
            client.write(&format!("{head}{length}\r\n\r\n")).await;
            client.stream.write_all(first).await.expect("writes");
            tokio::time::sleep(PAUSE).await;
            // The gateway may have answered already.
            let _closed = client.stream.write_all(rest).await;
            let response = client.answer().await;
            (response.status, response.body)
        }
        Protocol::Http2 => {
            let mut client = http2_client(gateway, 1 << 20).await;
            let fields = [("content-length", length.as_str())];
            let (answer, mut stream) = send(&mut client, head(method, target, &fields), false);
            let sent = stream.send_data(Bytes::copy_from_slice(first), false);
            sent.expect("sends");
            tokio::time::sleep(PAUSE).await;
            let _reset = stream.send_data(Bytes::copy_from_slice(rest), true);
            status_and_text(answer).await
        }
    }
}

/// The timeouts of an upstream begin at the end of the request.
#[tokio::test]
async fn pause_of_a_client_is_no_timeout_of_its_upstream() {
    for (has_answer, read_timeout, status) in [(true, "800ms", 200), (false, "300ms", 504)] {
        let origin = start(move |mut connection| async move {
            while let Some(head) = connection.take_head().await {
                connection.take_body(content_length(&head)).await;
                match has_answer {
                    true => connection.send(OK).await,
                    false => pending().await,
                }
            }
        })
        .await;
        let timeouts = format!("read_timeout = \"{read_timeout}\"\nwrite_timeout = \"800ms\"");
        let gateway = gateway(&[origin], &timeouts, "").await;
        let checks = cases().map(async |(protocol, length)| {
            let request = ("POST", "/open");
            let (found, body) =
                upload_with_pause(&gateway, protocol, request, pattern(length)).await;
            assert_eq!(found, status, "{protocol:?} {length}: {body}");
            assert!(has_answer || body.contains("upstream_timeout"), "{body}");
        });
        join_all(checks).await;
    }
}

/// The body is read before the request is sent, or kept for a second attempt. The client takes
/// longer to send it than the upstream may take to answer.
#[tokio::test]
async fn upload_is_repeated_at_another_address() {
    let requests = Arc::new(AtomicUsize::new(0));
    let (report, mut reports) = unbounded_channel();
    let mut addresses = Vec::new();
    for number in 0..2 {
        let (requests, report) = (Arc::clone(&requests), report.clone());
        let origin = start(move |mut connection| {
            let (requests, report) = (Arc::clone(&requests), report.clone());
            async move {
                while let Some(head) = connection.take_head().await {
                    let body = connection.take_body(content_length(&head)).await;
                    let _test_ended = report.send((number, body));
                    // Every other request fails after it was received.
                    if requests.fetch_add(1, Ordering::Relaxed) % 2 == 0 {
                        return;
                    }
                    connection.send(OK).await;
                }
            }
        });
        addresses.push(origin.await);
    }
    let upstream = "read_timeout = \"800ms\"\nretry_budget = 100\nload_balancing = \"round_robin\"";
    let gateway = gateway(&addresses, upstream, "").await;
    for (protocol, length) in cases() {
        let body = pattern(length);
        let response = upload_with_pause(&gateway, protocol, ("GET", "/open"), body.clone()).await;
        let case = format!("{protocol:?} {length}");
        assert_eq!(response, (200, "ok".into()), "{case}");
        let (first, second) = (reports.recv().await, reports.recv().await);
        let (first, second) = (first.expect("a report"), second.expect("a report"));
        assert_ne!(first.0, second.0, "{case}: another address");
        assert!(first.1.as_ref() == Some(&body), "{case}: the first body");
        assert!(second.1 == Some(body), "{case}: the second body");
    }
}

/// Sends a head, and a huge body as far as it is accepted. Returns the final response.
async fn upload_after(gateway: &TestGateway, head: String, length: usize) -> (u16, String) {
    let (mut near, mut far) = gateway.connect().await.stream.into_split();
    let sending = tokio::spawn(async move {
        let mut written = far.write_all(head.as_bytes()).await;
        // The gateway waits for the body.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let block = vec![b'x'; 64 << 10];
        for _ in 0..length / block.len() {
            if written.is_ok() {
                written = far.write_all(&block).await;
            }
        }
        far
    });
    let mut response = Vec::new();
    let _closed_or_reset = in_time(near.read_to_end(&mut response)).await;
    sending.abort();
    let text = String::from_utf8(response).expect("text");
    let last = text.rsplit("HTTP/1.1 ").next().expect("a response");
    let status = last.split(' ').next().expect("a status");
    (status.parse().expect("a number"), last.to_owned())
}

/// Sends a request with a huge body, as far as it is accepted, and returns the response.
async fn upload_huge_body(
    gateway: &TestGateway,
    protocol: Protocol,
    length: usize,
) -> (u16, String) {
    match protocol {
        Protocol::Http1 => {
            let head = "POST /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n";
            let head = format!("{head}Content-Length: {length}\r\n\r\n");
            upload_after(gateway, head, length).await
        }
        Protocol::Http2 => {
            let mut client = http2_client(gateway, 1 << 20).await;
            let (answer, mut stream) = upload(&mut client, "/open", length, "");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let body = Bytes::from(vec![b'x'; length]);
            stream.send_data(body, true).expect("sends");
            status_and_text(answer).await
        }
    }
}

#[tokio::test]
async fn client_is_not_blamed_for_a_stalled_upstream() {
    let (long, deadline) = ("write_timeout = \"30s\"", "deadline = \"5s\"");
    let cases = [("write_timeout = \"2s\"", ""), (long, deadline)];
    let uploads = cases
        .into_iter()
        .flat_map(|case| PROTOCOLS.map(|protocol| (case, protocol)));
    let checks = uploads.map(|((upstream, limits), protocol)| async move {
        let limits = format!("{HUGE_LIMITS}stall_timeout = \"1s\"\n{limits}");
        let gateway = gateway(&[start_stalled().await], upstream, &limits).await;
        let (status, body) = upload_huge_body(&gateway, protocol, HUGE_BODY_BYTES).await;
        let case = format!("{protocol:?} {upstream}: {body}");
        assert_eq!(status, 504, "{case}");
        assert!(body.contains("upstream_timeout"), "{case}");
        let expected = json!({ "status": 504, "code": "upstream_timeout" });
        gateway.assert_event(&expected).await;
    });
    join_all(checks).await;
}

#[tokio::test]
async fn stalled_upstream_bounds_what_is_read_of_an_upload() {
    // Two reads of a body; over HTTP/2 also the window of a stream.
    for (protocol, most) in [(Protocol::Http1, 64 << 10), (Protocol::Http2, 128 << 10)] {
        let origin = start_stalled().await;
        let gateway = gateway(&[origin], "write_timeout = \"60s\"", HUGE_LIMITS).await;
        let written = Arc::new(AtomicUsize::new(0));
        let stream = gateway.connect().await.stream;
        stream.set_nodelay(true).expect("a socket");
        let mut counted = counted(stream, &written);
        let sending = tokio::spawn(async move {
            let body = vec![b'x'; HUGE_BODY_BYTES];
            if protocol == Protocol::Http1 {
                let head = "POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: ";
                let head = format!("{head}{HUGE_BODY_BYTES}\r\n\r\n").into_bytes();
                let written = counted.write_all(&[head, body].concat()).await;
                written.expect("writes");
            } else {
                let mut client = http2_client_on(counted, 1 << 20).await;
                let (answer, _stream) = upload(&mut client, "/open", HUGE_BODY_BYTES, body);
                drop(answer.await);
            }
        });
        let held = held_bytes(&gateway, origin, &written, HUGE_BODY_BYTES).await;
        assert!(held > 0, "{protocol:?}: nothing was read");
        assert!(held <= most + (4 << 10), "{protocol:?}: {held} bytes");
        sending.abort();
    }
}

/// Starts an origin that reads 5 MB a second, and answers at the end of the request.
async fn start_steady_reader() -> SocketAddr {
    start(|mut connection| async move {
        let mut pace = tokio::time::interval(Duration::from_millis(25));
        let mut tail = Vec::new();
        let mut space = vec![0; 128 << 10];
        let (mut received, mut end) = (0, None);
        while end.is_none_or(|end| received < end) {
            pace.tick().await;
            let Ok(read @ 1..) = connection.stream.read(&mut space).await else {
                return;
            };
            received += read;
            if end.is_none() {
                tail.extend_from_slice(&space[..read]);
                let at = tail.windows(4).position(|window| window == b"\r\n\r\n");
                end = at.map(|at| {
                    let head = String::from_utf8_lossy(&tail[..at]);
                    received - tail.len() + at + 4 + content_length(&head)
                });
                let keep = tail.len().min(4 << 10);
                tail.drain(..tail.len() - keep);
            }
        }
        connection.send(OK).await;
    })
    .await
}

/// Each part is sent within the timeout, all parts together are not.
#[tokio::test]
async fn every_part_of_an_upload_has_its_own_write_timeout() {
    let origin = start_steady_reader().await;
    let gateway = gateway(&[origin], "write_timeout = \"1200ms\"", HUGE_LIMITS).await;
    let (status, body) = upload_huge_body(&gateway, Protocol::Http1, 16 << 20).await;
    assert_eq!(status, 200, "{body}");
}

/// One write that the upstream accepts piece by piece, for longer than the timeout.
#[tokio::test]
async fn write_timeout_is_not_renewed_by_a_partial_write() {
    let origin = start_steady_reader().await;
    let gateway = gateway(&[origin], "write_timeout = \"1200ms\"", HUGE_LIMITS).await;
    let mut client = gateway.connect().await;
    let head = format!(
        "GET /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nX-Much: {}\r\n\r\n",
        "x".repeat(16 << 20)
    );
    assert_eq!(client.ask(&head).await.problem(), "504 upstream_timeout");
}

/// An origin that gives up: on an upload whose body does not arrive, and on a request with `x-drop`.
#[tokio::test]
async fn reset_during_a_slow_upload_is_not_the_failure_of_its_address() {
    let origin = start(|mut connection| async move {
        let head = connection.take_head().await.unwrap_or_default();
        match head.starts_with("GET") && !head.contains("x-drop") {
            true => connection.send(OK).await,
            false => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    })
    .await;
    let settings = "retries = 0\n[upstream.origin.outlier]\nfailures = 1";
    let is_ejected = async |gateway: &TestGateway| {
        let counted = gateway.metric("postern_ejections_total{upstream=\"origin\"}");
        counted.await != Some(0)
    };
    for framing in ["Content-Length: 50000", "Transfer-Encoding: chunked"] {
        let gateway = gateway(&[origin], settings, "").await;
        let mut attack = Vec::new();
        for _ in 0..8 {
            let mut client = gateway.connect().await;
            // Less than a chunk.
            let begun = "POST /open HTTP/1.1\r\nHost: gate\r\n";
            let request = format!("{begun}{framing}\r\n\r\n1000\r\nabc");
            client.write(&request).await;
            attack.push(client);
        }
        for mut client in attack {
            let response = client.answer().await;
            assert_eq!(response.status, 502, "{framing}: {}", response.body);
        }
        assert!(!is_ejected(&gateway).await, "{framing}");
        for last in 10..30 {
            let mut user = client_from(&gateway, last).await;
            assert_eq!(user.ask(GET).await.status, 200);
        }
        assert_eq!(gateway.status("/open", "X-Drop: 1\r\n").await, 502);
        assert!(is_ejected(&gateway).await, "{framing}");
    }
}
