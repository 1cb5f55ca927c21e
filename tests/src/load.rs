//! Clients that ask again and again while something is done to the server, and fail the test when a
//! request fails.

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

/// How long something may take before the test fails rather than hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request without a body: path and header lines.
pub type Ask = (&'static str, Vec<(&'static str, String)>);

/// Where clients ask, and what.
#[derive(Clone, Debug)]
pub struct Target {
    /// Plain HTTP.
    pub plain: SocketAddr,
    /// TLS, with a certificate of this authority for `localhost`.
    pub tls: (SocketAddr, RootCertStore),
    /// Each of them in turn; every one is answered 200.
    pub requests: Vec<Ask>,
}

/// Running clients.
#[derive(Debug)]
pub struct Load {
    done: Arc<AtomicBool>,
    counts: Arc<[Count; KINDS.len()]>,
    lanes: JoinSet<()>,
}

/// How a client holds its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not at all: one connection for each request.
    Fresh,
    /// HTTP/1.1, kept until the server says `Connection: close`.
    Kept,
    /// The same over TLS.
    KeptTls,
    /// HTTP/2, kept until the server sends GOAWAY.
    Http2,
}

/// All of them.
const KINDS: [Kind; 4] = [Kind::Fresh, Kind::Kept, Kind::KeptTls, Kind::Http2];

/// Clients of each kind.
const LANES: usize = 2;

#[derive(Debug, Default)]
struct Count {
    served: AtomicU32,
    told: AtomicU32,
}

/// One client.
struct Lane {
    kind: Kind,
    target: Arc<Target>,
    done: Arc<AtomicBool>,
    counts: Arc<[Count; KINDS.len()]>,
    asked: usize,
}

// === impl Load ===

impl Load {
    /// Two clients of each kind.
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

    /// Waits until so many more have been served to clients of each kind: the change is really made
    /// under load.
    ///
    /// # Panics
    /// If they are not, within a minute.
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
            served = tokio::time::timeout(PATIENCE, serving) => served.expect("requests are served"),
        }
    }

    /// Ends the clients; for each kind how many requests were served, and how often a client was
    /// told to go.
    ///
    /// # Panics
    /// If a request failed.
    pub async fn finish(mut self) -> [(Kind, u32, u32); KINDS.len()] {
        self.done.store(true, Ordering::Relaxed);
        while let Some(lane) = self.lanes.join_next().await {
            lane.expect("no request fails");
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
                        .await
                }
                Kind::KeptTls => {
                    self.keep(raw::Connection::over(self.encrypted(b"http/1.1").await))
                        .await
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
            .expect("one of them");
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

    /// One HTTP/1.1 connection for as long as the server keeps it. It may not end unless it was
    /// told to.
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

    /// One HTTP/2 connection. It may not end before a GOAWAY, which says what is not answered any
    /// more before it is asked.
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
            let answer = tokio::time::timeout(PATIENCE, whole(answer))
                .await
                .expect("an answer in time");
            // A GOAWAY that leaves the stream out says that nothing was done for it: it is to be
            // asked again on another connection (RFC 9113 section 6.8).
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
        tokio::time::timeout(PATIENCE, shaking)
            .await
            .expect("a handshake in time")
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

/// The status of an answer that arrives to its end, once it has begun.
async fn whole(answer: h2::client::ResponseFuture) -> Result<StatusCode, h2::Error> {
    let (head, mut body) = answer.await?.into_parts();
    while let Some(part) = body.data().await {
        let part: Bytes = part.expect("the rest of an answer that has begun");
        body.flow_control().release_capacity(part.len())?;
    }
    Ok(head.status)
}
