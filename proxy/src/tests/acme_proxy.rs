//! A proxy in front of an ACME server that rewrites its answers.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;

/// What is done to the answers.
#[derive(Clone, Debug)]
pub(super) enum Rewrite {
    /// The directory does not end.
    Endless,
    /// Each answer has this `Retry-After`, and the certificate is empty.
    RetryAfterAndCertificate(String),
}

pub(super) struct AcmeProxy {
    pub(super) port: u16,
}

#[derive(Clone)]
struct ProxyState {
    client: reqwest::Client,
    upstream: u16,
    rewrite: Arc<Rewrite>,
}

/// Listens with TLS.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, peer) = self.listener.accept().await.expect("accepts");
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl AcmeProxy {
    /// Starts the proxy with the certificate `pebble` of the folder.
    pub(super) async fn start(files: &CertificateFolder, upstream: u16, rewrite: Rewrite) -> Self {
        let chain = CertificateDer::pem_file_iter(files.path("pebble.pem")).expect("reads");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                chain.collect::<Result<_, _>>().expect("certificates"),
                PrivateKeyDer::from_pem_file(files.path("pebble.key")).expect("a key"),
            )
            .expect("a configuration");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("bound").port();
        let ca = reqwest::Certificate::from_pem(files.authority.pem().as_bytes());
        let client = reqwest::Client::builder()
            .tls_certs_only([ca.expect("a certificate")])
            .no_proxy()
            .http1_only()
            .build()
            .expect("a client");
        let state = ProxyState {
            client,
            upstream,
            rewrite: Arc::new(rewrite),
        };
        let listener = TlsListener {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(tls)),
        };
        let router = axum::Router::new().fallback(forward).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port }
    }
}

/// Forwards a request with its `Host`, from which the server makes the URLs of its answers.
async fn forward(State(state): State<ProxyState>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let url = format!("https://127.0.0.1:{}{}", state.upstream, parts.uri);
    let body = to_bytes(body, 1 << 20).await.expect("a body");
    let response = state
        .client
        .request(parts.method, url)
        .headers(parts.headers)
        .body(body)
        .send()
        .await
        .expect("a response");
    let mut answer = Response::builder().status(response.status());
    for (name, value) in response.headers() {
        if name != "content-length" && name != "transfer-encoding" && name != "connection" {
            answer = answer.header(name, value);
        }
    }
    let body = response.bytes().await.expect("a body");
    let is_certificate = body.starts_with(b"-----BEGIN");
    let body = match &*state.rewrite {
        Rewrite::Endless => Body::from(vec![b' '; 1 << 20]),
        Rewrite::RetryAfterAndCertificate(delay) => {
            answer = answer.header("retry-after", delay);
            match is_certificate {
                true => Body::empty(),
                false => Body::from(body),
            }
        }
    };
    answer.body(body).expect("a response")
}
