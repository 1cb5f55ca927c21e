//! Pingora's peers: how connections to the addresses of an upstream are opened.

use std::net::Ipv4Addr;
use std::time::Duration;

use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::upstreams::peer::{HttpPeer, PeerOptions};
use postern_core::exit::Exit;
use postern_http::upstream::PinnedCertificates;

use crate::config::UpstreamConfig;
use crate::upstream::tls_material::TlsMaterial;

/// Idle time after which TCP keep-alive probes are sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Interval between keep-alive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered keep-alive probes after which a connection is closed.
const KEEPALIVE_PROBES: usize = 3;

/// The settings of connections to an upstream.
#[derive(Debug)]
pub(super) struct PeerBuilder {
    config: UpstreamConfig,
    tls: Option<TlsMaterial>,
}

impl PeerBuilder {
    /// # Errors
    /// Status 64 if a TLS file cannot be read.
    pub(super) fn new(config: &UpstreamConfig) -> Result<Self, Exit> {
        Ok(Self {
            tls: config.tls.as_ref().map(TlsMaterial::load).transpose()?,
            config: config.clone(),
        })
    }

    /// Returns whether a TLS file was modified since it was read. Files that could not be read are
    /// tried again.
    pub(super) fn has_changed_files(&self) -> bool {
        let tls = self.tls.as_ref().zip(self.config.tls.as_ref());
        tls.is_some_and(|(material, config)| material.has_changed(config))
    }

    pub(super) fn pins(&self) -> PinnedCertificates {
        let tls = self.tls.as_ref();
        tls.map(|tls| tls.pins.clone()).unwrap_or_default()
    }

    /// Builds the Pingora peer of an address. All timeouts are set, because Pingora's defaults are
    /// unlimited.
    pub(super) fn build(&self, at: usize, address: SocketAddr) -> HttpPeer {
        let config = &self.config;
        let name = match &config.tls {
            None => String::new(),
            Some(_) => config.certificate_name(at).to_owned(),
        };
        let mut peer = HttpPeer::new((Ipv4Addr::UNSPECIFIED, 0), config.tls.is_some(), name);
        peer._address = address;
        let mut options = PeerOptions::new();
        options.tcp_keepalive = Some(TcpKeepalive {
            idle: KEEPALIVE_IDLE,
            interval: KEEPALIVE_INTERVAL,
            count: KEEPALIVE_PROBES,
            // Limits the time for which an upstream accepts nothing from a tunnel.
            #[cfg(target_os = "linux")]
            user_timeout: config.write_timeout,
        });
        options.connection_timeout = Some(config.connect_timeout);
        options.total_connection_timeout = Some(config.connect_timeout);
        options.idle_timeout = Some(config.idle_timeout);
        options.alpn = if config.http2 { ALPN::H2 } else { ALPN::H1 };
        if let Some(tls) = &self.tls {
            options.ca.clone_from(&tls.ca);
            // The signature of the handshake is verified, and then the certificate itself.
            options.verify_cert = tls.pins.is_empty();
            peer.client_cert_key.clone_from(&tls.certificate);
        }
        peer.options = options;
        peer
    }
}
