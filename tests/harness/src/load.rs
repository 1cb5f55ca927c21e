//! Clients that send requests continuously while the server is restarted or reconfigured, and fail
//! the test if a request fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::raw_client::RawClient;

/// Timeout of each step, after which the test fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A request without a body: path and headers.
pub type LoadRequest = (&'static str, Vec<(&'static str, String)>);

/// Addresses and requests of the load.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address for plain HTTP.
    pub plain: SocketAddr,
    /// Address for TLS, and the authority of its certificate for `localhost`.
    pub tls: (SocketAddr, RootCertStore),
    /// Requests sent in turn; each must be answered with 200.
    pub requests: Vec<LoadRequest>,
}

/// Running clients.
#[derive(Debug)]
pub struct Load {
    done: Arc<AtomicBool>,
    counts: Arc<[Count; KINDS.len()]>,
    clients: JoinSet<()>,
}

/// Connection handling of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A new connection for each request.
    NewConnection,
    /// HTTP/1.1 keep-alive until the server sends `Connection: close`.
    KeepAlive,
    /// HTTP/1.1 keep-alive over TLS.
    KeepAliveTls,
    /// HTTP/2 until the server sends GOAWAY.
    Http2,
}

const KINDS: [Kind; 4] = [
    Kind::NewConnection,
    Kind::KeepAlive,
    Kind::KeepAliveTls,
    Kind::Http2,
];

/// Clients of each kind.
const CLIENTS_PER_KIND: usize = 2;

#[derive(Debug, Default)]
struct Count {
    served: AtomicU32,
    close_requests: AtomicU32,
}

/// A client.
struct LoadClient {
    kind: Kind,
    target: Arc<Target>,
    done: Arc<AtomicBool>,
    counts: Arc<[Count; KINDS.len()]>,
    next_request: usize,
}

impl Load {
    /// Starts two clients of each kind.
    pub fn start(target: Target) -> Self {
        let (done, counts, target) = (Arc::default(), Arc::default(), Arc::new(target));
        let mut clients = JoinSet::new();
        for kind in KINDS {
            for number in 0..CLIENTS_PER_KIND {
                let client = LoadClient {
                    kind,
                    target: Arc::clone(&target),
                    done: Arc::clone(&done),
                    counts: Arc::clone(&counts),
                    next_request: number,
                };
                clients.spawn(client.run());
            }
        }
        Self {
            done,
            counts,
            clients,
        }
    }

    /// Waits until `more` further requests of each kind have been served, so that a change takes
    /// place under load.
    pub async fn wait_for_served(&mut self, more: u32) {
        let until = served(&self.counts).map(|served| served + more);
        let serving = async {
            let is_missing = |(served, until): (u32, u32)| served < until;
            while served(&self.counts).into_iter().zip(until).any(is_missing) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            client = self.clients.join_next() => panic!("a request failed: {client:?}"),
            served = tokio::time::timeout(STEP_TIMEOUT, serving) => served.expect("requests are served in time"),
        }
    }

    /// Stops the clients. Returns the served requests of each kind, and how often the server asked
    /// a client to close its connection.
    pub async fn finish(mut self) -> [(Kind, u32, u32); KINDS.len()] {
        self.done.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("no client fails");
        }
        let served = served(&self.counts);
        std::array::from_fn(|kind| {
            let closed = self.counts[kind].close_requests.load(Ordering::Relaxed);
            (KINDS[kind], served[kind], closed)
        })
    }
}

fn served(counts: &[Count; KINDS.len()]) -> [u32; KINDS.len()] {
    std::array::from_fn(|kind| counts[kind].served.load(Ordering::Relaxed))
}

impl LoadClient {
    async fn run(mut self) {
        while !self.is_done() {
            match self.kind {
                Kind::NewConnection => self.request_on_new_connection().await,
                Kind::KeepAlive => {
                    self.keep(RawClient::open(self.target.plain).await).await;
                }
                Kind::KeepAliveTls => {
                    let stream = self.encrypted(b"http/1.1").await;
                    self.keep(RawClient::over(stream)).await;
                }
                Kind::Http2 => self.stream().await,
            }
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn next(&mut self) -> LoadRequest {
        self.next_request += 1;
        self.target.requests[self.next_request % self.target.requests.len()].clone()
    }

    fn count(&self) -> &Count {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        &self.counts[kind.expect("a known kind")]
    }

    fn record_served(&self) {
        self.count().served.fetch_add(1, Ordering::Relaxed);
    }

    fn record_close_request(&self) {
        self.count().close_requests.fetch_add(1, Ordering::Relaxed);
    }

    async fn request_on_new_connection(&mut self) {
        let text = request_text(&self.next(), "close");
        let answer = RawClient::send(self.target.plain, text.as_bytes()).await;
        let _ = answer.expect(200);
        self.record_served();
    }

    /// Uses one HTTP/1.1 connection until the server announces its end. An unannounced end fails
    /// the test.
    async fn keep(&mut self, mut connection: RawClient) {
        while !self.is_done() {
            let request = request_text(&self.next(), "keep-alive");
            let answer = connection.exchange(request.as_bytes()).await.expect(200);
            self.record_served();
            let told = answer.headers.get("connection");
            if told.is_some_and(|value| value == "close") {
                connection.closed().await;
                return self.record_close_request();
            }
        }
    }

    /// Uses one HTTP/2 connection. It must not end before a GOAWAY, which names the streams that
    /// are not processed.
    async fn stream(&mut self) {
        let stream = self.encrypted(b"h2").await;
        let handshake = h2::client::handshake(stream).await;
        let (mut client, connection) = handshake.expect("the handshake succeeds");
        tokio::spawn(connection);
        while !self.is_done() {
            client = match client.ready().await {
                Ok(client) => client,
                Err(error) => return self.expect_goaway(&error),
            };
            let (path, headers) = self.next();
            let mut request = Request::get(format!("https://localhost{path}"));
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let answer = match client.send_request(request.body(()).expect("a request"), true) {
                Ok((answer, _)) => answer,
                Err(error) => return self.expect_goaway(&error),
            };
            let answer = tokio::time::timeout(STEP_TIMEOUT, read_response(answer)).await;
            let answer = answer.expect("a response in time");
            // A GOAWAY with a lower last stream id means that the request was not processed and can
            // be retried on another connection (RFC 9113 section 6.8).
            let status = match answer {
                Ok(status) => status,
                Err(error) => return self.expect_goaway(&error),
            };
            assert_eq!(status, StatusCode::OK, "GET {path} over HTTP/2");
            self.record_served();
        }
    }

    #[track_caller]
    fn expect_goaway(&self, error: &h2::Error) {
        let graceful =
            error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
        assert!(graceful, "the connection ended without a GOAWAY: {error}");
        self.record_close_request();
    }

    async fn encrypted(&self, protocol: &[u8]) -> tokio_rustls::client::TlsStream<TcpStream> {
        let (address, roots) = &self.target.tls;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default TLS versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("localhost").expect("localhost is a DNS name");
        let stream = TcpStream::connect(address).await.expect("a connection");
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = tokio::time::timeout(STEP_TIMEOUT, handshake).await;
        stream.expect("in time").expect("the handshake succeeds")
    }
}

fn request_text((path, headers): &LoadRequest, connection: &str) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n{headers}\r\n")
}

/// Returns the status of a response after reading it completely.
async fn read_response(answer: h2::client::ResponseFuture) -> Result<StatusCode, h2::Error> {
    let (head, mut body) = answer.await?.into_parts();
    while let Some(part) = body.data().await {
        let part: Bytes = part.expect("the rest of the response body");
        body.flow_control().release_capacity(part.len())?;
    }
    Ok(head.status)
}
