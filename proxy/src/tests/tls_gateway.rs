//! A gateway with a TLS listener, and HTTP/2 clients for it.

use h2::{RecvStream, SendStream};
use http::Request;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

use super::*;

pub(super) struct TlsGateway {
    pub(super) gateway: TestGateway,
    files: CertificateFolder,
}

#[derive(Debug)]
pub(super) struct StreamResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl TlsGateway {
    pub(super) async fn start(behavior: OriginBehavior, limits: &str, upstream: &str) -> Self {
        Self::launch(behavior, upstream, limits, "").await
    }

    /// `listen` are further lines of `[[listen]]`.
    pub(super) async fn listening(behavior: OriginBehavior, listen: &str) -> Self {
        Self::launch(behavior, "", "", listen).await
    }

    async fn launch(behavior: OriginBehavior, upstream: &str, limits: &str, listen: &str) -> Self {
        let files = CertificateFolder::new();
        files.issue("server", &["localhost"]);
        let tls = format!("{listen}[listen.tls]\n{}", files.keys("server"));
        let gateway = TestGateway::behind_tls(behavior, upstream, limits, &tls).await;
        Self { gateway, files }
    }

    /// Opens a TLS connection that negotiates HTTP/2, without sending a preface.
    pub(super) async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = self.gateway.connect().await.stream;
        self.encrypt(stream, "h2").await
    }

    /// Opens a TLS connection for another protocol, with a small receive buffer.
    pub(super) async fn connect_narrow(&self, protocol: &str) -> TlsStream<TcpStream> {
        let stream = connect_narrow(self.gateway.address, 4 << 10).await;
        self.encrypt(stream, protocol).await
    }

    pub(super) async fn encrypt(&self, stream: TcpStream, protocol: &str) -> TlsStream<TcpStream> {
        let handshake = self.files.handshake(stream, "localhost", protocol, None);
        handshake.await
    }

    /// Opens a connection with a conforming HTTP/2 client.
    pub(super) async fn client(&self) -> SendRequest<Bytes> {
        self.client_until_end().await.0
    }

    /// Returns the task of the connection as well, which ends with GOAWAY and `NO_ERROR`.
    pub(super) async fn client_until_end(
        &self,
    ) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
        let shaking = h2::client::handshake(self.connect().await);
        let (client, connection) = shaking.await.expect("a handshake");
        let ended = tokio::spawn(connection);
        (client.ready().await.expect("ready"), ended)
    }
}

/// Builds a request head with the authority `gate`.
pub(super) fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let url = format!("https://gate{path}");
    let mut request = Request::builder().method(method).uri(url);
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
pub(super) async fn call(
    client: &mut SendRequest<Bytes>,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> StreamResponse {
    let (answer, _) = send(client, head(method, path, fields), true);
    reply(answer).await.expect("a response")
}

pub(super) async fn get(
    client: &mut SendRequest<Bytes>,
    path: &str,
    fields: &[(&str, &str)],
) -> StreamResponse {
    call(client, "GET", path, fields).await
}

/// Sends a request and returns the body of its response, of which nothing has been read.
pub(super) async fn open_body(client: &mut SendRequest<Bytes>, path: &str) -> RecvStream {
    let (answer, _) = send(client, head("GET", path, &[]), true);
    answer.await.expect("a head").into_body()
}

/// Sends the head of a POST request with a body of this length, and a part of it.
pub(super) fn upload(
    client: &mut SendRequest<Bytes>,
    path: &str,
    length: usize,
    part: impl Into<Bytes>,
) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    let digits = length.to_string();
    let part = part.into();
    let is_whole = part.len() == length;
    let request = head("POST", path, &[("content-length", &digits)]);
    let (answer, mut body) = send(client, request, false);
    if !part.is_empty() {
        body.send_data(part, is_whole).expect("sends");
    }
    (answer, body)
}

pub(super) async fn reply(answer: h2::client::ResponseFuture) -> Result<StreamResponse, h2::Error> {
    let reading = async {
        let (head, mut body) = answer.await?.into_parts();
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
    in_time(reading).await
}

pub(super) async fn status(answer: h2::client::ResponseFuture) -> u16 {
    reply(answer).await.expect("a response").status
}

impl StreamResponse {
    /// Returns the status and the code of a problem, such as `404 not_found`.
    pub(super) fn problem(&self) -> String {
        format!("{} {}", self.status, self.code())
    }

    pub(super) fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).expect("a problem");
        body["code"].as_str().expect("a code").to_owned()
    }
}
