//! A client for HTTP/2 over TLS, to check responses and to hold idle connections.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use http::Request;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::http::SOCKET_TIMEOUT;
use crate::tls;

/// Opens connections, whose tasks run while a request is in progress.
pub(crate) struct Http2Client {
    runtime: Runtime,
    connector: TlsConnector,
}

/// An open connection.
pub(crate) struct Http2Connection {
    requests: SendRequest<Bytes>,
    address: SocketAddr,
}

impl Http2Client {
    /// Creates a client that trusts the certificate in `folder`.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub(crate) fn trusting(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            connector: tls::client_config(folder, tls::HTTP2)?.into(),
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The connection is refused, or the server does not choose HTTP/2.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<Http2Connection> {
        self.within_timeout(async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = self.connector.connect(tls::server_name()?, stream).await?;
            if stream.get_ref().1.alpn_protocol() != Some(tls::HTTP2) {
                return Err(io::Error::other("the server does not offer HTTP/2"));
            }
            let (requests, connection) = handshake(stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Ok(Http2Connection { requests, address })
        })
    }

    /// Sends a request and returns the body of the response.
    ///
    /// # Errors
    /// The connection fails, or the status is not 200.
    pub(crate) fn ask(
        &self,
        connection: &mut Http2Connection,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Vec<u8>> {
        let uri = format!("https://{}{path}", connection.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).map_err(io::Error::other)?;
        self.within_timeout(async {
            exchange(&mut connection.requests, request, body)
                .await
                .map_err(io::Error::other)?
        })
    }

    fn within_timeout<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.runtime
            .block_on(async { timeout(SOCKET_TIMEOUT, work).await })
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

async fn exchange(
    requests: &mut SendRequest<Bytes>,
    request: Request<()>,
    body: &[u8],
) -> Result<io::Result<Vec<u8>>, h2::Error> {
    std::future::poll_fn(|context| requests.poll_ready(context)).await?;
    let (response, mut upload) = requests.send_request(request, body.is_empty())?;
    if !body.is_empty() {
        upload.send_data(Bytes::copy_from_slice(body), true)?;
    }
    let (head, mut incoming) = response.await?.into_parts();
    let mut received = Vec::new();
    while let Some(data) = incoming.data().await.transpose()? {
        incoming.flow_control().release_capacity(data.len())?;
        received.extend_from_slice(&data);
    }
    Ok(if head.status == http::StatusCode::OK {
        Ok(received)
    } else {
        let said = String::from_utf8_lossy(&received);
        Err(io::Error::other(format!(
            "answered {} instead of 200: {said}",
            head.status.as_u16()
        )))
    })
}
