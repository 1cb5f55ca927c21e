//! Compressed responses: heads and bodies over each version of HTTP.

use std::io::Read;

use http::{HeaderValue, Response};
use tokio::sync::Notify;

use super::compression_client::{Received, ask, decode, gateway_at, text};
use super::scripted_origin::start;
use super::*;

/// Starts a gateway whose origin sends this response.
async fn gateway(answer: &str, compression: &str) -> TestGateway {
    let answer: Arc<str> = answer.into();
    let origin = start(move |mut connection| {
        let answer = Arc::clone(&answer);
        async move {
            while connection.take_head().await.is_some() {
                connection.send(answer.as_bytes()).await;
            }
        }
    });
    gateway_at(origin.await, compression, "").await
}

/// Starts a gateway whose origin sends these bytes and closes the connection.
async fn gateway_before(answer: String) -> TestGateway {
    let origin = start(move |mut connection| {
        let answer = answer.clone();
        async move {
            let _head = connection.take_head().await;
            connection.send(answer).await;
        }
    });
    gateway_at(origin.await, "true", "").await
}

/// Returns a response of known length with these field lines.
fn sized(fields: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn closing(method: &str, fields: &str) -> String {
    format!("{method} /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n{fields}\r\n")
}

async fn fetch(gateway: &TestGateway, method: &str, fields: &str) -> Received {
    ask(gateway.address, &closing(method, fields)).await
}

const HTML: &str = "Content-Type: text/html; charset=utf-8\r\n";
const ACCEPT_GZIP: &str = "Accept-Encoding: gzip\r\n";

#[tokio::test]
async fn response_is_compressed_by_the_negotiated_coding() {
    let body = text(100_000);
    let fields = format!("{HTML}ETag: \"v1\"\r\nAccept-Ranges: bytes\r\nVary: Cookie\r\n");
    let gateway = gateway(&sized(&fields, &body), "true").await;
    for (accept, coding) in [
        ("gzip, deflate, br, zstd", "br"),
        ("br;q=0.5, gzip", "gzip"),
        ("*;q=0.1, br;q=0", "gzip"),
    ] {
        let fields = format!("Accept-Encoding: {accept}\r\n");
        let got = fetch(&gateway, "GET", &fields).await;
        assert_eq!(got.field("content-encoding"), Some(coding), "{}", got.head);
        assert!(got.is_whole && got.content.len() < body.len() / 2);
        assert!(got.decoded() == body, "{coding}");
        assert_eq!(got.field("etag"), Some("w/\"v1\""));
        assert_eq!(got.field("content-length"), None);
        assert_eq!(got.field("accept-ranges"), None);
        assert_fields(&got.head, &["vary: cookie"]);
        let holds = got.head.contains("vary: accept-encoding\r\n");
        assert!(holds, "{}", got.head);
    }
    for fields in [
        "X: y",
        "Accept-Encoding: gzip;q=0",
        "Accept-Encoding: identity",
    ] {
        let got = fetch(&gateway, "GET", &format!("{fields}\r\n")).await;
        assert_eq!(got.field("content-encoding"), None);
        assert_eq!(got.field("content-length"), Some("100000"));
        assert_eq!(got.field("etag"), Some("\"v1\""));
        let holds = got.head.contains("vary: accept-encoding\r\n");
        assert!(holds, "{}", got.head);
        assert!(got.content == body.as_bytes());
    }
    let line = "postern_proxy_compressed_responses_total{coding=\"gzip\"} 2";
    gateway.assert_metric(line).await;
    let events = gateway.finish().await;
    let codings = events.iter().filter_map(|event| event["encoding"].as_str());
    assert_eq!(codings.collect::<Vec<_>>(), ["br", "gzip", "gzip"]);
}

#[tokio::test]
async fn excluded_response_is_sent_as_it_is() {
    let body = text(5_000);
    for fields in [
        "Content-Type: text/html\r\nContent-Encoding: br\r\n",
        "Content-Type: text/html\r\nContent-Encoding: identity\r\n",
        "Content-Type: text/html\r\nCache-Control: public, No-Transform\r\n",
        "Content-Type: text/html\r\nContent-Digest: sha-256=:AA==:\r\n",
        "Content-Type: text/html\r\nContent-Range: bytes 0-9/10\r\n",
        "Content-Type: text/event-stream\r\n",
        "",
        "Content-Type: text/html\r\nSet-Cookie: a=b\r\n",
    ] {
        let want_vary = fields.contains("Cookie").then_some("accept-encoding");
        let gateway = gateway(&sized(fields, &body), "true").await;
        let got = fetch(&gateway, "GET", ACCEPT_GZIP).await;
        let coding = got.field("content-encoding");
        let was_encoded = fields.contains("Content-Encoding");
        assert_eq!(coding.is_some(), was_encoded, "{fields}: {}", got.head);
        assert_eq!(got.field("vary"), want_vary, "{fields}");
        assert!(got.content == body.as_bytes(), "{fields}");
    }
}

#[tokio::test]
async fn status_and_length_decide_on_compression() {
    let (long, short) = (text(1_024), text(1_023));
    let whole = |status: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\n{HTML}Content-Length: {length}\r\n\r\n{body}")
    };
    let chunked =
        format!("HTTP/1.1 200 OK\r\n{HTML}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
    let until_close = format!("HTTP/1.0 200 OK\r\n{HTML}\r\nhi");
    for (answer, is_compressed) in [
        (whole("200 OK", &long), true),
        (whole("200 OK", &short), false),
        (whole("404 Not Found", &long), true),
        (whole("503 Unavailable", &long), true),
        (whole("206 Partial Content", &long), false),
        (chunked, true),
        (until_close, true),
    ] {
        let gateway = gateway_before(answer).await;
        let got = fetch(&gateway, "GET", ACCEPT_GZIP).await;
        let coding = got.field("content-encoding");
        assert_eq!(coding.is_some(), is_compressed, "{}", got.head);
        assert!(got.is_whole);
        assert!(long.starts_with(&got.decoded()) || got.decoded() == "hi");
    }
}

#[tokio::test]
async fn response_with_credentials_is_compressed_only_if_asked() {
    let answer = sized(HTML, &text(5_000));
    for (compression, is_compressed) in [("true", false), ("{ authenticated = true }", true)] {
        let gateway = gateway(&answer, compression).await;
        for credentials in ["Authorization: Basic eA==\r\n", "Cookie: session=1\r\n"] {
            let fields = format!("{ACCEPT_GZIP}{credentials}");
            let got = fetch(&gateway, "GET", &fields).await;
            let coding = got.field("content-encoding");
            assert_eq!(coding.is_some(), is_compressed, "{credentials}");
            assert_eq!(got.field("vary"), Some("accept-encoding"));
        }
    }
    let gateway = gateway(&answer, "true").await;
    let fields = format!("{ACCEPT_GZIP}Cache-Control: no-transform\r\n");
    let got = fetch(&gateway, "GET", &fields).await;
    // The request forbids it.
    assert_eq!(got.field("content-encoding"), None);
}

#[tokio::test]
async fn head_and_304_have_the_validators_of_the_compressed_response() {
    let length = "Content-Length: 5000\r\n";
    let ok = format!("HTTP/1.1 200 OK\r\n{HTML}ETag: \"v1\"\r\n{length}\r\n");
    let not_modified = "HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n\r\n";
    for (method, answer) in [("HEAD", ok.as_str()), ("GET", not_modified)] {
        let gateway = gateway(answer, "true").await;
        let got = fetch(&gateway, method, ACCEPT_GZIP).await;
        assert_eq!(got.field("etag"), Some("w/\"v1\""), "{}", got.head);
        assert_eq!(got.field("vary"), Some("accept-encoding"));
        for name in ["content-encoding", "content-length", "transfer-encoding"] {
            assert_eq!(got.field(name), None, "{name}: {}", got.head);
        }
        assert_eq!(got.content, b"");
        let plain = fetch(&gateway, method, "").await;
        assert_eq!(plain.field("etag"), Some("\"v1\""));
        assert_eq!(plain.field("vary"), Some("accept-encoding"));
    }
}

#[tokio::test]
async fn http10_response_ends_with_the_connection() {
    let body = text(50_000);
    let gateway = gateway(&sized(HTML, &body), "true").await;
    let request =
        format!("GET /open HTTP/1.0\r\nHost: gate\r\nConnection: keep-alive\r\n{ACCEPT_GZIP}\r\n");
    let got = ask(gateway.address, &request).await;
    assert_eq!(got.field("content-encoding"), Some("gzip"));
    assert_eq!(got.field("transfer-encoding"), None);
    assert!(got.decoded() == body);
}

#[tokio::test]
async fn http2_response_is_compressed() {
    let body = text(300_000);
    let gateway = gateway(&sized(HTML, &body), "true").await;
    let mut client = http2_client(&gateway, 1 << 16).await;
    for coding in ["gzip", "br"] {
        let got = get(&mut client, "/open", &[("accept-encoding", coding)]).await;
        assert_eq!(got.headers["content-encoding"], coding);
        assert!(!got.headers.contains_key("content-length"));
        assert!(!got.headers.contains_key("transfer-encoding"));
        assert!(decode(Some(coding), &got.body) == body.as_bytes());
    }
    let got = call(&mut client, "HEAD", "/open", &[("accept-encoding", "br")]).await;
    assert!(!got.headers.contains_key("content-encoding"));
    assert_eq!(got.headers["vary"], "Accept-Encoding");
}

/// Starts an HTTP/2 origin that sends a body in two frames, and the end in trailers or separately.
async fn http2_origin(has_trailers: bool) -> SocketAddr {
    start_http2(move |_, mut answer| async move {
        let head = Response::builder().header("content-type", "text/plain");
        let head = head.body(()).expect("a head");
        let mut stream = answer.send_response(head, false).expect("sends");
        for part in ["one, ", "two"] {
            let part = Bytes::from_static(part.as_bytes());
            stream.send_data(part, false).expect("sends");
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", HeaderValue::from_static("1"));
        match has_trailers {
            true => stream.send_trailers(trailers).expect("sends"),
            false => stream.send_data(Bytes::new(), true).expect("sends"),
        }
    })
    .await
}

#[tokio::test]
async fn http2_upstream_response_is_ended_before_trailers() {
    for has_trailers in [true, false] {
        let gateway = gateway_at(http2_origin(has_trailers).await, "true", "http2 = true").await;
        let got = fetch(&gateway, "GET", ACCEPT_GZIP).await;
        assert_eq!(got.field("content-encoding"), Some("gzip"));
        assert!(got.is_whole);
        assert_eq!(got.decoded(), "one, two", "trailers: {has_trailers}");
        let mut client = http2_client(&gateway, 1 << 16).await;
        let got = get(&mut client, "/open", &[("accept-encoding", "br")]).await;
        assert_eq!(decode(Some("br"), &got.body), b"one, two");
    }
}

#[tokio::test]
async fn streamed_part_is_not_delayed() {
    let is_read = Arc::new(Notify::new());
    let proceed = Arc::clone(&is_read);
    let origin = start(move |mut connection| {
        let proceed = Arc::clone(&proceed);
        async move {
            let _head = connection.take_head().await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            connection.send(format!("{head}6\r\nfirst\n\r\n")).await;
            proceed.notified().await;
            connection.send("7\r\nsecond\n\r\n0\r\n\r\n").await;
        }
    });
    let gateway = gateway_at(origin.await, "true", "").await;
    let mut stream = gateway.connect().await.stream;
    let request = closing("GET", ACCEPT_GZIP);
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut bytes = Vec::new();
    let reading = async {
        let mut first = String::new();
        while first != "first\n" {
            assert_ne!(stream.read_buf(&mut bytes).await.expect("reads"), 0);
            if find(&bytes, b"\r\n\r\n").is_none() {
                continue;
            }
            let content = Received::parse(&bytes).content;
            let mut decoded = Vec::new();
            let _unfinished = flate2::read::GzDecoder::new(&content[..]).read_to_end(&mut decoded);
            first = String::from_utf8(decoded).expect("text");
        }
        is_read.notify_one();
        stream.read_to_end(&mut bytes).await.expect("reads");
    };
    in_time(reading).await;
    assert_eq!(Received::parse(&bytes).decoded(), "first\nsecond\n");
}

#[tokio::test]
async fn truncated_response_never_appears_complete() {
    let body = text(200_000);
    let gateway = gateway_before(sized(HTML, &body)[..150_000].to_owned()).await;
    let got = fetch(&gateway, "GET", ACCEPT_GZIP).await;
    assert_eq!(got.field("content-encoding"), Some("gzip"));
    assert!(!got.is_whole);
}
