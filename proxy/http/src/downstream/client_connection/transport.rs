//! The TCP or TLS transport of a client connection.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::downstream::read_ahead::ReadAhead;

/// Maximum time for which input is discarded after the response to a client that is still sending.
pub(in crate::downstream) const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of bytes that are discarded after the response.
pub(in crate::downstream) const MAX_LINGER_BYTES: usize = 1 << 20;

/// The transport of a client connection.
pub enum ClientTransport {
    /// TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<ReadAhead>>),
}

impl ClientTransport {
    /// Returns the file descriptor of the TCP socket.
    pub(super) fn raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.get_ref().0.socket().as_raw_fd(),
        }
    }

    /// Closes the connection with a TCP reset, without a TLS `close_notify`.
    pub(super) fn reset(self) {
        let _best_effort = match &self {
            Self::Tcp(stream) => stream.set_zero_linger(),
            Self::Tls(stream) => stream.get_ref().0.socket().set_zero_linger(),
        };
    }

    /// Shuts down the sending side and discards input for a limited time.
    pub(super) async fn linger(mut self) {
        let reading = async {
            let _closed = self.shutdown().await;
            let mut buffer = [0; 4096];
            let mut discarded = 0;
            while discarded < MAX_LINGER_BYTES {
                match self.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => discarded += bytes,
                }
            }
        };
        let _timed_out = tokio::time::timeout(LINGER_TIMEOUT, reading).await;
    }
}

impl AsyncRead for ClientTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientTransport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
