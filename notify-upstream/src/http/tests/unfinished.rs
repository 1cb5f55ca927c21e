//! Incomplete request bodies must not prevent other requests from being read.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends the head of a webhook and `sent` bytes of its longer body.
async fn unfinished(served: &TestServer, provider: &str, headers: &str, sent: usize) -> TcpStream {
    let server = served.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(server).await.expect("connects");
    let head = format!(
        "POST /webhooks/{provider} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.66\r\n{headers}Content-Length: {}\r\n\r\n",
        sent + 1000
    );
    stream.write_all(head.as_bytes()).await.expect("sends");
    // The request may be rejected before all bytes are sent.
    let _refused = stream.write_all(&vec![b' '; sent]).await;
    stream
}

async fn status(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    let read = tokio::time::timeout(RESPONSE_TIMEOUT, stream.read_exact(&mut line)).await;
    read.expect("a response before the body is complete")
        .expect("a response");
    String::from_utf8_lossy(&line).into_owned()
}

fn standard_headers(seconds: i64, signature: &str) -> String {
    format!("webhook-id: a\r\nwebhook-timestamp: {seconds}\r\nwebhook-signature: {signature}\r\n")
}

/// A well-formed signature of 32 bytes.
const TAG: &str = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

#[tokio::test]
async fn webhook_is_rejected_by_headers_before_body_is_read() {
    let (store, _database) = stores().await.pop().expect("a store");
    let served = served(&store).await;
    let now = START.unix_seconds();
    for (provider, headers) in [
        ("unknown", String::new()),
        (
            "twilio",
            "X-Twilio-Signature: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n".to_owned(),
        ),
        ("standard", String::new()),
        ("standard", standard_headers(now - 301, TAG)),
        ("standard", standard_headers(now, "v1,AAAA")),
        ("standard", standard_headers(now, "v2,AAAA")),
    ] {
        let mut stream = unfinished(&served, provider, &headers, 0).await;
        assert_eq!(
            status(&mut stream).await,
            "HTTP/1.1 401",
            "{provider} {headers}"
        );
    }
    served.shutdown.cancel();
}

#[tokio::test]
async fn incomplete_webhooks_do_not_block_other_requests() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        let headers = standard_headers(START.unix_seconds(), TAG);
        let mut connections = Vec::new();
        for _ in 0..24 {
            connections.push(unfinished(&served, "standard", &headers, 900_000).await);
        }
        // Requests beyond the client's share are rejected.
        let mut last = connections.pop().expect("one");
        assert_eq!(status(&mut last).await, "HTTP/1.1 429");
        assert_eq!(
            served.post("/notifications", &[], &welcome()).await.0,
            StatusCode::CREATED
        );
        served.shutdown.cancel();
    }
}
