use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

#[tokio::test]
async fn incomplete_head_is_answered_with_400() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "head_timeout = \"150ms\"", "").await;
    let mut silent = gateway.connect().await;
    assert!(silent.is_closed().await, "no first request");
    let mut slow = gateway.connect().await;
    slow.write("GET /open HTTP/1.1\r\nHo").await;
    assert_eq!(
        slow.response().await.expect("a response").code(),
        "request_timeout"
    );
    assert!(slow.is_closed().await);
}

#[tokio::test]
async fn second_request_has_the_same_deadline() {
    let gateway = TestGateway::with(
        OriginBehavior::Answer,
        "head_timeout = \"150ms\"\nidle_timeout = \"300ms\"",
        "",
    )
    .await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(client.response().await.expect("a response").status, 200);
    client.write("GET /open HTTP/1.1\r\nHo").await;
    assert_eq!(
        client.response().await.expect("a response").code(),
        "request_timeout"
    );
    let mut idle = gateway.connect().await;
    idle.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(idle.response().await.expect("a response").status, 200);
    assert!(idle.is_closed().await, "an idle connection");
}

#[tokio::test]
async fn stalled_body_is_rejected() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "stall_timeout = \"150ms\"", "").await;
    let mut client = gateway.connect().await;
    client
        .write("POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
        .await;
    let answer = client.response().await.expect("a response");
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "request_timeout")
    );
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn request_has_a_total_deadline() {
    let gateway = TestGateway::with(OriginBehavior::Hang, "deadline = \"150ms\"", "").await;
    let answer = gateway.get("/open", "").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (504, "upstream_timeout")
    );
}

#[tokio::test]
async fn stalled_reader_is_disconnected() {
    let gateway = TestGateway::with(OriginBehavior::Flood, "stall_timeout = \"200ms\"", "").await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let gone = async {
        while !gateway
            .admin_get("/metrics")
            .await
            .contains("code=\"client_closed\"")
            && !gateway
                .admin_get("/metrics")
                .await
                .contains("code=\"request_timeout\"")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, gone)
        .await
        .expect("the connection is closed");
}

#[tokio::test]
async fn events_are_forwarded_without_delay() {
    let gateway = TestGateway::start(OriginBehavior::Events).await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let head = client.until("\r\n\r\n").await;
    assert!(
        head.to_ascii_lowercase()
            .contains("transfer-encoding: chunked"),
        "{head}"
    );
    assert_eq!(
        client.until("\n\r\n").await,
        "8\r\nfirst..\n\r\n",
        "before the second event"
    );
    let mut other = gateway.connect().await;
    other.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(
        client.until("0\r\n\r\n").await,
        "8\r\nsecond.\n\r\n0\r\n\r\n"
    );
}

#[tokio::test]
async fn response_cut_at_deadline_is_an_upstream_timeout() {
    let origin = TestOrigin::start(OriginBehavior::Events).await;
    let upstream = format!(
        "addresses = [\"{}\"]\n[upstream.origin.outlier]\nfailures = 1",
        origin.address
    );
    let gateway = TestGateway::before(origin, &upstream, "deadline = \"300ms\"", ROUTES).await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    client.until("first..\n\r\n").await;
    assert!(client.is_closed().await);
    let upstreams = gateway.admin_get("/upstreams").await;
    assert!(
        upstreams.contains("\"ejected\":false"),
        "not counted as a failure: {upstreams}"
    );
    let events = gateway.finish().await;
    assert_eq!(
        (&events[0]["status"], &events[0]["code"]),
        (&200.into(), &"upstream_timeout".into())
    );
}

#[tokio::test]
async fn slow_reader_is_not_an_upstream_failure() {
    let origin = TestOrigin::start(OriginBehavior::Flood).await;
    let upstream = format!(
        "addresses = [\"{}\"]\n[upstream.origin.outlier]\nfailures = 1",
        origin.address
    );
    let gateway = TestGateway::before(origin, &upstream, "deadline = \"1s\"", ROUTES).await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    let over = async {
        while !gateway
            .admin_get("/metrics")
            .await
            .contains("code=\"request_timeout\",route=\"open\"} 1")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, over)
        .await
        .expect("the client gets 400");
    let upstreams = gateway.admin_get("/upstreams").await;
    assert!(upstreams.contains("\"ejected\":false"), "{upstreams}");
}

/// The body is smaller than the write buffer, so that the client receives none of it before the
/// end.
#[tokio::test]
async fn dripping_upstream_does_not_time_out() {
    let drip = OriginBehavior::Drip(Duration::from_millis(100));
    let gateway = TestGateway::with(drip, "", "read_timeout = \"400ms\"").await;
    let answer = gateway.get("/open", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ".........."));
}

/// Interval between the transfers of the slow clients below.
const TICK_INTERVAL: Duration = Duration::from_millis(20);

/// Sends a body of 3,000 bytes in pieces of `bytes` per tick. Returns the response.
async fn send_slowly(bytes: usize) -> String {
    let limits = "min_rate = 1000\nstall_timeout = \"500ms\"";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    let (mut near, mut far) = gateway.connect().await.stream.into_split();
    let sending = tokio::spawn(async move {
        let head =
            b"POST /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n";
        let mut written = far.write_all(head).await;
        let (mut pace, mut left) = (tokio::time::interval(TICK_INTERVAL), 3000);
        while left > 0 && written.is_ok() {
            pace.tick().await;
            written = far.write_all(&vec![b'x'; bytes.min(left)]).await;
            left = left.saturating_sub(bytes);
        }
        far
    });
    let mut answer = String::new();
    let read = tokio::time::timeout(STEP_TIMEOUT, near.read_to_string(&mut answer))
        .await
        .expect("the end in time");
    read.expect("a response and the end of the connection");
    drop(sending);
    answer
}

#[tokio::test]
async fn body_below_the_minimum_rate_is_aborted() {
    let above = send_slowly(30).await;
    assert!(
        above.starts_with("HTTP/1.1 200 "),
        "1,500 bytes a second: {above}"
    );
    let below = send_slowly(10).await;
    assert!(
        below.starts_with("HTTP/1.1 400 ") && below.contains("request_timeout"),
        "500 a second: {below}"
    );
}

/// Reads `bytes` per tick. Returns the number of bytes read.
async fn read_slowly(bytes: usize, ticks: usize) -> usize {
    let limits = "min_rate = 200000\nstall_timeout = \"500ms\"";
    let gateway = TestGateway::with(OriginBehavior::Flood, limits, "").await;
    let socket = TcpSocket::new_v4().expect("a socket");
    // A small receive buffer, so that the client's rate is the rate of the connection.
    socket.set_recv_buffer_size(8 << 10).expect("a size");
    let mut stream = socket.connect(gateway.address).await.expect("connects");
    stream
        .write_all(b"GET /open HTTP/1.1\r\nHost: h\r\n\r\n")
        .await
        .expect("writes");
    let (mut pace, mut got, mut space) = (tokio::time::interval(TICK_INTERVAL), 0, vec![0; bytes]);
    for _ in 0..ticks {
        pace.tick().await;
        let read = tokio::time::timeout(STEP_TIMEOUT, stream.read_exact(&mut space))
            .await
            .expect("in time");
        match read {
            Ok(read) => got += read,
            Err(_) => break,
        }
    }
    got
}

#[tokio::test]
async fn reader_below_the_minimum_rate_is_aborted() {
    assert_eq!(
        read_slowly(8_000, 100).await,
        800_000,
        "400,000 bytes a second"
    );
    let got = read_slowly(2_000, 400).await;
    assert!(got < 400_000, "100,000 a second: aborted after {got} bytes");
}
