//! Connections for upgrade requests.
//!
//! Pingora (issue 946) takes the end of the upgrade request's empty body for the end of the tunnel
//! if it reads the 101 response before it has forwarded that end. It polls both in one iteration,
//! so that a connection that is not readable in the iterations after a write lets the end of the
//! body through first.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::ALPN;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::upstreams::peer::HttpPeer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::UpstreamConfig;
use crate::upstream::checked_connection;
use crate::upstream::endpoint::InFlightPermit;
use crate::upstream::proxied::ConnectionHeader;

/// Polls after a write during which the connection is not readable. One would suffice, but the
/// runtime may end an iteration early.
const SKIPPED_POLLS: u8 = 2;

/// A separate group key, so that Pingora does not use other connections for tunnels.
const TUNNEL_GROUP_KEY: u64 = 1;

/// Prepares a peer for tunnels. Each connection carries one request, and responses before the 101
/// are checked by [`super::checked_connection`].
pub(crate) fn prepare(
    peer: &mut HttpPeer,
    permit: &Arc<InFlightPermit>,
    config: &UpstreamConfig,
    header: Option<ConnectionHeader>,
) {
    peer.options.alpn = ALPN::H1;
    let connector = checked_connection::CheckedConnector::new(peer, permit, config, header);
    peer.options.custom_l4 = Some(Arc::new(TunnelConnector(connector)));
    // The client side limits the idle time of tunnels.
    peer.options.read_timeout = None;
    peer.options.idle_timeout = Some(Duration::from_millis(1));
    peer.group_key = TUNNEL_GROUP_KEY;
}

#[derive(Debug)]
struct TunnelConnector(checked_connection::CheckedConnector);

/// A stream that is not readable during the polls after a write.
#[derive(Debug)]
struct DelayedReadStream<S> {
    stream: S,
    polls_to_skip: u8,
    /// Whether the stream was read since reads were last delayed, so that continuous writes do not
    /// block reading.
    read_since_skip: bool,
}

#[async_trait]
impl Connect for TunnelConnector {
    async fn connect(&self, _address: &SocketAddr) -> Result<Stream> {
        let stream = self.0.connect_for_upgrade().await?;
        Ok(VirtualSocketStream::new(Box::new(DelayedReadStream {
            stream,
            polls_to_skip: 0,
            read_since_skip: true,
        }))
        .into())
    }
}

impl<S: VirtualSocket> VirtualSocket for DelayedReadStream<S> {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        self.stream.set_socket_option(option)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DelayedReadStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.polls_to_skip > 0 {
            self.polls_to_skip -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.read_since_skip = true;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DelayedReadStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if std::mem::take(&mut self.read_since_skip) {
            self.polls_to_skip = SKIPPED_POLLS;
        }
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn continuous_writes_do_not_block_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let stream = TcpStream::connect(listener.local_addr().expect("bound"))
            .await
            .expect("connects");
        let (mut other, _) = listener.accept().await.expect("accepts");
        let mut tunnel = DelayedReadStream {
            stream,
            polls_to_skip: 0,
            read_since_skip: true,
        };
        tunnel.write_all(b"GET /").await.expect("writes");
        other.write_all(b"101").await.expect("writes");
        let mut space = [0; 16];
        assert_eq!(tunnel.read(&mut space).await.expect("reads"), 3);
        other.write_all(b"frames").await.expect("writes");
        tunnel.stream.readable().await.expect("something to read");
        // As in Pingora's loop: a poll for reading, then the next write.
        for _ in 0..100 {
            tunnel.write_all(b"x").await.expect("writes");
            tokio::select! {
                biased;
                read = tunnel.read(&mut space) => return assert_eq!(read.expect("reads"), 6),
                () = std::future::ready(()) => {}
            }
        }
        panic!("never read");
    }
}
