//! Upstreams and providers of a test: what they answer is declared, and what they receive is
//! recorded.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// Maximum wait for requests.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// An answer: status and JSON body.
pub type Reply = (u16, Value);

/// A request as received by an origin.
#[derive(Clone, Debug)]
pub struct Seen {
    /// HTTP method.
    pub method: String,
    /// Path and query of the request line.
    pub target: String,
    /// All headers, with lower-case names.
    pub headers: HeaderMap,
    /// The complete body.
    pub body: Bytes,
    /// When it was complete.
    pub at: Instant,
}

/// A server that records every request. Clones are the same server.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use postern_harness::{Client, Origin, json};
///
/// let origin = Origin::answering(&[("/token", 200, json!({"access_token": "t"}))]).await;
/// let answer = Client::new(&origin.url()).post_json("/token?a=b", &json!({"c": 1})).await;
/// assert_eq!(answer.expect(200).string("/access_token"), "t");
/// assert_eq!(origin.seen()[0].target, "/token?a=b");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    /// Answers to the next requests.
    next: Mutex<VecDeque<Reply>>,
    /// Parts of targets with their answers; the first match counts.
    rows: Mutex<Vec<(&'static str, Reply)>>,
    arrived: Notify,
    /// Answers are sent while this is true; requests are recorded before.
    responds: watch::Sender<bool>,
}

/// A server that reads each request completely and then does not answer as HTTP requires.
#[derive(Clone, Copy, Debug)]
pub enum BrokenOrigin {
    /// Writes these bytes, which need not be valid HTTP, and closes the connection.
    Writes(&'static [u8]),
    /// Keeps the connection open without a response.
    NeverResponds,
    /// Refuses connections.
    RefusesConnections,
}

impl Origin {
    /// Starts a server on a free loopback port. It answers with 200 and `{}`.
    pub async fn start() -> Self {
        Self::answering(&[]).await
    }

    /// Starts a server that answers a request by the first row of which the text is in its target, and
    /// with 200 and `{}` without one.
    pub async fn answering(rows: &[(&'static str, u16, Value)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket's address");
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            next: Mutex::default(),
            rows: Mutex::default(),
            arrived: Notify::new(),
            responds: watch::Sender::new(true),
        });
        let router = Router::new().fallback(serve);
        let router = router.with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let origin = Self { address, shared };
        origin.set_answers(rows);
        origin
    }

    /// Replaces the rows.
    pub fn set_answers(&self, rows: &[(&'static str, u16, Value)]) {
        let rows = rows.iter().cloned();
        let rows = rows.map(|(part, status, body)| (part, (status, body)));
        *self.shared.rows.lock() = rows.collect();
    }

    /// Adds an answer to the next request without one, before those of the rows.
    pub fn answer(&self, status: u16, body: Value) {
        self.shared.next.lock().push_back((status, body));
    }

    /// Holds all answers until [`Origin::resume`]; requests are recorded.
    pub fn pause(&self) {
        self.shared.responds.send_replace(false);
    }

    /// Sends the answers that were held, and those to further requests at once.
    pub fn resume(&self) {
        self.shared.responds.send_replace(true);
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all recorded requests.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// Waits until the recorded requests satisfy a condition, and returns them.
    pub async fn until(&self, timeout: Duration, holds: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let reached = async {
            loop {
                let arrived = self.shared.arrived.notified();
                if holds(&self.shared.seen.lock()) {
                    return;
                }
                arrived.await;
            }
        };
        let reached = tokio::time::timeout(timeout, reached).await;
        let seen = self.seen();
        let count = seen.len();
        assert!(reached.is_ok(), "not in {timeout:?}: {count} requests");
        seen
    }

    /// Waits until `count` requests have been recorded, and returns them.
    pub async fn wait_for(&self, count: usize) -> Vec<Seen> {
        self.until(WAIT_LIMIT, |seen| seen.len() >= count).await
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 64 << 20).await.unwrap_or_default();
    let target = parts.uri.path_and_query().map(ToString::to_string);
    let target = target.unwrap_or_default();
    let next = shared.next.lock().pop_front();
    let of_row = |rows: &[(&str, Reply)]| {
        let row = rows.iter().find(|(part, _)| target.contains(part));
        row.map(|(_, reply)| reply.clone())
    };
    let reply = next.or_else(|| of_row(&shared.rows.lock()));
    shared.seen.lock().push(Seen {
        method: parts.method.to_string(),
        target,
        headers: parts.headers,
        body,
        at: Instant::now(),
    });
    shared.arrived.notify_waiters();
    let _ = shared.responds.subscribe().wait_for(|it| *it).await;
    let (status, body) = reply.unwrap_or((200, json!({})));
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let json = [("content-type", "application/json")];
    (status, json, body.to_string()).into_response()
}

impl Seen {
    /// Returns all values of a header.
    pub fn all(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

impl BrokenOrigin {
    /// Starts the server on a free loopback port.
    pub async fn start(self) -> SocketAddr {
        self.start_at(([127, 0, 0, 1], 0).into()).await
    }

    /// Starts the server at an address.
    pub async fn start_at(self, address: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket's address");
        if !matches!(self, Self::RefusesConnections) {
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(self.serve(stream));
                }
            });
        }
        address
    }

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        // A peer that closes the connection expects no response.
        if read_request(&mut stream).await.is_err() {
            return;
        }
        match self {
            Self::Writes(bytes) => drop(stream.write_all(bytes).await),
            Self::NeverResponds | Self::RefusesConnections => std::future::pending().await,
        }
    }
}

/// Reads a head, and the body of the length that it declares.
async fn read_request(stream: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim_end().is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(())
}
