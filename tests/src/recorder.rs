//! Upstreams that record the requests that they receive.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// A request as received by the upstream.
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
}

/// An upstream with configurable responses that records every request.
#[derive(Clone, Debug)]
pub struct Recorder {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    answers: Mutex<Vec<(u16, Value)>>,
    arrived: Notify,
}

// === impl Recorder ===

impl Recorder {
    /// Starts the upstream on a free loopback port. It responds with 200 and `{}` by default.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free loopback port");
        let address = listener
            .local_addr()
            .expect("the address of a bound socket");
        let shared = Arc::new(Shared::default());
        let router = Router::new()
            .fallback(record)
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, shared }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a response, which is used for the next request without one, in order.
    pub fn answer(&self, status: u16, body: Value) {
        self.shared.answers.lock().push((status, body));
    }

    /// Returns all recorded requests.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// Waits until `count` requests have been recorded, and returns them.
    pub async fn wait_for(&self, count: usize) -> Vec<Seen> {
        loop {
            let arrived = self.shared.arrived.notified();
            let seen = self.seen();
            if seen.len() >= count {
                return seen;
            }
            arrived.await;
        }
    }
}

// === impl Seen ===

impl Seen {
    /// Returns all values of a header.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<String> {
        self.headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

async fn record(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 64 << 20).await.unwrap_or_default();
    let target = parts
        .uri
        .path_and_query()
        .map(ToString::to_string)
        .unwrap_or_default();
    let seen = Seen {
        method: parts.method.to_string(),
        target,
        headers: parts.headers,
        body,
    };
    shared.seen.lock().push(seen);
    shared.arrived.notify_waiters();
    let mut answers = shared.answers.lock();
    let (status, body) = if answers.is_empty() {
        (200, Value::Object(Default::default()))
    } else {
        answers.remove(0)
    };
    drop(answers);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    (
        status,
        [("content-type", "application/json")],
        body.to_string(),
    )
        .into_response()
}
