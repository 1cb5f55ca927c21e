//! Request bodies are streamed through the gateway: the upstream has the first half before the
//! second is sent.

use postern_tests::{Gateway, Pools};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// More than all buffers on the path.
const HALF_BODY_BYTES: usize = 8 << 20;

/// Reads a head and `HALF_BODY_BYTES` bytes of the body, signals that, reads the rest, and
/// responds.
async fn origin(listener: TcpListener, has_half: oneshot::Sender<()>) {
    let (mut stream, _) = listener.accept().await.expect("the gateway connects");
    let mut seen = Vec::with_capacity(2 * HALF_BODY_BYTES + 4096);
    let mut has_half = Some(has_half);
    loop {
        let body = seen
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
            .map_or(0, |at| seen.len() - at - 4);
        if body >= HALF_BODY_BYTES
            && let Some(has_half) = has_half.take()
        {
            has_half.send(()).expect("the test waits for it");
        }
        if body == 2 * HALF_BODY_BYTES {
            break;
        }
        assert!(
            stream.read_buf(&mut seen).await.expect("the gateway sends") > 0,
            "cut off at {body}"
        );
    }
    stream
        .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .expect("the gateway reads");
}

#[tokio::test]
async fn upload_is_streamed() {
    let pools = Pools::start().await;
    let (_, token) = pools.user(&[]).await;
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("the loopback has a free port");
    let upstream = listener
        .local_addr()
        .expect("a bound socket has an address");
    let (has_half, half) = oneshot::channel();
    let origin = tokio::spawn(origin(listener, has_half));
    let gateway = Gateway::start(&Gateway::config(upstream), &pools.env()).await;
    let mut client = TcpStream::connect(gateway.client().address())
        .await
        .expect("the gateway accepts");
    let head = format!(
        "POST /resumes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        2 * HALF_BODY_BYTES
    );
    client.write_all(head.as_bytes()).await.expect("sent");
    client
        .write_all(&vec![b'a'; HALF_BODY_BYTES])
        .await
        .expect("the first half is taken");
    half.await
        .expect("the upstream has it though the second half was not sent");
    client
        .write_all(&vec![b'b'; HALF_BODY_BYTES])
        .await
        .expect("the second half is taken");
    let mut answer = vec![0; 12];
    client.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 201");
    origin.await.expect("the upstream is content");
    gateway.stop().await;
}
