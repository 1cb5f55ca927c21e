//! Comparison of both forwarding paths: the upstream, the client and the log see no difference.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::{PATH_SELECTORS, ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};
use super::truncated_responses::{ReceivedResponse, parse_response};

/// Fields whose values differ between any two requests.
const VARYING_FIELDS: [&str; 4] = ["x-request-id", "traceparent", "date", "upgrade"];

/// Returns the lines of a head without these fields, sorted by name, because the order of different
/// fields has no meaning.
fn lines(text: &str) -> Vec<String> {
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let field = |line: &str| match line.split_once(':') {
        Some((name, value)) => format!("{}:{value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = head.split("\r\n").map(field).collect();
    lines.retain(|line| !VARYING_FIELDS.iter().any(|own| line.starts_with(own)));
    lines.sort_by(|one, other| one.split(':').next().cmp(&other.split(':').next()));
    lines
}

/// Returns heads and bodies of one request, as received by the upstream and by the client.
async fn exchange(
    behavior: OriginBehavior,
    request: &str,
    selector: &str,
) -> (Vec<(Vec<String>, String)>, Vec<String>, ReceivedResponse) {
    let origin = TestOrigin::start(behavior).await;
    let upstream = format!(
        "addresses = [\"{}\"]\nread_timeout = \"300ms\"",
        origin.address
    );
    let routes = ROUTES.replace("\"POST\"", "\"HEAD\", \"POST\"");
    let gateway = TestGateway::before(origin, &upstream, "", &routes).await;
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    let request = request
        .replace("TOKEN\r\n", &bearer)
        .replace("WAY", selector);
    let mut stream = TcpStream::connect(gateway.address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(STEP_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let _closed_or_reset = read.expect("the end in time");
    let answer = String::from_utf8(bytes).expect("text");
    // Each gateway has a key and a pool of its own.
    let hide = |line: String| {
        let own = ["authorization:", "x-postern-issuer:"]
            .into_iter()
            .find(|name| line.starts_with(name));
        own.map_or(line, str::to_owned)
    };
    let seen = gateway.origin.seen().into_iter().map(|request| {
        let body = request
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap_or_default();
        (lines(&request).into_iter().map(hide).collect(), body)
    });
    let got = parse_response(&answer);
    (seen.collect(), lines(&answer), got)
}

#[track_caller]
fn assert_same<T: PartialEq + std::fmt::Debug>(one: &T, other: &T, what: &str) {
    assert_eq!(one, other, "{what:?}");
}

#[tokio::test]
async fn both_paths_send_the_same_request() {
    let end = "Connection: close\r\nWAY";
    for request in [
        format!("GET /any/7?q=%20x HTTP/1.1\r\nHost: gate:80\r\nTOKEN\r\n{end}\r\n"),
        format!(
            "GET /open HTTP/1.1\r\nHost: gate\r\nX-Two: 1\r\nX-Empty:\r\nx-two: 2\r\nCookie: a=b\r\n{end}\r\n"
        ),
        format!(
            "GET /open HTTP/1.1\r\nHost: gate\r\nTE: trailers\r\nTrailer: X\r\nKeep-Alive: timeout=5\r\n\
             Proxy-Connection: close\r\nProxy-Authorization: Basic eA==\r\nHTTP2-Settings: x\r\n{end}\r\n"
        ),
        format!(
            "GET /open HTTP/1.1\r\nHost: gate\r\nX-Forwarded-For: 1.2.3.4\r\nx_postern_kind: user\r\n\
             Forwarded: for=x\r\nX-Real-IP: 1\r\nX-Request-Id: mine\r\n{end}\r\n"
        ),
        format!(
            "POST /any/7 HTTP/1.1\r\nHost: gate\r\nTOKEN\r\nContent-Length: 5\r\n{end}\r\nhello"
        ),
        format!("POST /any/7 HTTP/1.1\r\nHost: gate\r\nTOKEN\r\nContent-Length: 0\r\n{end}\r\n"),
        format!("GET http://gate/open HTTP/1.1\r\nHost: gate\r\n{end}\r\n"),
        format!("GET http://gate:80?a HTTP/1.1\r\nHost: gate\r\n{end}\r\n"),
        String::from(
            "GET /open HTTP/1.1\r\nHost: gate\r\nTE: deflate\r\nHTTP2-Settings: x\r\nX-Hop: a\r\n\
             X-Hop-By: b\r\nConnection: TE, HTTP2-Settings, X-Hop, close\r\nWAY\r\n",
        ),
        format!("GET /any/7 HTTP/1.1\r\nHost: gate\r\n{end}\r\n"),
        format!("BREW /any/7 HTTP/1.1\r\nHost: gate\r\nTOKEN\r\n{end}\r\n"),
    ] {
        let [one, other] =
            PATH_SELECTORS.map(|selector| exchange(OriginBehavior::Answer, &request, selector));
        let (one, other) = tokio::join!(one, other);
        assert_same(&one, &other, &request);
    }
}

/// Methods and the responses of the upstream.
const RESPONSES: [(&str, &str); 14] = [
    (
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nX-A: 2\r\n\r\nhello",
    ),
    (
        "GET",
        "HTTP/1.1 200 Fine\r\nConnection: close\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\n",
    ),
    (
        "GET",
        "HTTP/1.1 404 Not Found\r\nX-Postern-Code: not_found\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n",
    ),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ),
    ("GET", "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"),
    (
        "GET",
        "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 5\r\n\r\n",
    ),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    (
        "GET",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    ),
    (
        "GET",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: upgrade\r\n\r\n",
    ),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nX-Folded: a\r\n b\r\nKeep-Alive: timeout=600\r\nUpgrade: h2c\r\nTrailer: X\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "GET",
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    ("GET", "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"),
];

#[tokio::test]
async fn both_paths_return_the_same_response() {
    for (method, answer) in RESPONSES {
        let request =
            format!("{method} /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nWAY\r\n");
        let [one, other] = PATH_SELECTORS
            .map(|selector| exchange(OriginBehavior::Text(answer), &request, selector));
        let (one, other) = tokio::join!(one, other);
        assert_same(&one, &other, answer);
        let of_connection = ["keep-alive:", "trailer:", "proxy-"];
        assert!(
            !one.1
                .iter()
                .any(|line| of_connection.iter().any(|name| line.starts_with(name))),
            "{one:?}"
        );
    }
}
