//! Upstreams that close or stall at every byte of a response: a truncated response must never
//! appear complete.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

/// The end of the connection after the truncated response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ConnectionEnd {
    Close,
    Reset,
    Hang,
}

/// The response to the next request.
type OriginScript = Arc<Mutex<(Vec<u8>, ConnectionEnd)>>;

/// The response that a client received.
#[derive(Debug, PartialEq)]
pub(super) enum ReceivedResponse {
    Whole(String),
    Part,
    Problem(String),
}

async fn origin(script: OriginScript) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let script = Arc::clone(&script);
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => request.push(byte),
                        Err(_) => return,
                    }
                }
                let (answer, end) = script.lock().await.clone();
                let _gone = stream.write_all(&answer).await;
                match end {
                    ConnectionEnd::Close => {}
                    ConnectionEnd::Reset => stream.set_zero_linger().expect("a socket"),
                    ConnectionEnd::Hang => std::future::pending().await,
                }
            });
        }
    });
    address
}

/// Starts a gateway; `silence` is the read timeout.
async fn gateway(script: &OriginScript, silence: &str) -> TestGateway {
    let address = origin(Arc::clone(script)).await;
    let upstream = format!(
        "addresses = [\"{address}\"]\nread_timeout = \"{silence}\"\n[upstream.origin.outlier]\nfailures = 0"
    );
    TestGateway::before(
        TestOrigin::start(OriginBehavior::Answer).await,
        &upstream,
        "",
        ROUTES,
    )
    .await
}

/// Sends a request, and returns the response.
async fn ask(
    gateway: &TestGateway,
    script: &OriginScript,
    answer: &[u8],
    end: ConnectionEnd,
) -> ReceivedResponse {
    *script.lock().await = (answer.to_vec(), end);
    let mut stream = TcpStream::connect(gateway.address).await.expect("connects");
    let request = "GET /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(STEP_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let _closed_or_reset = read.expect("the end in time");
    parse_response(&String::from_utf8_lossy(&bytes))
}

/// Parses a response as a strict client does.
pub(super) fn parse_response(text: &str) -> ReceivedResponse {
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return ReceivedResponse::Part;
    };
    if head.starts_with("HTTP/1.1 1") {
        return parse_response(body);
    }
    let head = head.to_ascii_lowercase();
    if head.contains("application/problem+json") {
        let problem: serde_json::Value =
            serde_json::from_str(body).expect("a complete problem body");
        return ReceivedResponse::Problem(problem["code"].as_str().expect("a code").to_owned());
    }
    if let Some(length) = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
    {
        let whole = body.len() == length.parse::<usize>().expect("a number");
        return if whole {
            ReceivedResponse::Whole(body.to_owned())
        } else {
            ReceivedResponse::Part
        };
    }
    if !head.contains("transfer-encoding: chunked") {
        return if body.is_empty() {
            ReceivedResponse::Whole(String::new())
        } else {
            ReceivedResponse::Part
        };
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            return if after == "\r\n" {
                ReceivedResponse::Whole(whole)
            } else {
                ReceivedResponse::Part
            };
        }
        if after.len() < size + 2 {
            break;
        }
        whole.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    ReceivedResponse::Part
}

const LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX-A: b\r\n\r\nhello world";
const CHUNKS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\n\r\n";
const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world";
const UNTIL_CLOSED: &str = "HTTP/1.0 200 OK\r\n\r\nhello world";

#[tokio::test]
async fn truncated_response_never_appears_complete() {
    let script = OriginScript::new(Mutex::new((Vec::new(), ConnectionEnd::Close)));
    let gateway = gateway(&script, "5s").await;
    for answer in [LENGTH, CHUNKS, INTERIM] {
        let head = answer
            .rfind("\r\n\r\nh")
            .map_or_else(|| answer.find("\r\n\r\n6"), Some)
            .expect("a body")
            + 4;
        for end in [ConnectionEnd::Close, ConnectionEnd::Reset] {
            for at in 0..answer.len() {
                let got = ask(&gateway, &script, &answer.as_bytes()[..at], end).await;
                let expected = match at {
                    _ if at < head => ReceivedResponse::Problem("upstream_failed".to_owned()),
                    _ => ReceivedResponse::Part,
                };
                assert_eq!(got, expected, "{end:?} after {at}: {:?}", &answer[..at]);
            }
            let whole = ask(&gateway, &script, answer.as_bytes(), ConnectionEnd::Close).await;
            assert_eq!(whole, ReceivedResponse::Whole("hello world".to_owned()));
        }
    }
}

#[tokio::test]
async fn body_until_close_is_complete_only_after_clean_close() {
    let script = OriginScript::new(Mutex::new((Vec::new(), ConnectionEnd::Close)));
    let gateway = gateway(&script, "5s").await;
    let whole = ask(
        &gateway,
        &script,
        UNTIL_CLOSED.as_bytes(),
        ConnectionEnd::Close,
    )
    .await;
    assert_eq!(whole, ReceivedResponse::Whole("hello world".to_owned()));
    let head = UNTIL_CLOSED.find("hello").expect("a body");
    for at in head..UNTIL_CLOSED.len() {
        let got = ask(
            &gateway,
            &script,
            &UNTIL_CLOSED.as_bytes()[..at],
            ConnectionEnd::Reset,
        )
        .await;
        assert!(
            matches!(got, ReceivedResponse::Part | ReceivedResponse::Problem(_)),
            "after {at}: {got:?}"
        );
    }
}

#[tokio::test]
async fn stalled_response_is_aborted() {
    let script = OriginScript::new(Mutex::new((Vec::new(), ConnectionEnd::Close)));
    let gateway = gateway(&script, "100ms").await;
    for (at, expected) in [
        (0, ReceivedResponse::Problem("upstream_timeout".to_owned())),
        (20, ReceivedResponse::Problem("upstream_timeout".to_owned())),
        (LENGTH.len() - 5, ReceivedResponse::Part),
    ] {
        let began = std::time::Instant::now();
        let got = ask(
            &gateway,
            &script,
            &LENGTH.as_bytes()[..at],
            ConnectionEnd::Hang,
        )
        .await;
        assert_eq!(got, expected, "after {at}");
        assert!(
            began.elapsed() > Duration::from_millis(90),
            "{:?}",
            began.elapsed()
        );
    }
}

#[tokio::test]
async fn non_http_response_is_an_upstream_failure() {
    let script = OriginScript::new(Mutex::new((Vec::new(), ConnectionEnd::Close)));
    let gateway = gateway(&script, "5s").await;
    let long = format!(
        "HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n",
        "x".repeat(2 << 20)
    );
    let many = format!(
        "HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n",
        "X: y\r\n".repeat(1000)
    );
    for garbage in [
        "this is not HTTP at all\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
        &long,
        &many,
    ] {
        let got = ask(&gateway, &script, garbage.as_bytes(), ConnectionEnd::Close).await;
        let shown = &garbage[..garbage.len().min(60)];
        assert_eq!(
            got,
            ReceivedResponse::Problem("upstream_failed".to_owned()),
            "{shown:?}"
        );
    }
    for body in [
        "zz\r\n",
        "5\r\nhelloX",
        "-5\r\nhello\r\n0\r\n\r\n",
        "5 \nhello",
        "ffffffffffffffffff\r\nhello",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let got = ask(&gateway, &script, answer.as_bytes(), ConnectionEnd::Close).await;
        assert!(
            matches!(got, ReceivedResponse::Part | ReceivedResponse::Problem(_)),
            "{body:?}: {got:?}"
        );
    }
    assert_eq!(
        ask(&gateway, &script, LENGTH.as_bytes(), ConnectionEnd::Close).await,
        ReceivedResponse::Whole("hello world".to_owned())
    );
}

#[tokio::test]
async fn cookie_is_removed_unless_the_route_allows_it() {
    let script = OriginScript::new(Mutex::new((Vec::new(), ConnectionEnd::Close)));
    let address = origin(Arc::clone(&script)).await;
    let own = "[[route]]\npath = \"/own\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\ncookies = true\n";
    let upstream = format!("addresses = [\"{address}\"]");
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let gateway = TestGateway::before(unused, &upstream, "", &format!("{ROUTES}{own}")).await;
    let answer = "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nset-cookie: c=d\r\nX-Kept: yes\r\nContent-Length: 0\r\n\r\n";
    *script.lock().await = (answer.as_bytes().to_vec(), ConnectionEnd::Close);
    let stripped = gateway.get("/open", "").await;
    assert_eq!(
        (stripped.header("set-cookie"), stripped.header("x-kept")),
        (None, Some("yes"))
    );
    let allowed = gateway.get("/own", "").await;
    assert_eq!(
        allowed
            .head
            .to_ascii_lowercase()
            .matches("set-cookie: ")
            .count(),
        2,
        "{}",
        allowed.head
    );
}
