//! An HTTP/1 client that sends raw bytes and reads responses.

use super::*;

pub(super) const GET: &str = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";

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
        let buffer = Vec::new();
        Self { stream, buffer }
    }

    pub(super) async fn write(&mut self, raw: &str) {
        self.stream.write_all(raw.as_bytes()).await.expect("writes");
    }

    /// Returns the next response; `None` if the connection was closed before it.
    pub(super) async fn response(&mut self) -> Option<RawResponse> {
        let reading = async {
            loop {
                match self.parse() {
                    None if self.fill().await == 0 => return None,
                    None => {}
                    Some(answer) => return Some(answer),
                }
            }
        };
        in_time(reading).await
    }

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
        let start = find(&self.buffer, b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.buffer[..start]).into_owned();
        let end = start + content_length(&head);
        let body = String::from_utf8_lossy(self.buffer.get(start..end)?).into_owned();
        self.buffer.drain(..end);
        let status = head.split(' ').nth(1).expect("a status");
        let status = status.parse().expect("a number");
        Some(RawResponse { status, head, body })
    }

    /// Returns whether the gateway closes this connection without sending anything.
    pub(super) async fn is_closed(&mut self) -> bool {
        let read = tokio::time::timeout(STEP_TIMEOUT, self.fill()).await;
        read.is_ok_and(|read| read == 0) && self.buffer.is_empty()
    }

    /// Returns all bytes until the connection is closed; `None` if it is reset.
    pub(super) async fn rest(&mut self) -> Option<String> {
        let read = in_time(self.stream.read_to_end(&mut self.buffer)).await;
        let bytes = std::mem::take(&mut self.buffer);
        let text = read.map(|_| String::from_utf8_lossy(&bytes).into_owned());
        text.ok()
    }

    /// Returns the next bytes up to and including `end`.
    pub(super) async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = find(&self.buffer, end.as_bytes()) {
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
        let taken: Vec<u8> = self.buffer.drain(..count).collect();
        String::from_utf8_lossy(&taken).into_owned()
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
        values(&self.head, name).into_iter().next()
    }
}

/// Sends one request on a new connection. A connection closed without a response is an error.
pub(super) async fn fetch(address: SocketAddr, target: &str) -> RawResponse {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    RawClient::connect(address).await.ask(&request).await
}

/// Returns the values of a field of a message, in order.
pub(super) fn values<'a>(message: &'a str, name: &str) -> Vec<&'a str> {
    let fields = message.lines().filter_map(|line| line.split_once(": "));
    let named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value).collect()
}

/// Returns whether a request contains this field line, ignoring case.
pub(super) fn has_field(request: &str, field: &str) -> bool {
    let (name, value) = field.split_once(": ").expect("a field");
    values(request, name).contains(&value)
}

#[track_caller]
pub(super) fn assert_fields(request: &str, fields: &[&str]) {
    for field in fields {
        assert!(has_field(request, field), "{field} is missing: {request}");
    }
}

pub(super) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

pub(super) fn content_length(head: &str) -> usize {
    let length = values(head, "content-length").into_iter().next();
    length.map_or(0, |length| length.parse().expect("a number"))
}
