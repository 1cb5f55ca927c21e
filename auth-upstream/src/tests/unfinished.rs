//! Request bodies that never end must not keep others from signing in.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::testing::Fixture;

/// More than all bodies of all clients may have in memory.
const CONNECTIONS: usize = 280;
const SENT: usize = 63 << 10;

/// Sends a login of which the last byte is missing.
async fn unfinished(server: &str, client: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server).await.expect("connects");
    let head = format!(
        "POST /auth/login HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
         X-Forwarded-For: {client}\r\nContent-Length: {}\r\n\r\n",
        SENT + 1
    );
    stream.write_all(head.as_bytes()).await.expect("sends");
    // It may be refused before all of it is sent.
    let _refused = stream.write_all(&vec![b' '; SENT]).await;
    stream
}

async fn sign_in(url: &str, client: &str) -> u16 {
    let body = json!({ "email": "ada@example.com", "password": "Password-1" });
    let request = reqwest::Client::new()
        .post(format!("{url}/auth/login"))
        .json(&body);
    request
        .header("x-forwarded-for", client)
        .send()
        .await
        .expect("an answer")
        .status()
        .as_u16()
}

#[tokio::test]
async fn unfinished_bodies_of_one_client_keep_nobody_from_signing_in() {
    let fixture = Fixture::new().await;
    let url = fixture.serve().await;
    let server = url.trim_start_matches("http://");
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(unfinished(server, "192.0.2.66").await);
    }
    // Those beyond the client's share are refused; when one is, the others have been read.
    let mut answer = [0; 12];
    let mut last = connections.pop().expect("one");
    let read = tokio::time::timeout(
        std::time::Duration::from_secs(20),
        last.read_exact(&mut answer),
    )
    .await;
    assert!(read.is_ok(), "the last one is refused at once");
    // For the client's share: the memory of all clients would be 503.
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 429");
    assert_eq!(sign_in(&url, "192.0.2.1").await, 401);
    // A body that is there at once needs nothing of what unfinished ones have taken, except the
    // client's own share.
    assert_eq!(sign_in(&url, "192.0.2.66").await, 401);
}
