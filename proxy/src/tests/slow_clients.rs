//! Clients that send or read slowly, and slow responses.

use super::*;

#[tokio::test]
async fn incomplete_head_is_answered_with_400() {
    let limits = "head_timeout = \"150ms\"\nidle_timeout = \"300ms\"";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    for requests in 0..2 {
        let (mut slow, mut idle) = (gateway.connect().await, gateway.connect().await);
        for client in [&mut slow, &mut idle] {
            for _ in 0..requests {
                assert_eq!(client.ask(GET).await.status, 200);
            }
        }
        let answer = slow.ask("GET /open HTTP/1.1\r\nHo").await;
        assert_eq!(answer.code(), "request_timeout", "{requests}");
        assert!(slow.is_closed().await, "{requests}");
        assert!(idle.is_closed().await, "{requests}");
    }
}

/// Neither an upstream that sends no more nor a client that reads no more counts as a failure of
/// the address.
#[tokio::test]
async fn response_is_cut_at_the_deadline() {
    for (behavior, code) in [
        (OriginBehavior::Events, "upstream_timeout"),
        (OriginBehavior::Flood, "request_timeout"),
    ] {
        let upstream = "[upstream.origin.outlier]\nfailures = 1";
        let gateway = TestGateway::with(behavior, "deadline = \"600ms\"", upstream).await;
        let mut client = gateway.begin(GET).await;
        client.until("\r\n\r\n").await;
        let over = format!("code=\"{code}\",route=\"open\"}} 1");
        gateway.wait_for_metric(&over).await;
        let upstreams = gateway.admin_get("/upstreams").await;
        assert!(upstreams.contains("\"ejected\":false"), "{upstreams}");
        let expected = json!({ "status": 200, "code": code, "cause": "deadline" });
        gateway.assert_event(&expected).await;
    }
}

#[tokio::test]
async fn events_are_forwarded_without_delay() {
    let gateway = TestGateway::start(OriginBehavior::Events).await;
    let mut client = gateway.begin(GET).await;
    let head = client.until("\r\n\r\n").await;
    assert_fields(&head, &["transfer-encoding: chunked"]);
    // Before the second event.
    assert_eq!(client.until("\n\r\n").await, "8\r\nfirst..\n\r\n");
    let _other = gateway.begin(GET).await;
    let actual = client.until("0\r\n\r\n").await;
    assert_eq!(actual, "8\r\nsecond.\n\r\n0\r\n\r\n");
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
    let read = in_time(near.read_to_string(&mut answer)).await;
    read.expect("a response and the end of the connection");
    drop(sending);
    answer
}

#[tokio::test]
async fn body_below_the_minimum_rate_is_aborted() {
    let above = send_slowly(30).await;
    let holds = above.starts_with("HTTP/1.1 200 ");
    assert!(holds, "1,500 bytes a second: {above}");
    let below = send_slowly(10).await;
    let holds = below.starts_with("HTTP/1.1 400 ") && below.contains("request_timeout");
    assert!(holds, "500 a second: {below}");
}

/// Reads `bytes` per tick. Returns the number of bytes read.
async fn read_slowly(bytes: usize, ticks: usize) -> usize {
    let limits = "min_rate = 200000\nstall_timeout = \"500ms\"";
    let gateway = TestGateway::with(OriginBehavior::Flood, limits, "").await;
    let mut stream = connect_narrow(gateway.address, 8 << 10).await;
    stream.write_all(GET.as_bytes()).await.expect("writes");
    let (mut pace, mut got, mut space) = (tokio::time::interval(TICK_INTERVAL), 0, vec![0; bytes]);
    for _ in 0..ticks {
        pace.tick().await;
        let Ok(read) = in_time(stream.read_exact(&mut space)).await else {
            break;
        };
        got += read;
    }
    got
}

#[tokio::test]
async fn reader_below_the_minimum_rate_is_aborted() {
    // 400,000 bytes a second.
    assert_eq!(read_slowly(8_000, 100).await, 800_000);
    let got = read_slowly(2_000, 400).await;
    assert!(got < 400_000, "100,000 a second: aborted after {got} bytes");
}

/// An HTTP/2 origin that answers `/open` with 10 MiB, and other requests with a short body.
#[tokio::test]
async fn slow_reader_does_not_block_its_upstream_connection() {
    let origin = start_http2(|request, mut answer| async move {
        if request.uri().path() != "/open" {
            return answer_http2(answer, &[b"xxxxx"]);
        }
        if let Ok(mut body) = answer.send_response(http::Response::new(()), false) {
            let _gone = body.send_data(vec![b'x'; 10 << 20].into(), true);
        }
    });
    let gateway = scripted_origin::gateway(&[origin.await], "http2 = true", "").await;
    let token = format!("Bearer {}", gateway.user());
    let mut client = http2_client(&gateway, 0).await;
    let held = open_body(&mut client, "/open").await;
    // The upstream has sent all that flow control allows when the gauge reports a slow reader.
    gateway.wait_for_held_data().await;
    let mut other = http2_client(&gateway, 1 << 20).await;
    for _ in 0..10 {
        let answer = get(&mut other, "/any/1", &[("authorization", token.as_str())]).await;
        assert_eq!((answer.status, &*answer.body), (200, &b"xxxxx"[..]));
    }
    drop(held);
}
