//! Connections that begin with a PROXY protocol header, which names the client.

use std::net::SocketAddr as InetAddress;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::upstreams::peer::PeerOptions;
use pingora_core::{Error, ErrorType, OrErr, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::message::proxy_protocol;
use crate::message::proxy_protocol::ProxyProtocolVersion;
use crate::upstream::http1_connection::connect_tcp;

/// The PROXY protocol header of a connection. Connections with the same header may be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionHeader(Arc<[u8]>);

/// Opens TCP connections that begin with a header, for TLS and health checks of Pingora.
#[derive(Debug)]
struct HeaderConnector {
    header: ConnectionHeader,
    connect_timeout: Duration,
}

// === impl ConnectionHeader ===

impl ConnectionHeader {
    /// Creates the header of requests of a client that has connected to `destination`. The source
    /// is unknown if there is no address.
    pub fn new(
        version: ProxyProtocolVersion,
        source: Option<InetAddress>,
        destination: Option<InetAddress>,
    ) -> Self {
        let addresses = source.zip(destination).map(Into::into);
        Self(proxy_protocol::write(version, addresses).into())
    }

    /// Creates the header of connections that the gateway opens on its own behalf.
    pub fn local(version: ProxyProtocolVersion) -> Self {
        Self(proxy_protocol::write(version, None).into())
    }

    /// Opens a TCP connection and sends the header within a timeout.
    pub(super) async fn connect(
        &self,
        address: InetAddress,
        within: Duration,
    ) -> Result<TcpStream> {
        let mut stream = connect_tcp(address, within).await?;
        let writing = tokio::time::timeout(within, stream.write_all(&self.0)).await;
        writing
            .or_err(
                ErrorType::ConnectTimedout,
                "sending a PROXY protocol header",
            )?
            .or_err(ErrorType::ConnectError, "sending a PROXY protocol header")?;
        Ok(stream)
    }

    /// Makes Pingora's connections with these options begin with the header, before TLS.
    pub fn set_on(&self, options: &mut PeerOptions, connect_timeout: Duration) {
        options.custom_l4 = Some(Arc::new(HeaderConnector {
            header: self.clone(),
            connect_timeout,
        }));
    }
}

#[async_trait]
impl Connect for HeaderConnector {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let Some(address) = address.as_inet() else {
            return Err(Error::new(ErrorType::SocketError));
        };
        let stream = self.header.connect(*address, self.connect_timeout).await?;
        Ok(stream.into())
    }
}
