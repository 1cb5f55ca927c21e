//! What Pingora wants to know about a stream.

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

use crate::downstream::client_connection::{Transport, Wire};

#[async_trait]
impl Shutdown for Wire {
    async fn shutdown(&mut self) {
        let _closed_already = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for Wire {
    fn id(&self) -> UniqueIDType {
        self.transport
            .as_ref()
            .map_or(-1, |transport| match transport {
                Transport::Tcp(stream) => stream.as_raw_fd(),
                Transport::Tls(stream) => stream.get_ref().0.as_raw_fd(),
            })
    }
}

impl Ssl for Wire {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        None
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        match &self.transport {
            Some(Transport::Tls(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Some(ALPN::H2)
            }
            Some(Transport::Tls(_) | Transport::Tcp(_)) | None => None,
        }
    }
}

impl GetTimingDigest for Wire {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Wire {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Wire {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(Arc::clone(&self.digest))
    }
}

impl Peek for Wire {}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire")
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}
