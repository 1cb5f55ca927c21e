//! A client of compressed responses, and gateways that compress.

use std::io::Read;

use super::harness::route_of;
use super::*;

/// A route that compresses, with these lines.
fn route(compression: &str) -> String {
    let lines = format!("policy = \"public\"\ncompression = {compression}");
    route_of(["open", "/open", "\"GET\", \"HEAD\", \"POST\"", &lines])
}

pub(super) fn text(length: usize) -> String {
    let line = |at: usize| format!("line {} of the text\n", at.pow(2)).into_bytes();
    let bytes = (0_usize..).flat_map(line).take(length);
    bytes.map(char::from).collect()
}

pub(super) async fn gateway_at(
    address: SocketAddr,
    compression: &str,
    upstream: &str,
) -> TestGateway {
    let upstream = format!("addresses = [\"{address}\"]\n{upstream}");
    let route = route(compression);
    TestGateway::h2c(OriginBehavior::Answer, &upstream, "", &route).await
}

/// A response as its client received it: the head in lower case, and the content.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) head: String,
    pub(super) content: Vec<u8>,
    /// Whether the framing of the body was complete.
    pub(super) is_whole: bool,
}

impl Received {
    /// Parses all bytes of a connection.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let (head, mut rest) = bytes.split_at(find(bytes, b"\r\n\r\n").expect("a head") + 4);
        let head = std::str::from_utf8(head)
            .expect("text")
            .to_ascii_lowercase();
        let (mut content, mut is_whole) = (rest.to_vec(), true);
        if head.contains("transfer-encoding: chunked") {
            (content, is_whole) = (Vec::new(), false);
            while let Some(line) = find(rest, b"\r\n") {
                let size = std::str::from_utf8(&rest[..line]).expect("a size");
                let size = usize::from_str_radix(size, 16).expect("a size");
                if size == 0 {
                    is_whole = &rest[line..] == b"\r\n\r\n";
                    break;
                }
                let Some(chunk) = rest.get(line + 2..line + 2 + size) else {
                    break;
                };
                content.extend_from_slice(chunk);
                rest = rest.get(line + 4 + size..).unwrap_or_default();
            }
        }
        Self {
            head,
            content,
            is_whole,
        }
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(super) fn decoded(&self) -> String {
        String::from_utf8(decode(self.field("content-encoding"), &self.content)).expect("text")
    }
}

pub(super) fn decode(coding: Option<&str>, content: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let read = match coding {
        None => return content.to_vec(),
        Some("gzip") => flate2::read::GzDecoder::new(content).read_to_end(&mut decoded),
        Some("br") => brotli::Decompressor::new(content, 4096).read_to_end(&mut decoded),
        Some(other) => panic!("{other}"),
    };
    read.expect("a complete stream");
    decoded
}

/// Sends a request and reads until the connection is closed.
pub(super) async fn ask(address: SocketAddr, request: &str) -> Received {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(6 * STEP_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let _closed_or_reset = read.expect("the end in time");
    Received::parse(&bytes)
}
