//! Incomplete request bodies of one client must not prevent sign-ins of others.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::testing::{Fixture, http};

/// Connections whose bodies together exceed the body memory budget.
const CONNECTIONS: usize = 280;
/// Bytes that each connection sends.
const SENT_BYTES: usize = 63 << 10;

/// Sends a login without its last byte.
async fn send_incomplete(server: &str, client: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server).await.expect("connects");
    let head = format!(
        "POST /auth/login HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
         X-Forwarded-For: {client}\r\nContent-Length: {}\r\n\r\n",
        SENT_BYTES + 1
    );
    stream.write_all(head.as_bytes()).await.expect("sends");
    // The server may reject the body before all of it is sent.
    let _rejected = stream.write_all(&vec![b' '; SENT_BYTES]).await;
    stream
}

async fn sign_in(url: &str, client: &str) -> u16 {
    let body = json!({ "email": "ada@example.com", "password": "Password-1" });
    let request = http().post(format!("{url}/auth/login")).json(&body);
    request
        .header("x-forwarded-for", client)
        .send()
        .await
        .expect("a response")
        .status()
        .as_u16()
}

#[tokio::test]
async fn incomplete_bodies_do_not_prevent_sign_ins() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let server = url.trim_start_matches("http://");
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(send_incomplete(server, "192.0.2.66").await);
    }
    // Bodies beyond the client's share are rejected. When the last one is, the others were read.
    let mut response = [0; 12];
    let mut last = connections.pop().expect("one");
    let read = tokio::time::timeout(
        std::time::Duration::from_secs(20),
        last.read_exact(&mut response),
    )
    .await;
    assert!(read.is_ok(), "the last one is rejected at once");
    // 429 is for the client's share; the memory of all clients would be 503.
    assert_eq!(String::from_utf8_lossy(&response), "HTTP/1.1 429");
    assert_eq!(sign_in(&url, "192.0.2.1").await, 401);
    // A complete body does not use the budget of incomplete ones, except the client's share.
    assert_eq!(sign_in(&url, "192.0.2.66").await, 401);
}
