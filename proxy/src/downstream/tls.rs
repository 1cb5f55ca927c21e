//! TLS handshakes.

use std::io;
use std::sync::Arc;

use postern_http::downstream::ReadAhead;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificates::{ServerTls, TlsClient};

/// A connection after its TLS handshake.
pub(crate) struct AcceptedTls {
    pub(crate) stream: TlsStream<ReadAhead>,
    /// The client; `None` if its server name has no client authentication.
    pub(crate) client: Option<Arc<TlsClient>>,
}

/// Completes a TLS handshake with the certificate and client authentication of the server name.
/// Returns `None` for the handshake of an ACME server, which is for the certificate only (RFC 8737
/// section 3).
///
/// # Errors
/// The handshake failed; the client was sent an alert.
pub(crate) async fn accept(
    tls: &Arc<ServerTls>,
    stream: TcpStream,
) -> io::Result<Option<AcceptedTls>> {
    let hello = LazyConfigAcceptor::new(Acceptor::default(), ReadAhead::new(stream)).await?;
    if let Some(config) = tls.challenge(&hello.client_hello()).await {
        hello.into_stream(config).await?.shutdown().await?;
        return Ok(None);
    }
    let (config, client_auth) = tls.select(&hello.client_hello());
    let stream = hello.into_stream(config).await?;
    let chain = stream.get_ref().1.peer_certificates();
    let client = client_auth.map(|auth| Arc::new(TlsClient::identify(auth, chain)));
    Ok(Some(AcceptedTls { stream, client }))
}
