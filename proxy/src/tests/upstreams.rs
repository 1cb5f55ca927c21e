use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

#[tokio::test]
async fn upstream_failure_is_answered_with_a_problem() {
    let hang = TestGateway::with(OriginBehavior::Hang, "", "read_timeout = \"150ms\"").await;
    let close = TestGateway::start(OriginBehavior::Close).await;
    let garbage = TestGateway::start(OriginBehavior::Garbage).await;
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let away = TestGateway::before(unused, "addresses = [\"127.0.0.1:1\"]", "", ROUTE).await;
    assert_eq!(hang.get("/open", "").await.code(), "upstream_timeout");
    assert_eq!(close.get("/open", "").await.code(), "upstream_failed");
    assert_eq!(garbage.get("/open", "").await.code(), "upstream_failed");
    let answer = away.get("/open", "").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "upstream_unavailable")
    );
    assert!(answer.header("retry-after").is_some());
}

const ROUTE: &str = "[[route]]\npath = \"/open\"\nmethods = [\"GET\", \"POST\"]\nupstream = \"origin\"\n\
                     policy = \"public\"\n";

#[tokio::test]
async fn dead_address_fails_no_request() {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let addresses = format!(
        "addresses = [\"127.0.0.1:1\", \"{}\"]\nretry_budget = 0",
        origin.address
    );
    let gateway = TestGateway::before(origin, &addresses, "", ROUTE).await;
    for _ in 0..20 {
        let posted = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(
            gateway.send(posted).await.status,
            200,
            "not sent: any method is retried"
        );
    }
    assert_eq!(gateway.origin.seen().len(), 20);
}

#[tokio::test]
async fn broken_idle_connection_retries_idempotent_only() {
    for (method, status, reached) in [("GET", 200, 3), ("POST", 502, 2)] {
        let asked = format!("{method} /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        let gateway = TestGateway::start(OriginBehavior::AnswerOnce).await;
        let mut client = gateway.connect().await;
        client.write(&asked).await;
        assert_eq!(client.response().await.expect("a response").status, 200);
        client.write(&asked).await;
        assert_eq!(
            client.response().await.expect("a response").status,
            status,
            "{method}"
        );
        assert_eq!(gateway.origin.seen().len(), reached, "{method}");
    }
}

/// Starts an origin that closes its first connection when a request arrives.
async fn closes_first_connection() -> SocketAddr {
    closes_first_connection_after(0).await
}

/// Starts an origin that answers this many requests on its first connection and closes it when the
/// next one arrives.
async fn closes_first_connection_after(answered: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        for turn in 0.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            for _ in (0..answered).filter(|_| turn == 0) {
                read_head(&mut stream).await;
                let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
                stream.write_all(answer).await.expect("a client");
            }
            read_head(&mut stream).await;
            if turn > 0 {
                let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
                let _gone = stream.write_all(answer).await;
            }
        }
    });
    address
}

async fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let read = stream.read_buf(&mut head).await.expect("a head");
        assert_ne!(read, 0, "the head ends");
    }
}

#[tokio::test]
async fn closed_idle_connection_needs_no_retry_budget() {
    let address = closes_first_connection_after(1).await;
    let upstream = format!("addresses = [\"{address}\"]\nretry_budget = 0");
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let gateway = TestGateway::before(origin, &upstream, "", ROUTE).await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/open", "").await.status, 204);
    }
}

#[tokio::test]
async fn request_is_retried_when_its_upstream_dies() {
    for (method, status) in [("GET", 204), ("POST", 502)] {
        let upstream = format!("addresses = [\"{}\"]", closes_first_connection().await);
        let unused = TestOrigin::start(OriginBehavior::Answer).await;
        let gateway = TestGateway::before(unused, &upstream, "", ROUTE).await;
        let asked = format!("{method} /open HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(gateway.send(&asked).await.status, status, "{method}");
    }
}

#[tokio::test]
async fn requests_in_flight_are_limited() {
    let gateway = TestGateway::with(
        OriginBehavior::Hang,
        "",
        "in_flight = 1\nread_timeout = \"300ms\"",
    )
    .await;
    let mut first = gateway.connect().await;
    first.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    while gateway.origin.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        gateway.get("/open", "").await.code(),
        "upstream_unavailable"
    );
    assert_eq!(
        first.response().await.expect("a response").code(),
        "upstream_timeout"
    );
}

#[tokio::test]
async fn truncated_response_does_not_appear_complete() {
    let cut = OriginBehavior::Text(
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nshort",
    );
    let gateway = TestGateway::with(cut, "", "read_timeout = \"200ms\"").await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(
        client.response().await.is_none(),
        "closed before Content-Length"
    );
}

#[tokio::test]
async fn unhealthy_address_is_not_used() {
    for (probe, asked) in [("path = \"/livez\"\n", true), ("", false)] {
        let origin = TestOrigin::start(OriginBehavior::Answer).await;
        let addresses = format!(
            "addresses = [\"127.0.0.1:1\", \"{}\"]\nretries = 0\n[upstream.origin.outlier]\nfailures = 0\n\
             [upstream.origin.health]\n{probe}interval = \"20ms\"\nfailures = 1",
            origin.address
        );
        let gateway = TestGateway::before(origin, &addresses, "", ROUTE).await;
        let found = async {
            while !gateway
                .admin_get("/upstreams")
                .await
                .contains("\"healthy\":false")
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, found)
            .await
            .expect("detected in time");
        for _ in 0..10 {
            assert_eq!(gateway.get("/open", "").await.status, 200, "{probe}");
        }
        let probed = gateway
            .origin
            .seen()
            .iter()
            .any(|request| request.starts_with("GET /livez "));
        assert_eq!(probed, asked, "a TCP check sends no request");
    }
}

/// Returns the value of a counter of the upstream.
async fn counter(gateway: &TestGateway, name: &str) -> u32 {
    let start = format!("postern_{name}_total{{upstream=\"origin\"}} ");
    let metrics = gateway.admin_get("/metrics").await;
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix(start.as_str()));
    value.expect("a counter").parse().expect("a number")
}

#[tokio::test]
async fn retry_over_the_budget_is_denied_and_counted() {
    for (budget, status, counts) in [(0, 502, (0, 1)), (100, 204, (1, 0))] {
        let upstream = format!(
            "addresses = [\"{}\"]\nretry_budget = {budget}",
            closes_first_connection().await
        );
        let gateway = TestGateway::before(
            TestOrigin::start(OriginBehavior::Answer).await,
            &upstream,
            "",
            ROUTE,
        )
        .await;
        assert_eq!(
            gateway.get("/open", "").await.status,
            status,
            "the first request fails"
        );
        let (retries, denied) = (
            counter(&gateway, "retries").await,
            counter(&gateway, "retries_denied").await,
        );
        assert_eq!((retries, denied), counts, "budget {budget}");
    }
}

#[tokio::test]
async fn ejection_is_counted_once() {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let addresses = format!(
        "addresses = [\"127.0.0.1:1\", \"{}\"]\nload_balancing = \"round_robin\"\nretries = 0\n\
         [upstream.origin.outlier]\nfailures = 1\nejection = \"1h\"",
        origin.address
    );
    let gateway = TestGateway::before(origin, &addresses, "", ROUTE).await;
    assert_eq!(counter(&gateway, "ejections").await, 0);
    assert_eq!(gateway.get("/open", "").await.status, 503);
    for _ in 0..5 {
        assert_eq!(gateway.get("/open", "").await.status, 200);
    }
    assert_eq!(counter(&gateway, "ejections").await, 1);
}

#[tokio::test]
async fn response_503_is_a_failure_of_the_address() {
    let response = "HTTP/1.1 503 Service Unavailable\r\nX-Postern-Code: unavailable\r\nContent-Length: 0\r\n\r\n";
    let settings = "retries = 0\n[upstream.origin.outlier]\nfailures = 3\nejection = \"1h\"";
    let origin = TestOrigin::start(OriginBehavior::Text(response)).await;
    let upstream = format!("addresses = [\"{}\"]\n{settings}", origin.address);
    let gateway = TestGateway::before(origin, &upstream, "", ROUTE).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/open", "").await.status, 503);
    }
    assert_eq!(counter(&gateway, "ejections").await, 1);
}

/// Together with the response, and while the connection is idle.
#[tokio::test]
async fn unsolicited_response_is_discarded() {
    for pause in [Duration::ZERO, Duration::from_millis(20)] {
        let gateway = TestGateway::start(OriginBehavior::Surplus(pause)).await;
        for turn in 1..=3 {
            let before = gateway.origin.seen().len();
            assert_eq!(
                gateway.get("/open", "").await.body,
                "own",
                "{turn} {pause:?}"
            );
            while gateway.origin.seen().len() < before + 2 {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// More than the kernel buffers for an upstream that does not read.
const LARGE_BODY_BYTES: usize = 8 << 20;

/// Starts an upstream that accepts a connection, waits, then reads a head and answers.
async fn slow_to_read(pause: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        tokio::time::sleep(pause).await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert_ne!(
                stream.read_buf(&mut head).await.expect("a head"),
                0,
                "the head ends"
            );
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .expect("writes");
        std::future::pending::<()>().await;
    });
    address
}

/// Returns the response to a large request, which may not have been accepted completely by then.
async fn send_large_request(upstream: &str, limits: &str, request: String) -> String {
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let limits = format!("head_bytes = \"9MiB\"\nbody_bytes = \"9MiB\"\n{limits}");
    let gateway = TestGateway::before(unused, upstream, &limits, ROUTES).await;
    let (mut near, mut far) = TcpStream::connect(gateway.address)
        .await
        .expect("connects")
        .into_split();
    let sending = tokio::spawn(async move {
        let _refused_already = far.write_all(request.as_bytes()).await;
        far
    });
    let mut answer = Vec::new();
    let read = tokio::time::timeout(STEP_TIMEOUT, near.read_to_end(&mut answer)).await;
    let _closed_or_reset = read.expect("the end in time");
    sending.abort();
    String::from_utf8(answer).expect("text")
}

/// A request with a large head.
fn large_head() -> String {
    format!(
        "GET /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Much: {}\r\n\r\n",
        "x".repeat(LARGE_BODY_BYTES)
    )
}

/// A request with a large body.
fn large_body() -> String {
    let head = "POST /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    format!(
        "{head}Content-Length: {LARGE_BODY_BYTES}\r\n\r\n{}",
        "x".repeat(LARGE_BODY_BYTES)
    )
}

#[tokio::test]
async fn write_to_stalled_upstream_times_out() {
    for request in [large_head(), large_body()] {
        let deaf = slow_to_read(STEP_TIMEOUT * 2).await;
        let upstream =
            format!("addresses = [\"{deaf}\"]\nwrite_timeout = \"150ms\"\nread_timeout = \"20s\"");
        let answer = send_large_request(&upstream, "", request).await;
        assert!(
            answer.starts_with("HTTP/1.1 504 ") && answer.contains("upstream_timeout"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn read_timeout_starts_after_a_slow_write() {
    let slow = slow_to_read(Duration::from_millis(500)).await;
    let upstream =
        format!("addresses = [\"{slow}\"]\nwrite_timeout = \"20s\"\nread_timeout = \"200ms\"");
    let answer = send_large_request(&upstream, "", large_head()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
