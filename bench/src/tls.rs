//! The certificate of the proxies under test, and a client for HTTP/1.1 over TLS.

use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::http::{HttpClient, SOCKET_TIMEOUT};

/// Cipher suite of every TLS connection, in OpenSSL's notation, so that all peers encrypt alike.
pub(crate) const CIPHER_SUITE: &str = "TLS_AES_128_GCM_SHA256";

/// Key exchange of every TLS connection, in OpenSSL's notation.
pub(crate) const KEY_EXCHANGE: &str = "X25519";

/// ALPN identifier of HTTP/1.1.
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// ALPN identifier of HTTP/2.
pub(crate) const HTTP2: &[u8] = b"h2";

/// A blocking TLS stream.
pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Name in the certificate.
const SERVER_NAME: &str = "localhost";

/// Writes a P-256 certificate with its issuer (`server.pem`), its key (`server.key`) and both in
/// one file for HAProxy (`server-all.pem`), and the issuer alone for clients (`ca.pem`).
///
/// # Errors
/// The system has no random bytes, or the folder cannot be written.
pub(crate) fn write_certificate(folder: &Path) -> io::Result<()> {
    let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, key()?).map_err(io::Error::other)?;
    let key = key()?;
    let certificate = CertificateParams::new(vec![SERVER_NAME.to_owned()])
        .and_then(|params| params.signed_by(&key, &issuer))
        .map_err(io::Error::other)?;
    let chain = certificate.pem() + &issuer.pem();
    let key = key.serialize_pem();
    fs::write(folder.join("server-all.pem"), format!("{chain}{key}"))?;
    fs::write(folder.join("server.pem"), chain)?;
    fs::write(folder.join("server.key"), key)?;
    fs::write(folder.join("ca.pem"), issuer.pem())
}

fn key() -> io::Result<KeyPair> {
    KeyPair::generate().map_err(io::Error::other)
}

/// Returns the name that clients send and verify.
///
/// # Errors
/// Never: it is a valid name.
pub(crate) fn server_name() -> io::Result<ServerName<'static>> {
    ServerName::try_from(SERVER_NAME).map_err(io::Error::other)
}

/// Returns a client configuration with one protocol version, cipher suite and key exchange, which
/// trusts the certificate in `folder` and never resumes a session.
///
/// # Errors
/// The certificate cannot be read.
pub(crate) fn client_config(folder: &Path, alpn: &[u8]) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let authority =
        CertificateDer::from_pem_file(folder.join("ca.pem")).map_err(io::Error::other)?;
    roots.add(authority).map_err(io::Error::other)?;
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Opens a connection for HTTP/1.1 over TLS. The handshake takes place with the first request.
///
/// # Errors
/// The connection is refused.
pub(crate) fn connect(
    config: &Arc<ClientConfig>,
    address: SocketAddr,
) -> io::Result<HttpClient<TlsStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_nodelay(true)?;
    let session =
        ClientConnection::new(Arc::clone(config), server_name()?).map_err(io::Error::other)?;
    Ok(HttpClient::over(StreamOwned::new(session, stream), address))
}

/// Closes a connection with an alert, as RFC 8446 section 6.1 requires.
///
/// # Errors
/// The server has closed it before.
pub(crate) fn close(client: HttpClient<TlsStream>) -> io::Result<()> {
    let mut stream = client.into_stream();
    stream.conn.send_close_notify();
    stream.flush()
}
