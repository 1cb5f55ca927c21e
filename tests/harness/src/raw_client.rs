//! Requests as bytes, for requests that HTTP clients do not send.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use httparse::{EMPTY_HEADER, Response, Status};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::answer::Answer;

/// Timeout of a response, after which the test fails.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A keep-alive connection that sends what it is given.
pub struct RawClient {
    stream: Box<dyn Stream>,
}

/// A plain or TLS stream.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl RawClient {
    /// Opens a plain connection.
    pub async fn open(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.expect("the peer accepts"))
    }

    /// Wraps an open stream.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        Self {
            stream: Box::new(stream),
        }
    }

    /// Sends bytes on a separate connection and reads one response.
    pub async fn send(address: SocketAddr, request: &[u8]) -> Answer {
        Self::open(address).await.exchange(request).await
    }

    /// Sends a request and reads its response, up to its declared end.
    pub async fn exchange(&mut self, request: &[u8]) -> Answer {
        let line = request.split(|byte| *byte == b'\r').next();
        let asked = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
        let reading = tokio::time::timeout(RESPONSE_TIMEOUT, self.read_response(request));
        match reading.await {
            Ok(Ok(bytes)) => parse(asked, &bytes),
            Ok(Err(error)) => panic!("{asked}: {error}"),
            Err(_) => panic!("{asked}: no answer within {RESPONSE_TIMEOUT:?}"),
        }
    }

    async fn read_response(&mut self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        // The peer may reject the request before reading it completely; only its response matters.
        let _ = self.stream.write_all(request).await;
        let _ = self.stream.flush().await;
        let mut bytes = Vec::new();
        while !is_whole(request, &bytes) {
            if self.stream.read_buf(&mut bytes).await? == 0 {
                break;
            }
        }
        Ok(bytes)
    }

    /// Waits until the peer closes the connection without further data.
    pub async fn closed(mut self) {
        let mut rest = Vec::new();
        let reading = self.stream.read_to_end(&mut rest);
        let reading = tokio::time::timeout(RESPONSE_TIMEOUT, reading).await;
        let read = reading.expect("the end of the stream in time");
        read.expect("a close without reset");
        let rest = String::from_utf8_lossy(&rest);
        assert_eq!(rest, "", "after the last response");
    }
}

fn is_whole(request: &[u8], bytes: &[u8]) -> bool {
    let mut fields = [EMPTY_HEADER; 100];
    let mut head = Response::new(&mut fields);
    let end = match head.parse(bytes) {
        Ok(Status::Complete(end)) => end,
        Ok(Status::Partial) => return false,
        Err(_) => return true,
    };
    let mut fields = head.headers.iter();
    let length = fields.find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
    if request.starts_with(b"HEAD ") {
        return true;
    }
    match length {
        Some(length) => bytes.len() - end >= length,
        // Only a chunked body ends before the connection does.
        None => bytes[end..].ends_with(b"0\r\n\r\n"),
    }
}

fn parse(asked: String, bytes: &[u8]) -> Answer {
    let mut fields = [EMPTY_HEADER; 100];
    let mut head = Response::new(&mut fields);
    let Ok(Status::Complete(end)) = head.parse(bytes) else {
        let text = String::from_utf8_lossy(bytes);
        panic!("{asked}: not an HTTP answer: {text:?}");
    };
    let status = StatusCode::from_u16(head.code.unwrap_or_default());
    let mut headers = HeaderMap::new();
    for field in head.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).expect("a name");
        let value = HeaderValue::from_bytes(field.value);
        headers.append(name, value.expect("a value"));
    }
    Answer {
        asked,
        status: status.expect("a status"),
        headers,
        body: Bytes::copy_from_slice(&bytes[end..]),
    }
}
