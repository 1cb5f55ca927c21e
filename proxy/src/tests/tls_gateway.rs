//! A gateway with a TLS listener, and HTTP/2 clients for it.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::harness::{STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};
use super::tls::CertificateAuthority;

/// The gateway and the authority of its certificate.
pub(super) struct TlsGateway {
    pub(super) gateway: TestGateway,
    authority: CertificateAuthority,
    _certificates: tempfile::TempDir,
}

/// The response on a stream.
#[derive(Debug)]
pub(super) struct StreamResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl TlsGateway {
    pub(super) async fn start(behavior: OriginBehavior, limits: &str, upstream: &str) -> Self {
        let origin = TestOrigin::start(behavior).await;
        let address = origin.address;
        Self::before(
            origin,
            &format!("addresses = [\"{address}\"]\n{upstream}"),
            limits,
        )
        .await
    }

    pub(super) async fn before(origin: TestOrigin, upstream: &str, limits: &str) -> Self {
        Self::launch(origin, upstream, limits, "").await
    }

    /// `listen` are further lines of `[[listen]]`.
    pub(super) async fn listening(behavior: OriginBehavior, listen: &str) -> Self {
        let origin = TestOrigin::start(behavior).await;
        let upstream = format!("addresses = [\"{}\"]", origin.address);
        Self::launch(origin, &upstream, "", listen).await
    }

    async fn launch(origin: TestOrigin, upstream: &str, limits: &str, listen: &str) -> Self {
        let (folder, authority) = (
            tempfile::tempdir().expect("a folder"),
            CertificateAuthority::new(),
        );
        authority.write(folder.path());
        let tls = format!(
            "{listen}[listen.tls]\ncertificate = \"{0}/server.pem\"\nkey = \"{0}/server.key\"\n",
            folder.path().display()
        );
        let gateway = TestGateway::behind_tls(origin, upstream, limits, &tls).await;
        Self {
            gateway,
            authority,
            _certificates: folder,
        }
    }

    /// Opens a TLS connection that negotiates HTTP/2, without sending a preface.
    pub(super) async fn connect(&self) -> TlsStream<TcpStream> {
        self.encrypt(
            TcpStream::connect(self.gateway.address)
                .await
                .expect("connects"),
            "h2",
        )
        .await
    }

    /// Opens a TLS connection for another protocol, with a small receive buffer.
    pub(super) async fn connect_narrow(&self, protocol: &str) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4 << 10).expect("a size");
        self.encrypt(
            socket
                .connect(self.gateway.address)
                .await
                .expect("connects"),
            protocol,
        )
        .await
    }

    pub(super) async fn encrypt(&self, stream: TcpStream, protocol: &str) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        let pem = self.authority.pem();
        roots
            .add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate"))
            .expect("invalid authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .expect("a handshake")
    }

    /// Opens a connection with a conforming HTTP/2 client.
    pub(super) async fn client(&self) -> SendRequest<Bytes> {
        let (client, connection) = h2::client::handshake(self.connect().await)
            .await
            .expect("a handshake");
        tokio::spawn(connection);
        client.ready().await.expect("ready")
    }
}

/// Builds a request head with the authority `gate`.
pub(super) fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("https://gate{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}

/// Sends a request head. Returns the pending response and the stream for the body.
pub(super) fn send(
    client: &mut SendRequest<Bytes>,
    request: Request<()>,
    end: bool,
) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    client.send_request(request, end).expect("a stream")
}

/// Sends a request without a body and returns its response.
pub(super) async fn get(
    client: &mut SendRequest<Bytes>,
    path: &str,
    fields: &[(&str, &str)],
) -> StreamResponse {
    let (answer, _) = send(client, head("GET", path, fields), true);
    reply(answer).await.expect("a response")
}

/// Reads a whole response.
pub(super) async fn reply(answer: h2::client::ResponseFuture) -> Result<StreamResponse, h2::Error> {
    let reading = async {
        let (head, mut body): (http::response::Parts, RecvStream) =
            Response::into_parts(answer.await?);
        let mut whole = Vec::new();
        while let Some(part) = body.data().await {
            let part = part?;
            body.flow_control().release_capacity(part.len())?;
            whole.extend_from_slice(&part);
        }
        Ok(StreamResponse {
            status: head.status.as_u16(),
            headers: head.headers,
            body: whole.into(),
        })
    };
    tokio::time::timeout(STEP_TIMEOUT, reading)
        .await
        .expect("a response in time")
}

impl StreamResponse {
    pub(super) fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).expect("a problem");
        body["code"].as_str().expect("a code").to_owned()
    }
}
