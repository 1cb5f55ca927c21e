//! A TCP stream that reads ahead while much arrives.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

/// Size of one read while much arrives: two TLS records of the maximum size (RFC 8446 section 5.2).
const READ_AHEAD_BYTES: usize = 33 << 10;

/// A read of more bytes is probably followed by more.
const LARGE_READ_BYTES: usize = 4 << 10;

/// The TCP stream below TLS.
///
/// The TLS layer reads 4 KiB at a time, and at most the rest of a record, with a system call each.
/// As soon as a read fills its buffer, this stream reads more at once. The buffer exists only
/// while it contains data.
#[derive(Debug)]
pub struct ReadAhead {
    stream: TcpStream,
    inbound: BytesMut,
    /// Whether the last read from the socket filled its buffer, or was large.
    has_more: bool,
}

impl ReadAhead {
    /// Creates a stream that has read nothing.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            inbound: BytesMut::new(),
            has_more: false,
        }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }
}

impl AsyncRead for ReadAhead {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.inbound.is_empty() {
            if !this.has_more {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                this.has_more = buf.remaining() == 0;
                return Poll::Ready(Ok(()));
            }
            let mut inbound = BytesMut::with_capacity(READ_AHEAD_BYTES);
            let read = ready!(poll_read_buf(Pin::new(&mut this.stream), cx, &mut inbound))?;
            this.has_more = read > LARGE_READ_BYTES;
            this.inbound = inbound;
        }
        let taken = this.inbound.len().min(buf.remaining());
        buf.put_slice(&this.inbound[..taken]);
        this.inbound.advance(taken);
        if this.inbound.is_empty() {
            this.inbound = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadAhead {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, ReadAhead) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let stream = ReadAhead::new(listener.accept().await.unwrap().0);
        (client.unwrap(), stream)
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_the_buffer_is_freed() {
        let sent: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        for size in [1, 5, 4096, 16_437, 100_000] {
            let (mut client, mut stream) = pair().await;
            let (copy, mut received) = (sent.clone(), Vec::new());
            let sending = tokio::spawn(async move {
                client.write_all(&copy).await.unwrap();
                client
            });
            let mut part = vec![0; size];
            while received.len() < sent.len() {
                let read = stream.read(&mut part).await.unwrap();
                assert_ne!(read, 0, "{size}");
                received.extend_from_slice(&part[..read]);
            }
            assert!(received == sent, "{size}");
            assert_eq!(stream.inbound.capacity(), 0, "{size}");
            drop(sending.await.unwrap());
            assert_eq!(stream.read(&mut part).await.unwrap(), 0, "{size}");
        }
    }

    #[tokio::test]
    async fn many_small_reads_take_few_reads_of_the_socket() {
        let (mut client, mut stream) = pair().await;
        client.write_all(&[7; 20_000]).await.unwrap();
        stream.socket().readable().await.unwrap();
        let mut part = [0; 4096];
        stream.read_exact(&mut part).await.unwrap();
        stream.read_exact(&mut part).await.unwrap();
        assert_eq!(stream.inbound.len(), 20_000 - 2 * 4096);
    }
}
