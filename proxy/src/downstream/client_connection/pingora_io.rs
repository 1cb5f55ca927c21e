//! The stream traits of Pingora.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::AsyncWriteExt;

use crate::downstream::client_connection::{ClientConnection, ClientTransport};

#[async_trait]
impl Shutdown for ClientConnection {
    async fn shutdown(&mut self) {
        let _closed_already = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for ClientConnection {
    fn id(&self) -> UniqueIDType {
        self.transport
            .as_ref()
            .map_or(-1, |transport| match transport {
                ClientTransport::Tcp(stream) => stream.as_raw_fd(),
                ClientTransport::Tls(stream) => stream.get_ref().0.socket().as_raw_fd(),
            })
    }
}

impl Ssl for ClientConnection {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        None
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        match &self.transport {
            Some(ClientTransport::Tls(stream))
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") =>
            {
                Some(ALPN::H2)
            }
            Some(ClientTransport::Tls(_) | ClientTransport::Tcp(_)) | None => None,
        }
    }
}

impl GetTimingDigest for ClientConnection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientConnection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientConnection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(Arc::clone(&self.digest))
    }
}

impl Peek for ClientConnection {}

impl std::fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnection")
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}
