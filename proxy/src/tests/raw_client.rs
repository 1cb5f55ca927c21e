//! An HTTP/1 client that sends raw bytes and reads responses.

use super::*;

/// A request.
pub(super) const GET: &str = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";

/// The fields of a request for a WebSocket.
pub(super) const UPGRADE: &str =
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";

/// A client that sends raw bytes.
pub(super) struct RawClient {
    pub(super) stream: TcpStream,
    pub(super) buffer: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct RawResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl RawClient {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).await.expect("connects"))
    }

    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub(super) async fn write(&mut self, raw: &str) {
        self.stream.write_all(raw.as_bytes()).await.expect("writes");
    }

    /// Returns the next response; `None` if the connection was closed before it.
    pub(super) async fn response(&mut self) -> Option<RawResponse> {
        let reading = async {
            loop {
                if let Some(answer) = self.parse() {
                    return Some(answer);
                }
                if self.fill().await == 0 {
                    return None;
                }
            }
        };
        in_time(reading).await
    }

    /// Returns the next response.
    pub(super) async fn answer(&mut self) -> RawResponse {
        self.response().await.expect("a response")
    }

    /// Sends raw bytes and returns the next response.
    pub(super) async fn ask(&mut self, raw: &str) -> RawResponse {
        self.write(raw).await;
        self.answer().await
    }

    async fn fill(&mut self) -> usize {
        let mut space = vec![0; 64 << 10];
        let read = self.stream.read(&mut space).await.unwrap_or(0);
        self.buffer.extend_from_slice(&space[..read]);
        read
    }

    fn parse(&mut self) -> Option<RawResponse> {
        let head = self
            .buffer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")?
            + 4;
        let text = String::from_utf8_lossy(&self.buffer[..head]).into_owned();
        let length = text
            .to_ascii_lowercase()
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| {
                rest.split("\r\n")
                    .next()
                    .expect("a line")
                    .parse()
                    .expect("a length")
            });
        if self.buffer.len() < head + length {
            return None;
        }
        let status = text
            .split(' ')
            .nth(1)
            .expect("a status")
            .parse()
            .expect("a number");
        let body = String::from_utf8_lossy(&self.buffer[head..head + length]).into_owned();
        self.buffer.drain(..head + length);
        Some(RawResponse {
            status,
            head: text,
            body,
        })
    }

    /// Returns whether the gateway closes this connection without sending anything.
    pub(super) async fn is_closed(&mut self) -> bool {
        tokio::time::timeout(STEP_TIMEOUT, self.fill())
            .await
            .is_ok_and(|read| read == 0)
            && self.buffer.is_empty()
    }

    /// Returns all bytes until the connection is closed; `None` if it is reset.
    pub(super) async fn rest(&mut self) -> Option<String> {
        let reading = self.stream.read_to_end(&mut self.buffer);
        let read = in_time(reading).await;
        read.ok()
            .map(|_| String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned())
    }

    /// Returns the next bytes up to and including `end`.
    pub(super) async fn until(&mut self, end: &str) -> String {
        loop {
            let found = self
                .buffer
                .windows(end.len())
                .position(|window| window == end.as_bytes());
            if let Some(at) = found {
                return self.bytes(at + end.len()).await;
            }
            assert_ne!(in_time(self.fill()).await, 0, "the connection ended");
        }
    }

    /// Returns the next `count` bytes.
    pub(super) async fn bytes(&mut self, count: usize) -> String {
        while self.buffer.len() < count {
            assert_ne!(in_time(self.fill()).await, 0, "the connection ended");
        }
        String::from_utf8_lossy(&self.buffer.drain(..count).collect::<Vec<u8>>()).into_owned()
    }
}

impl RawResponse {
    /// Returns the status and the code of a problem, such as `404 not_found`.
    pub(super) fn problem(&self) -> String {
        format!("{} {}", self.status, self.code())
    }

    pub(super) fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).expect("a problem");
        assert_eq!(body["status"], self.status, "{body}");
        body["code"].as_str().expect("a code").to_owned()
    }

    #[track_caller]
    pub(super) fn assert_header(&self, name: &str, value: &str) {
        assert_eq!(self.header(name), Some(value), "{}", self.head);
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| {
            line.split(':')
                .next()
                .is_some_and(|known| known.eq_ignore_ascii_case(name))
        })?;
        line.split_once(": ").map(|(_, value)| value)
    }
}

/// Sends one request on a new connection. A connection closed without a response is an error.
pub(super) async fn fetch(address: SocketAddr, target: &str) -> RawResponse {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    RawClient::connect(address).await.ask(&request).await
}

/// Returns whether a request contains this field line, ignoring case.
pub(super) fn has_field(request: &str, field: &str) -> bool {
    let (name, value) = field.split_once(": ").expect("a field");
    request.lines().any(|line| {
        line.split_once(": ")
            .is_some_and(|(known, text)| known.eq_ignore_ascii_case(name) && text == value)
    })
}
