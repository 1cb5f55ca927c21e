//! Requests as bytes, for requests that HTTP clients do not send.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
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
    ///
    /// # Panics
    /// If the peer does not accept it.
    pub async fn open(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.expect("the peer accepts"))
    }

    /// Wraps an open stream.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        Self {
            stream: Box::new(stream),
        }
    }

    /// Sends a request and reads its response.
    ///
    /// # Panics
    /// If the connection ends before the response does.
    pub async fn exchange(&mut self, request: &[u8]) -> Answer {
        answered(request, exchange(&mut *self.stream, request)).await
    }

    /// Sends bytes on a separate connection and reads one response, up to its declared end.
    ///
    /// # Panics
    /// If the peer does not accept, or does not send an HTTP/1.1 response.
    pub async fn send(address: SocketAddr, request: &[u8]) -> Answer {
        let exchanging = async {
            let mut stream = TcpStream::connect(address).await?;
            exchange(&mut stream, request).await
        };
        answered(request, exchanging).await
    }

    /// Waits until the peer closes the connection without further data.
    ///
    /// # Panics
    /// If data arrives, or the connection stays open.
    pub async fn closed(mut self) {
        let mut rest = Vec::new();
        let reading =
            tokio::time::timeout(RESPONSE_TIMEOUT, self.stream.read_to_end(&mut rest)).await;
        let read = reading
            .expect("the end of the stream in time")
            .expect("a close without reset");
        assert_eq!(
            read,
            0,
            "after the last response: {:?}",
            String::from_utf8_lossy(&rest)
        );
    }
}

impl std::fmt::Debug for RawClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawClient").finish_non_exhaustive()
    }
}

async fn answered(
    request: &[u8],
    exchange: impl Future<Output = std::io::Result<Vec<u8>>>,
) -> Answer {
    let asked = String::from_utf8_lossy(
        request
            .split(|byte| *byte == b'\r')
            .next()
            .unwrap_or_default(),
    )
    .into_owned();
    match tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await {
        Ok(Ok(bytes)) => parse(asked, &bytes),
        Ok(Err(error)) => panic!("{asked}: {error}"),
        Err(_) => panic!("{asked}: no answer within {RESPONSE_TIMEOUT:?}"),
    }
}

async fn exchange(stream: &mut (impl Stream + ?Sized), request: &[u8]) -> std::io::Result<Vec<u8>> {
    // The peer may reject the request before reading it completely; only its response matters.
    let _ = stream.write_all(request).await;
    let _ = stream.flush().await;
    let mut bytes = Vec::new();
    let mut part = vec![0_u8; 8192];
    loop {
        let read = match stream.read(&mut part).await {
            Ok(0) => return Ok(bytes),
            Ok(read) => read,
            Err(_) if is_whole(request, &bytes) => return Ok(bytes),
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&part[..read]);
        if is_whole(request, &bytes) {
            return Ok(bytes);
        }
    }
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| at + 4)
}

fn is_whole(request: &[u8], bytes: &[u8]) -> bool {
    let Some(end) = head_end(bytes) else {
        return false;
    };
    if request.starts_with(b"HEAD ") {
        return true;
    }
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| {
        line.strip_prefix("content-length:")?
            .trim()
            .parse::<usize>()
            .ok()
    });
    match length {
        Some(length) => bytes.len() >= end + length,
        None => head.contains("transfer-encoding: chunked") && bytes.ends_with(b"0\r\n\r\n"),
    }
}

fn parse(asked: String, bytes: &[u8]) -> Answer {
    let Some(end) = head_end(bytes) else {
        panic!(
            "{asked}: not an HTTP answer: {:?}",
            String::from_utf8_lossy(bytes)
        );
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n").filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let status = first
        .split(' ')
        .nth(1)
        .and_then(|text| StatusCode::from_bytes(text.as_bytes()).ok());
    let Some(status) = status else {
        panic!("{asked}: no status in {first:?}")
    };
    let headers: HeaderMap = lines
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value.trim()).ok()?))
        })
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        });
    Answer {
        asked,
        status,
        headers,
        body: Bytes::copy_from_slice(&bytes[end..]),
    }
}
