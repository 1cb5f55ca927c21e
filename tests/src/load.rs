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

use crate::raw;

/// Timeout of each step, after which the test fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A request without a body: path and headers.
pub type Ask = (&'static str, Vec<(&'static str, String)>);

/// Addresses and requests of the load.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address for plain HTTP.
    pub plain: SocketAddr,
    /// Address for TLS, and the authority of its certificate for `localhost`.
    pub tls: (SocketAddr, RootCertStore),
    /// Requests sent in turn; each must be answered with 200.
    pub requests: Vec<Ask>,
}

/// Running clients.
#[derive(Debug)]
pub struct Load {
    done: Arc<AtomicBool>,
    counts: Arc<[Count; KINDS.len()]>,
    lanes: JoinSet<()>,
}

/// Connection handling of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A new connection for each request.
    Fresh,
    /// HTTP/1.1 keep-alive until the server sends `Connection: close`.
    Kept,
    /// HTTP/1.1 keep-alive over TLS.
    KeptTls,
    /// HTTP/2 until the server sends GOAWAY.
    Http2,
}

const KINDS: [Kind; 4] = [Kind::Fresh, Kind::Kept, Kind::KeptTls, Kind::Http2];

/// Clients of each kind.
const LANES: usize = 2;

#[derive(Debug, Default)]
struct Count {
    served: AtomicU32,
    told: AtomicU32,
}

/// A client.
struct Lane {
    kind: Kind,
    target: Arc<Target>,
    done: Arc<AtomicBool>,
    counts: Arc<[Count; KINDS.len()]>,
    asked: usize,
}

// === impl Load ===

impl Load {
    /// Starts two clients of each kind.
    #[must_use]
    pub fn start(target: Target) -> Self {
        let (done, counts, target) = (Arc::default(), Arc::default(), Arc::new(target));
        let mut lanes = JoinSet::new();
        for kind in KINDS {
            for number in 0..LANES {
                let (target, done, counts) =
                    (Arc::clone(&target), Arc::clone(&done), Arc::clone(&counts));
                lanes.spawn(
                    Lane {
                        kind,
                        target,
                        done,
                        counts,
                        asked: number,
                    }
                    .run(),
                );
            }
        }
        Self {
            done,
            counts,
            lanes,
        }
    }

    /// Waits until clients of each kind have been served `more` requests, so that a change takes
    /// place under load.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub async fn goes_on(&mut self, more: u32) {
        let until = served(&self.counts).map(|served| served + more);
        let serving = async {
            while served(&self.counts)
                .iter()
                .zip(until)
                .any(|(served, until)| *served < until)
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            lane = self.lanes.join_next() => panic!("a request failed: {lane:?}"),
            served = tokio::time::timeout(STEP_TIMEOUT, serving) => served.expect("requests are served in time"),
        }
    }

    /// Stops the clients. Returns the served requests of each kind, and how often the server asked
    /// a client to close its connection.
    ///
    /// # Panics
    /// If a request failed.
    pub async fn finish(mut self) -> [(Kind, u32, u32); KINDS.len()] {
        self.done.store(true, Ordering::Relaxed);
        while let Some(lane) = self.lanes.join_next().await {
            lane.expect("no client fails");
        }
        let served = served(&self.counts);
        std::array::from_fn(|kind| {
            (
                KINDS[kind],
                served[kind],
                self.counts[kind].told.load(Ordering::Relaxed),
            )
        })
    }
}

fn served(counts: &[Count; KINDS.len()]) -> [u32; KINDS.len()] {
    std::array::from_fn(|kind| counts[kind].served.load(Ordering::Relaxed))
}

// === impl Lane ===

impl Lane {
    async fn run(mut self) {
        while !self.is_done() {
            match self.kind {
                Kind::Fresh => self.ask_once().await,
                Kind::Kept => {
                    self.keep(raw::Connection::open(self.target.plain).await)
                        .await;
                }
                Kind::KeptTls => {
                    self.keep(raw::Connection::over(self.encrypted(b"http/1.1").await))
                        .await;
                }
                Kind::Http2 => self.stream().await,
            }
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn next(&mut self) -> Ask {
        self.asked += 1;
        self.target.requests[self.asked % self.target.requests.len()].clone()
    }

    fn count(&self) -> &Count {
        let kind = KINDS
            .iter()
            .position(|kind| *kind == self.kind)
            .expect("a known kind");
        &self.counts[kind]
    }

    fn note_served(&self) {
        self.count().served.fetch_add(1, Ordering::Relaxed);
    }

    fn note_told(&self) {
        self.count().told.fetch_add(1, Ordering::Relaxed);
    }

    async fn ask_once(&mut self) {
        let text = text(&self.next(), "close");
        let _ = raw::send(self.target.plain, text.as_bytes())
            .await
            .expect(200);
        self.note_served();
    }

    /// Uses one HTTP/1.1 connection until the server announces its end. An unannounced end fails
    /// the test.
    async fn keep(&mut self, mut connection: raw::Connection) {
        while !self.is_done() {
            let answer = connection
                .exchange(text(&self.next(), "keep-alive").as_bytes())
                .await
                .expect(200);
            self.note_served();
            if answer
                .headers
                .get("connection")
                .is_some_and(|value| value == "close")
            {
                connection.closed().await;
                return self.note_told();
            }
        }
    }

    /// Uses one HTTP/2 connection. It must not end before a GOAWAY, which names the streams that
    /// are not processed.
    async fn stream(&mut self) {
        let stream = self.encrypted(b"h2").await;
        let (mut client, connection) = h2::client::handshake(stream).await.expect("a handshake");
        tokio::spawn(connection);
        while !self.is_done() {
            client = match client.ready().await {
                Ok(client) => client,
                Err(error) => return self.told(&error),
            };
            let (path, headers) = self.next();
            let mut request = Request::get(format!("https://localhost{path}"));
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let answer = match client.send_request(request.body(()).expect("a request"), true) {
                Ok((answer, _)) => answer,
                Err(error) => return self.told(&error),
            };
            let answer = tokio::time::timeout(STEP_TIMEOUT, whole(answer))
                .await
                .expect("a response in time");
            // A GOAWAY with a lower last stream id means that the request was not processed and can
            // be retried on another connection (RFC 9113 section 6.8).
            let status = match answer {
                Ok(status) => status,
                Err(error) => return self.told(&error),
            };
            assert_eq!(status, StatusCode::OK, "GET {path} over HTTP/2");
            self.note_served();
        }
    }

    #[track_caller]
    fn told(&self, error: &h2::Error) {
        let graceful =
            error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
        assert!(graceful, "the connection ended without a GOAWAY: {error}");
        self.note_told();
    }

    async fn encrypted(&self, protocol: &[u8]) -> tokio_rustls::client::TlsStream<TcpStream> {
        let (address, roots) = &self.target.tls;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TcpStream::connect(address).await.expect("connects");
        let shaking = TlsConnector::from(Arc::new(config)).connect(name, stream);
        tokio::time::timeout(STEP_TIMEOUT, shaking)
            .await
            .expect("a TLS handshake in time")
            .expect("a handshake")
    }
}

fn text((path, headers): &Ask, connection: &str) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n{headers}\r\n")
}

/// Returns the status of a response after reading it completely.
async fn whole(answer: h2::client::ResponseFuture) -> Result<StatusCode, h2::Error> {
    let (head, mut body) = answer.await?.into_parts();
    while let Some(part) = body.data().await {
        let part: Bytes = part.expect("the rest of the response body");
        body.flow_control().release_capacity(part.len())?;
    }
    Ok(head.status)
}
