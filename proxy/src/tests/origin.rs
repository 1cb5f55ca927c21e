//! An origin that records every byte that it receives.

use std::future::pending;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::*;

#[derive(Clone, Copy)]
pub(super) enum OriginBehavior {
    /// Sends `200` with a short JSON body and keeps the connection.
    Answer,
    Hang,
    AnswerPosts,
    /// Closes the connection after the request.
    Close,
    /// Answers the first request of a connection and closes after the second.
    AnswerOnce,
    /// Sends `101` with the first bytes of the tunnel in the same packet, then echoes.
    Upgrade,
    /// Like `Upgrade`, and closes at once.
    UpgradeAndLeave,
    Text(&'static str),
    /// Sends the head and a first event, and a second one after another request was received.
    Events,
    /// Sends the head and one event of 64 KiB, and nothing more.
    LargeEvent,
    /// Sends a response, and an unsolicited one after this time.
    Surplus(Duration),
    /// Sends a body of 64 MiB.
    Flood,
    /// Sends ten bytes of known length at this interval.
    Drip(Duration),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub(super) struct TestOrigin {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl TestOrigin {
    pub(super) async fn start(behavior: OriginBehavior) -> Self {
        Self::with(behavior, None).await
    }

    /// Starts an origin, over TLS if configured.
    pub(super) async fn with(
        behavior: OriginBehavior,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = bind().await;
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (record, tls) = (Arc::clone(&record), tls.clone());
                tokio::spawn(async move {
                    let Some(tls) = tls else {
                        return serve(stream, behavior, record).await;
                    };
                    if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                        serve(stream, behavior, record).await;
                    }
                });
            }
        });
        Self { address, seen }
    }

    /// Returns all requests so far, as received.
    pub(super) fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        seen.iter().map(text).collect()
    }

    #[track_caller]
    pub(super) fn last(&self) -> String {
        self.seen().pop().expect("a request")
    }

    #[track_caller]
    pub(super) fn only(&self) -> String {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        self.last()
    }

    #[track_caller]
    pub(super) fn assert_unused(&self) {
        assert_eq!(self.seen(), [""; 0]);
    }
}

async fn serve(
    mut stream: impl Stream,
    behavior: OriginBehavior,
    record: Arc<Mutex<Vec<Vec<u8>>>>,
) {
    let mut buffer = Vec::new();
    let mut answered = 0;
    while let Some(length) = read_request(&mut stream, &mut buffer).await {
        let request: Vec<u8> = buffer.drain(..length).collect();
        let method = String::from_utf8_lossy(&request[..4]).into_owned();
        record.lock().push(request);
        let answer = match behavior {
            OriginBehavior::Hang => return pending().await,
            OriginBehavior::AnswerPosts if method != "POST" => return pending().await,
            OriginBehavior::Close => return,
            OriginBehavior::AnswerOnce if answered > 0 => return,
            OriginBehavior::Answer | OriginBehavior::AnswerPosts | OriginBehavior::AnswerOnce => {
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"ok\":true}"
            }
            OriginBehavior::Text(text) => text,
            OriginBehavior::Events => return events(stream, &record).await,
            OriginBehavior::LargeEvent => return large_event(stream).await,
            OriginBehavior::Surplus(pause) => return surplus(stream, pause, &record).await,
            OriginBehavior::Flood => return flood(stream).await,
            OriginBehavior::Drip(pause) => return drip(stream, pause).await,
            OriginBehavior::Upgrade if method == "GET " => return tunnel(stream, true).await,
            OriginBehavior::UpgradeAndLeave if method == "GET " => {
                return tunnel(stream, false).await;
            }
            OriginBehavior::Upgrade | OriginBehavior::UpgradeAndLeave => {
                "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
            }
        };
        answered += 1;
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn events(mut stream: impl Stream, record: &Mutex<Vec<Vec<u8>>>) {
    let first = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
                 8\r\nfirst..\n\r\n";
    let begun = record.lock().len();
    if stream.write_all(first.as_bytes()).await.is_ok() && begun == 1 {
        while record.lock().len() == begun {
            tokio::task::yield_now().await;
        }
        let _gone = stream.write_all(b"8\r\nsecond.\n\r\n0\r\n\r\n").await;
    }
}

async fn large_event(mut stream: impl Stream) {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n";
    let event = [head.as_bytes(), &vec![b'x'; 64 << 10], b"\r\n"].concat();
    if stream.write_all(&event).await.is_ok() {
        pending::<()>().await;
    }
}

/// The unsolicited response is sent before the next request arrives; a request on another
/// connection gets the same response.
async fn surplus(mut stream: impl Stream, pause: Duration, record: &Mutex<Vec<Vec<u8>>>) {
    let [own, other] =
        ["own", "EVE"].map(|body| format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{body}"));
    let (first, later) = if pause.is_zero() {
        (own + &other, String::new())
    } else {
        (own, other)
    };
    if stream.write_all(first.as_bytes()).await.is_ok() {
        tokio::time::sleep(pause).await;
        let _gone = stream.write_all(later.as_bytes()).await;
        record.lock().push(b"surplus".to_vec());
        pending::<()>().await;
    }
}

async fn flood(mut stream: impl Stream) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 << 20);
    let mut written = stream.write_all(head.as_bytes()).await;
    let block = vec![b'x'; 64 << 10];
    for _ in 0..1024 {
        if written.is_ok() {
            written = stream.write_all(&block).await;
        }
    }
}

async fn drip(mut stream: impl Stream, pause: Duration) {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    let mut written = stream.write_all(head).await;
    let mut pace = tokio::time::interval(pause);
    for _ in 0..10 {
        pace.tick().await;
        if written.is_ok() {
            written = stream.write_all(b".").await;
        }
    }
    // The connection stays open, so that only the length ends the body.
    pending::<()>().await;
}

async fn tunnel(mut stream: impl Stream, stays: bool) {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello";
    let mut space = [0; 1024];
    if stream.write_all(answer.as_bytes()).await.is_ok() && stays {
        while let Ok(read @ 1..) = stream.read(&mut space).await {
            if stream.write_all(&space[..read]).await.is_err() {
                return;
            }
        }
    }
}

async fn read_request(stream: &mut impl Stream, buffer: &mut Vec<u8>) -> Option<usize> {
    let mut space = vec![0; 64 << 10];
    loop {
        if let Some(length) = request_length(buffer) {
            return Some(length);
        }
        match stream.read(&mut space).await {
            Ok(read @ 1..) => buffer.extend_from_slice(&space[..read]),
            Ok(_) | Err(_) => return None,
        }
    }
}

pub(super) fn request_length(buffer: &[u8]) -> Option<usize> {
    let head = find(buffer, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
    if !text.contains("transfer-encoding: chunked") {
        let end = head + content_length(&text);
        return (buffer.len() >= end).then_some(end);
    }
    let mut framing = BodyFraming::begin(BodyKind::Chunked);
    let taken = framing.advance(&buffer[head..]).expect("well framed");
    (framing == BodyFraming::Done).then_some(head + taken)
}
