//! Incomplete request bodies must not prevent other requests from being read.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends the head of a webhook and `sent` bytes of its longer body.
async fn unfinished(served: &TestServer, provider: &str, sent: usize) -> TcpStream {
    let server = served.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(server).await.expect("connects");
    let head = format!(
        "POST /webhooks/{provider} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.66\r\nContent-Length: {}\r\n\r\n",
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

#[tokio::test]
async fn webhook_of_a_provider_that_is_not_configured_is_rejected_before_its_body_is_read() {
    let (served, _database) = servers().await.remove(0);
    for provider in ["unknown", "twilio"] {
        let mut stream = unfinished(&served, provider, 0).await;
        assert_eq!(status(&mut stream).await, "HTTP/1.1 401", "{provider}");
    }
}

#[tokio::test]
async fn incomplete_webhooks_do_not_block_other_requests() {
    for (served, _database) in servers().await {
        let mut connections = Vec::new();
        for _ in 0..24 {
            connections.push(unfinished(&served, "standard", 900_000).await);
        }
        // Requests beyond the client's share are rejected.
        let mut last = connections.pop().expect("one");
        assert_eq!(status(&mut last).await, "HTTP/1.1 429");
        served.accepted(&welcome()).await;
    }
}
