//! An empty Pingora proxy: the cost of the framework without any request processing.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::listeners::tls::TlsSettings;
use pingora::prelude::{HttpPeer, ProxyHttp, Result, Server, Session};
use pingora::proxy::{HttpProxy, http_proxy, http_proxy_service};
use pingora::server::configuration::ServerConf;

/// Forwards every request to one origin.
pub struct Passthrough {
    origin: SocketAddr,
}

#[async_trait]
impl ProxyHttp for Passthrough {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.origin, false, String::new())))
    }
}

/// Returns the proxy without a server.
#[must_use]
pub fn proxy(origin: SocketAddr) -> Arc<HttpProxy<Passthrough>> {
    let conf = Arc::new(ServerConf {
        ca_file: Some("/dev/null".to_owned()),
        ..ServerConf::default()
    });
    Arc::new(http_proxy(&conf, Passthrough { origin }))
}

/// A listener with TLS, which offers HTTP/2 and HTTP/1.1.
#[derive(Clone, Copy, Debug)]
pub struct TlsListener<'a> {
    /// Listening address.
    pub address: SocketAddr,
    /// Certificate and chain, PEM.
    pub certificate: &'a Path,
    /// Its private key, PEM.
    pub key: &'a Path,
}

/// Runs until the process is killed, on one worker thread.
///
/// # Errors
/// The certificate or the key cannot be read.
pub fn run(listen: SocketAddr, tls: TlsListener<'_>, origin: SocketAddr) -> io::Result<()> {
    let [certificate, key] = [tls.certificate, tls.key].map(|path| path.display().to_string());
    let mut settings = TlsSettings::intermediate(&certificate, &key).map_err(io::Error::other)?;
    settings.enable_h2();
    let conf = ServerConf {
        threads: 1,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Passthrough { origin });
    service.add_tcp(&listen.to_string());
    service.add_tls_with_settings(&tls.address.to_string(), None, settings);
    server.add_service(service);
    server.run_forever()
}
