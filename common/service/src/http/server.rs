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

// === impl RequestTelemetry ===

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
///
/// # Errors
/// Exit status 69 with the address and the reason, such as an address in use.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Exit> {
    TcpListener::bind(address).await.map_err(|error| {
        let (is_used, port) = (error.kind() == ErrorKind::AddrInUse, address.port());
        let hint = match is_used {
            true => format!(
                "; stop the process that `ss -ltnp 'sport = :{port}'` names, or choose another address \
                 (`postern` has --port)"
            ),
            false => String::new(),
        };
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
        serve_connection(
            stream,
            peer,
            request_layer.clone(),
            limits,
            shutdown.clone(),
        )
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
        request_layer
            .clone()
            .handle(Peer(Some(peer)), request)
            .map(|mut response| {
                if shutdown.is_cancelled() {
                    response
                        .headers_mut()
                        .insert(CONNECTION, HeaderValue::from_static("close"));
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
    use crate::http::Json;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn started() -> (String, CancellationToken, tokio::task::JoinHandle<()>) {
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
        let served = tokio::spawn(serve(listener, router, Limits::default(), shutdown.clone()));
        (url, shutdown, served)
    }

    async fn problem(response: reqwest::Response) -> (u16, serde_json::Value) {
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        let id = response.headers()["x-request-id"]
            .to_str()
            .expect("id")
            .to_owned();
        let status = response.status().as_u16();
        let body: serde_json::Value = response.json().await.expect("JSON");
        assert_eq!(body["requestId"], id.as_str());
        (status, body)
    }

    #[tokio::test]
    async fn every_error_is_a_problem_with_the_request_id() {
        let (url, shutdown, served) = started().await;
        let client = reqwest::Client::new();
        let (status, _) = problem(
            client
                .get(format!("{url}/nowhere"))
                .send()
                .await
                .expect("a response"),
        )
        .await;
        assert_eq!(status, 404);
        let response = client
            .get(format!("{url}/echo"))
            .send()
            .await
            .expect("a response");
        let heads = (
            &response.headers()["allow"].clone(),
            &response.headers()[crate::http::PROBLEM_CODE].clone(),
        );
        assert_eq!(
            heads,
            (
                &"POST".parse().expect("text"),
                &"method_not_allowed".parse().expect("text")
            )
        );
        let (status, _) = problem(response).await;
        assert_eq!(status, 405);
        let (status, body) = problem(
            client
                .get(format!("{url}/panic"))
                .send()
                .await
                .expect("a response"),
        )
        .await;
        assert_eq!((status, &body["code"]), (500, &"internal_error".into()));
        let wrong = client
            .post(format!("{url}/echo"))
            .json(&serde_json::json!({"n": "x", "m": 1}));
        let (status, body) = problem(wrong.send().await.expect("a response")).await;
        assert_eq!(
            (status, body["errors"].as_array().map(Vec::len)),
            (400, Some(2))
        );
        drop(client);
        shutdown.cancel();
        served.await.expect("drained");
    }

    #[tokio::test]
    async fn shutdown_waits_for_the_request_in_flight() {
        let (url, shutdown, served) = started().await;
        let response = reqwest::Client::new()
            .post(format!("{url}/echo"))
            .json(&serde_json::json!({"n": 3}));
        assert_eq!(
            response
                .send()
                .await
                .expect("a response")
                .text()
                .await
                .expect("text"),
            "3"
        );
        shutdown.cancel();
        served.await.expect("drained");
    }

    const REQUEST: &[u8] = b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n";

    /// Sends a request and expects a response with `Connection: close` followed by the end of the
    /// stream.
    async fn last_answer(mut stream: TcpStream) {
        stream.write_all(REQUEST).await.expect("writes");
        let mut response = String::new();
        stream
            .read_to_string(&mut response)
            .await
            .expect("an response and an end");
        assert!(response.starts_with("HTTP/1.1 404 "), "{response:?}");
        assert!(
            response.contains("\r\nconnection: close\r\n"),
            "{response:?}"
        );
    }

    #[tokio::test]
    async fn new_connection_is_served_after_shutdown_begins() {
        let (url, shutdown, served) = started().await;
        let address = url.trim_start_matches("http://").to_owned();
        let first = TcpStream::connect(&address).await.expect("connects");
        // Connections are accepted in order, so the first one has been accepted after this
        // response.
        let other = reqwest::get(format!("{url}/nowhere"))
            .await
            .expect("a response");
        assert_eq!(other.status(), 404);
        drop(other);
        // No task runs between these two statements, so the connection is in the accept queue at
        // shutdown.
        let queued = std::net::TcpStream::connect(&address).expect("connects");
        shutdown.cancel();
        queued.set_nonblocking(true).expect("a socket");
        tokio::task::yield_now().await;
        last_answer(first).await;
        last_answer(TcpStream::from_std(queued).expect("a socket")).await;
        served.await.expect("drained");
    }

    #[tokio::test]
    async fn idle_connection_may_send_one_request_after_shutdown() {
        let (url, shutdown, served) = started().await;
        let mut kept = TcpStream::connect(url.trim_start_matches("http://"))
            .await
            .expect("connects");
        kept.write_all(REQUEST).await.expect("writes");
        let (mut response, mut idle) = (
            Vec::new(),
            TcpStream::connect(url.trim_start_matches("http://"))
                .await
                .expect("connects"),
        );
        while !response.ends_with(b"}") {
            assert_ne!(kept.read_buf(&mut response).await.expect("an response"), 0);
        }
        shutdown.cancel();
        tokio::task::yield_now().await;
        last_answer(kept).await;
        assert_eq!(
            idle.read(&mut [0; 1]).await.expect("an end"),
            0,
            "an idle connection is closed after the linger time"
        );
        served.await.expect("drained");
    }
}
