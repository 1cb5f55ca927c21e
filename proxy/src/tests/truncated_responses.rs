//! Upstreams that close or stall at every byte of a response: a truncated response must never
//! appear complete.

use super::compression_client::Received;
use super::*;

/// The end of the connection after the truncated response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ConnectionEnd {
    Close,
    Reset,
    Hang,
}

type OriginScript = Arc<Mutex<(Vec<u8>, ConnectionEnd)>>;

#[derive(Debug, PartialEq)]
enum ReceivedResponse {
    Whole(String),
    Part,
    Problem(String),
}

/// Starts a gateway before such an origin; `silence` is the read timeout.
async fn start(silence: &str) -> (TestGateway, OriginScript) {
    let own = OriginScript::new(Mutex::new((Vec::new(), ConnectionEnd::Close)));
    let script = Arc::clone(&own);
    let origin = scripted_origin::start(move |mut connection| {
        let script = Arc::clone(&script);
        async move {
            if connection.take_head().await.is_none() {
                return;
            }
            let (answer, end) = script.lock().clone();
            connection.send(answer).await;
            match end {
                ConnectionEnd::Close => {}
                ConnectionEnd::Reset => connection.stream.set_zero_linger().expect("a socket"),
                ConnectionEnd::Hang => std::future::pending().await,
            }
        }
    });
    let upstream = format!("read_timeout = \"{silence}\"\n[upstream.origin.outlier]\nfailures = 0");
    let gateway = scripted_origin::gateway(&[origin.await], &upstream, "").await;
    (gateway, own)
}

/// Sends a request, and returns the response.
async fn ask(
    gateway: &TestGateway,
    script: &OriginScript,
    answer: &str,
    end: ConnectionEnd,
) -> ReceivedResponse {
    *script.lock() = (answer.into(), end);
    let mut client = gateway.connect().await;
    let request = "GET /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    client.write(request).await;
    let _closed_or_reset = in_time(client.stream.read_to_end(&mut client.buffer)).await;
    parse_response(&client.buffer)
}

fn parse_response(bytes: &[u8]) -> ReceivedResponse {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return ReceivedResponse::Part;
    };
    if bytes.starts_with(b"HTTP/1.1 1") {
        return parse_response(&bytes[end + 4..]);
    }
    let got = Received::parse(bytes);
    let body = String::from_utf8_lossy(&got.content).into_owned();
    if got.head.contains("application/problem+json") {
        let problem: Value = serde_json::from_str(&body).expect("a complete problem body");
        return ReceivedResponse::Problem(problem["code"].as_str().expect("a code").to_owned());
    }
    let is_chunked = got.field("transfer-encoding").is_some();
    let length = got.field("content-length").unwrap_or("0");
    match got.is_whole && (is_chunked || length == body.len().to_string()) {
        true => ReceivedResponse::Whole(body),
        false => ReceivedResponse::Part,
    }
}

const LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX-A: b\r\n\r\nhello world";
const CHUNKS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\n\r\n";
const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world";
const UNTIL_CLOSED: &str = "HTTP/1.0 200 OK\r\n\r\nhello world";

#[tokio::test]
async fn truncated_response_never_appears_complete() {
    let (gateway, script) = start("5s").await;
    for answer in [LENGTH, CHUNKS, INTERIM] {
        let head = answer.rfind("\r\n\r\nh").or(answer.find("\r\n\r\n6"));
        let head = head.expect("a body") + 4;
        for end in [ConnectionEnd::Close, ConnectionEnd::Reset] {
            for at in 0..answer.len() {
                let got = ask(&gateway, &script, &answer[..at], end).await;
                let expected = match at < head {
                    true => ReceivedResponse::Problem("upstream_failed".to_owned()),
                    false => ReceivedResponse::Part,
                };
                assert_eq!(got, expected, "{end:?} after {at}: {:?}", &answer[..at]);
            }
            let whole = ask(&gateway, &script, answer, ConnectionEnd::Close).await;
            assert_eq!(whole, ReceivedResponse::Whole("hello world".to_owned()));
        }
    }
}

#[tokio::test]
async fn body_until_close_is_complete_only_after_clean_close() {
    let (gateway, script) = start("5s").await;
    let whole = ask(&gateway, &script, UNTIL_CLOSED, ConnectionEnd::Close).await;
    assert_eq!(whole, ReceivedResponse::Whole("hello world".to_owned()));
    let head = UNTIL_CLOSED.find("hello").expect("a body");
    for at in head..UNTIL_CLOSED.len() {
        let got = ask(&gateway, &script, &UNTIL_CLOSED[..at], ConnectionEnd::Reset).await;
        let is_whole = matches!(got, ReceivedResponse::Whole(_));
        assert!(!is_whole, "after {at}: {got:?}");
    }
}

#[tokio::test]
async fn stalled_response_is_aborted() {
    let (gateway, script) = start("100ms").await;
    for (at, expected) in [
        (0, ReceivedResponse::Problem("upstream_timeout".to_owned())),
        (20, ReceivedResponse::Problem("upstream_timeout".to_owned())),
        (LENGTH.len() - 5, ReceivedResponse::Part),
    ] {
        let began = Instant::now();
        let got = ask(&gateway, &script, &LENGTH[..at], ConnectionEnd::Hang).await;
        assert_eq!(got, expected, "after {at}");
        let holds = began.elapsed() > Duration::from_millis(90);
        assert!(holds, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn non_http_response_is_an_upstream_failure() {
    let (gateway, script) = start("5s").await;
    let with = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n");
    let long = with(&format!("X: {}\r\n", "x".repeat(2 << 20)));
    let many = with(&"X: y\r\n".repeat(1000));
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "\x16\x03\x01\x02\x00\x01\x00",
        &long,
        &many,
    ] {
        let got = ask(&gateway, &script, garbage, ConnectionEnd::Close).await;
        let expected = ReceivedResponse::Problem("upstream_failed".to_owned());
        assert_eq!(got, expected, "{garbage:.60}");
    }
    for body in ["zz\r\n", "5\r\nhelloX"] {
        let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let got = ask(&gateway, &script, &answer, ConnectionEnd::Close).await;
        let is_whole = matches!(got, ReceivedResponse::Whole(_));
        assert!(!is_whole, "{body:?}: {got:?}");
    }
    let actual = ask(&gateway, &script, LENGTH, ConnectionEnd::Close).await;
    assert_eq!(actual, ReceivedResponse::Whole("hello world".to_owned()));
}

#[tokio::test]
async fn cookie_is_removed_unless_the_route_allows_it() {
    let answer = "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nX-Kept: yes\r\nContent-Length: 0\r\n\r\n";
    let own = route("own", "/own", "policy = \"public\"\ncookies = true");
    let routes = format!("{ROUTES}{own}");
    let gateway = TestGateway::routed(OriginBehavior::Text(answer), "", "", &routes).await;
    let stripped = gateway.get("/open", "").await;
    let actual = (stripped.header("set-cookie"), stripped.header("x-kept"));
    assert_eq!(actual, (None, Some("yes")));
    let allowed = gateway.get("/own", "").await;
    assert_eq!(values(&allowed.head, "set-cookie"), ["a=b", "c=d"]);
}
