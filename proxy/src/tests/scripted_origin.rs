//! Origins that run a script per connection, and gateways in front of them.

use std::future::{Future, pending};

use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;

use super::*;

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The receive buffer of an origin, so that the kernel holds little for one that reads nothing.
const RECEIVE_BUFFER_BYTES: u32 = 64 << 10;

pub(super) struct OriginConnection {
    pub(super) stream: TcpStream,
    /// Bytes that were received and not taken.
    pub(super) received: Vec<u8>,
}

/// Starts an origin that runs `script` for each connection.
pub(super) async fn start<S, F>(script: S) -> SocketAddr
where
    S: Fn(OriginConnection) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let socket = TcpSocket::new_v4().expect("a socket");
    let sized = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    sized.expect("a size");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("binds");
    let listener = socket.listen(64).expect("listens");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let received = Vec::new();
            tokio::spawn(script(OriginConnection { stream, received }));
        }
    });
    address
}

/// Starts an HTTP/2 origin without TLS that runs `script` for each request.
pub(super) async fn start_http2<S, F>(script: S) -> SocketAddr
where
    S: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    start(move |connection| {
        let script = script.clone();
        async move {
            let Ok(mut streams) = h2::server::handshake(connection.stream).await else {
                return;
            };
            while let Some(Ok((request, answer))) = streams.accept().await {
                tokio::spawn(script(request, answer));
            }
        }
    })
    .await
}

/// Answers a request over HTTP/2 with these DATA frames.
pub(super) fn answer_http2(mut answer: SendResponse<Bytes>, parts: &[&'static [u8]]) {
    if let Ok(mut body) = answer.send_response(http::Response::new(()), parts.is_empty()) {
        for (at, part) in parts.iter().enumerate() {
            let _gone = body.send_data(Bytes::from_static(part), at + 1 == parts.len());
        }
    }
}

/// Starts an origin that reads nothing after the head of a request.
pub(super) async fn start_stalled() -> SocketAddr {
    start(|mut connection| async move {
        connection.take_head().await;
        pending::<()>().await;
    })
    .await
}

impl OriginConnection {
    /// Takes the head of the next request; `None` at the end of the connection.
    pub(super) async fn take_head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                let head = self.received.drain(..end + 4).collect();
                return Some(String::from_utf8(head).expect("text"));
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Takes the next `count` bytes; `None` if the connection ends before.
    pub(super) async fn take_body(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.received.len() < count {
            if !self.fill().await {
                return None;
            }
        }
        Some(self.received.drain(..count).collect())
    }

    async fn fill(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.received).await;
        read.is_ok_and(|read| read > 0)
    }

    /// Sends bytes, unless the gateway has closed the connection.
    pub(super) async fn send(&mut self, data: impl AsRef<[u8]>) {
        let _gone = self.stream.write_all(data.as_ref()).await;
    }
}

/// Starts a gateway for clients of HTTP/1.1 and HTTP/2 in front of these addresses.
pub(super) async fn gateway(addresses: &[SocketAddr], upstream: &str, limits: &str) -> TestGateway {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let upstream = format!("addresses = {addresses:?}\n{upstream}");
    TestGateway::h2c(OriginBehavior::Answer, &upstream, limits, ROUTES).await
}

/// Opens an HTTP/2 connection whose streams have a receive window of this size.
pub(super) async fn http2_client(gateway: &TestGateway, window: u32) -> SendRequest<Bytes> {
    let stream = gateway.connect().await.stream;
    // Else the last packet of a window waits for a delayed acknowledgement.
    stream.set_nodelay(true).expect("a socket");
    http2_client_on(stream, window).await
}

/// Does the HTTP/2 handshake on a stream.
pub(super) async fn http2_client_on<S>(stream: S, window: u32) -> SendRequest<Bytes>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = h2::client::Builder::new();
    let shaking = builder.initial_window_size(window).handshake(stream);
    let (client, connection) = shaking.await.expect("a handshake");
    tokio::spawn(connection);
    client.ready().await.expect("ready")
}
