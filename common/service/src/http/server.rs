//! An HTTP/1.1 server with graceful shutdown.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use tokio_util::sync::CancellationToken;

use axum::Router;
use futures_util::FutureExt;
use http::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::metrics::HttpMetrics;
use super::request_layer::RequestLayer;
use super::{Limits, Peer};
use crate::accept::serve_connections;
use postern_core::exit::Exit;
use postern_core::trace::Tracer;

/// What is recorded of each request.
#[derive(Clone, Debug, Default)]
pub struct RequestTelemetry {
    /// Metrics; `None` for none.
    pub metrics: Option<HttpMetrics>,
    /// Spans; `None` if tracing is off.
    pub tracer: Option<Tracer>,
}

impl RequestTelemetry {
    /// Records metrics, and spans if there is a tracer.
    #[must_use]
    pub fn new(metrics: HttpMetrics, tracer: Option<Tracer>) -> Self {
        Self {
            metrics: Some(metrics),
            tracer,
        }
    }
}

/// Binds the configured address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Exit> {
    TcpListener::bind(address).await.map_err(|error| {
        let (mut hint, port) = (String::new(), address.port());
        if error.kind() == ErrorKind::AddrInUse {
            hint = format!(
                "; stop the process that `ss -ltnp 'sport = :{port}'` names, or choose another address \
                 (`postern` has --port)"
            );
        }
        Exit::unavailable(format!("cannot listen on {address}: {error}{hint}"))
    })
}

/// Serves HTTP/1.1 until `shutdown` is cancelled, then waits for requests in flight, for at most
/// `limits.drain`.
///
/// A client may be sending a request on an idle keep-alive connection at the moment of the
/// shutdown, and must not retry it automatically unless its method is idempotent. Therefore idle
/// connections stay open for `limits.linger`, and every response after the shutdown has
/// `Connection: close`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let telemetry = RequestTelemetry::default();
    serve_observed(listener, router, limits, telemetry, shutdown).await;
}

/// Serves as [`serve`] does, counts the requests, and records a server span for each request of a
/// sampled trace.
pub async fn serve_observed(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    telemetry: RequestTelemetry,
    shutdown: CancellationToken,
) {
    let request_layer = RequestLayer::new(router, limits, telemetry);
    let serve = |stream, peer| {
        let (layer, stop) = (request_layer.clone(), shutdown.clone());
        serve_connection(stream, peer, layer, limits, stop)
    };
    if !serve_connections(listener, limits.connections, limits.drain, &shutdown, serve).await {
        tracing::warn!(
            drain_s = limits.drain.as_secs(),
            "drain timeout exceeded, requests in flight dropped"
        );
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    request_layer: RequestLayer,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let service = service_fn(|request| {
        let handling = request_layer.clone().handle(Peer(Some(peer)), request);
        handling.map(|mut response| {
            if shutdown.is_cancelled() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        })
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(64 << 10);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let linger_elapsed = async {
        shutdown.cancelled().await;
        tokio::time::sleep(limits.linger).await;
    };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = linger_elapsed => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection result");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Json, PROBLEM_CODE};
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server on a loopback port.
    struct Served {
        url: String,
        shutdown: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    impl Served {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
            let url = format!("http://{}", listener.local_addr().expect("address"));
            let router = Router::new()
                .route("/panic", get(|| async { panic!("on purpose") as &str }))
                .route(
                    "/echo",
                    post(|body: Json| async {
                        body.read(|object| object.required("n", |n| n.integer(0..=9)))
                            .map(|n| n.to_string())
                    }),
                );
            let shutdown = CancellationToken::new();
            let serving = serve(listener, router, Limits::default(), shutdown.clone());
            Self {
                url,
                shutdown,
                task: tokio::spawn(serving),
            }
        }

        async fn get(&self, path: &str) -> reqwest::Response {
            let response = reqwest::get(format!("{}{path}", self.url)).await;
            response.expect("a response")
        }

        async fn post(&self, body: serde_json::Value) -> reqwest::Response {
            let request = reqwest::Client::new().post(format!("{}/echo", self.url));
            request.json(&body).send().await.expect("a response")
        }

        async fn connect(&self) -> TcpStream {
            let connected = TcpStream::connect(self.url.trim_start_matches("http://")).await;
            connected.expect("connects")
        }

        async fn stop(self) {
            self.shutdown.cancel();
            self.task.await.expect("drained");
        }
    }

    async fn problem(response: reqwest::Response) -> (u16, serde_json::Value) {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        assert_eq!(headers["content-type"], "application/problem+json");
        let body: serde_json::Value = response.json().await.expect("JSON");
        assert_eq!(
            body["requestId"].as_str().expect("an id"),
            headers["x-request-id"]
        );
        assert_eq!(
            body["code"].as_str().expect("a code"),
            headers[PROBLEM_CODE]
        );
        (status, body)
    }

    #[tokio::test]
    async fn every_error_is_a_problem_with_the_request_id() {
        let served = Served::start().await;
        let response = served.get("/echo").await;
        assert_eq!(response.headers()["allow"], "POST");
        let (status, body) = problem(response).await;
        assert_eq!((status, &body["code"]), (405, &"method_not_allowed".into()));
        let (status, _) = problem(served.get("/nowhere").await).await;
        assert_eq!(status, 404);
        let (status, body) = problem(served.get("/panic").await).await;
        assert_eq!((status, &body["code"]), (500, &"internal_error".into()));
        let wrong = serde_json::json!({"n": "x", "m": 1});
        let (status, body) = problem(served.post(wrong).await).await;
        let mistakes = body["errors"].as_array().map(Vec::len);
        assert_eq!((status, mistakes), (400, Some(2)));
        served.stop().await;
    }

    const REQUEST: &[u8] = b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n";

    /// Sends a request and expects a response with `Connection: close` followed by the end of the
    /// stream.
    async fn last_answer(mut stream: TcpStream) {
        stream.write_all(REQUEST).await.expect("writes");
        let mut response = String::new();
        let ended = stream.read_to_string(&mut response).await;
        ended.expect("a response and an end");
        assert!(response.starts_with("HTTP/1.1 404 "), "{response:?}");
        let closes = response.contains("\r\nconnection: close\r\n");
        assert!(closes, "{response:?}");
    }

    #[tokio::test]
    async fn new_connection_is_served_after_shutdown_begins() {
        let served = Served::start().await;
        let first = served.connect().await;
        // Connections are accepted in order, so the first one has been accepted after this
        // response.
        assert_eq!(served.get("/nowhere").await.status(), 404);
        // No task runs between these two statements, so the connection is in the accept queue at
        // shutdown.
        let address = served.url.trim_start_matches("http://");
        let queued = std::net::TcpStream::connect(address).expect("connects");
        served.shutdown.cancel();
        queued.set_nonblocking(true).expect("a socket");
        tokio::task::yield_now().await;
        last_answer(first).await;
        last_answer(TcpStream::from_std(queued).expect("a socket")).await;
        served.stop().await;
    }

    #[tokio::test]
    async fn idle_connection_may_send_one_request_after_shutdown() {
        let served = Served::start().await;
        let mut kept = served.connect().await;
        kept.write_all(REQUEST).await.expect("writes");
        let (mut response, mut idle) = (Vec::new(), served.connect().await);
        while !response.ends_with(b"}") {
            assert_ne!(kept.read_buf(&mut response).await.expect("a response"), 0);
        }
        served.shutdown.cancel();
        tokio::task::yield_now().await;
        last_answer(kept).await;
        let end = idle.read(&mut [0; 1]).await.expect("an end");
        assert_eq!(end, 0, "an idle connection is closed after the linger time");
        served.stop().await;
    }
}
