//! Responses that begin before the request has ended.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

const BODY_BYTES: usize = 100_000;
const FIRST_BYTES: usize = 20_000;

/// Reads until `count` bytes of the body have arrived.
async fn read_body(stream: &mut tokio::net::TcpStream, seen: &mut Vec<u8>, count: usize) {
    loop {
        let end = seen.windows(4).position(|window| window == b"\r\n\r\n");
        if end.is_some_and(|end| seen.len() >= end + 4 + count) {
            return;
        }
        assert_ne!(stream.read_buf(seen).await.expect("reads"), 0);
    }
}

/// An origin that answers in two parts: after the first bytes of the body, and after its end.
#[tokio::test]
async fn response_reaches_a_client_that_waits_for_it_before_it_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let origin = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut seen = Vec::new();
        read_body(&mut stream, &mut seen, FIRST_BYTES).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
        stream.write_all(head.as_bytes()).await.expect("writes");
        read_body(&mut stream, &mut seen, BODY_BYTES).await;
        stream.write_all(b"world").await.expect("writes");
        // The connection is used again.
        let next = stream.read_buf(&mut seen).await.expect("reads");
        String::from_utf8_lossy(&seen[seen.len() - next..]).into_owned()
    });
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream = format!("addresses = [\"{address}\"]");
    let gateway = TestGateway::before(unused, &upstream, "", ROUTES).await;
    let mut client = gateway.connect().await;
    let head = format!("POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    client
        .write(&format!("{head}{}", "x".repeat(FIRST_BYTES)))
        .await;
    let answer = client.until("hello").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    client.write(&"x".repeat(BODY_BYTES - FIRST_BYTES)).await;
    assert_eq!(client.until("world").await, "world");
    let mut other = gateway.connect().await;
    other
        .write("GET /open?next HTTP/1.1\r\nHost: gate\r\n\r\n")
        .await;
    let next = tokio::time::timeout(STEP_TIMEOUT, origin).await;
    let next = next.expect("a request in time").expect("no panic");
    assert!(next.starts_with("GET /open?next "), "{next}");
}
