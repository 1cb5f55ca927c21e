//! A minimal HTTP/1.1 client over a socket or a TLS stream, to check responses and query processes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Read and write timeout.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// Size including the head.
    pub(crate) bytes: usize,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A keep-alive connection.
#[derive(Debug)]
pub(crate) struct HttpClient<S = TcpStream>(S, SocketAddr);

impl HttpClient {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream, address))
    }
}

impl<S: Read + Write> HttpClient<S> {
    /// Creates a client of a stream to `address`.
    pub(crate) fn over(stream: S, address: SocketAddr) -> Self {
        Self(stream, address)
    }

    /// Returns the stream, for closing it.
    pub(crate) fn into_stream(self) -> S {
        self.0
    }

    /// Sends a request, with JSON if there is a body, and reads the whole response.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<HttpResponse> {
        let length = body.len().to_string();
        let mut all = headers.to_vec();
        if !body.is_empty() {
            all.extend([
                ("Content-Type", "application/json"),
                ("Content-Length", length.as_str()),
            ]);
        }
        self.send(method, path, &all, body)
    }

    /// Sends a request with exactly these fields and `Host`, and reads the whole response.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> io::Result<HttpResponse> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.1);
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body.as_ref());
        self.0.write_all(&request)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<HttpResponse> {
        let mut bytes = Vec::new();
        let mut space = [0; 16 << 10];
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match self.0.read(&mut space)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => bytes.extend_from_slice(&space[..read]),
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head
            .split_whitespace()
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        let length: usize = header(&head, "content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        while bytes.len() < end + length {
            match self.0.read(&mut space)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => bytes.extend_from_slice(&space[..read]),
            }
        }
        Ok(HttpResponse {
            status,
            bytes: bytes.len(),
            head,
            body: bytes.split_off(end),
        })
    }
}

impl HttpResponse {
    /// Returns the body as JSON, or null if it is not JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns a header field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Returns the response if it has this status.
    pub(crate) fn expect(self, status: u16) -> io::Result<Self> {
        if self.status == status {
            return Ok(self);
        }
        let said = String::from_utf8_lossy(&self.body);
        Err(io::Error::other(format!(
            "answered {} instead of {status}: {said}",
            self.status
        )))
    }
}

fn header<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

/// Sends one request on a separate connection.
pub(crate) fn once(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<HttpResponse> {
    HttpClient::connect(address)?.ask(method, path, headers, body)
}
