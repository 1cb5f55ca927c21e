use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use futures_util::FutureExt;
use http::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::rim::Rim;
use super::{Limits, Peer};
use crate::exit::Exit;

/// What a socket's queue holds at most, as [`bind`] makes it (tokio's own number).
const BACKLOG: usize = 1024;

/// What every connection of a listener needs.
#[derive(Clone)]
struct Rules {
    limits: Limits,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Binds the address that a configuration names.
///
/// # Errors
/// Status 69, with the address and why: taken, not this machine's, not allowed.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Exit> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Exit::unavailable(format!("cannot listen on {address}: {error}")))
}

/// Serves HTTP/1.1 until the stop begins, then lets the requests in flight finish, for at most
/// `limits.drain`. The caller owns the socket and the stop.
///
/// A client that keeps connections may be sending a request on an idle one at the very moment of
/// the stop, and must not repeat it by itself unless its method is idempotent. So idle connections
/// stay open for `limits.linger`, and each answer from the stop on says `Connection: close`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let rim = Rim::new(router, limits);
    let permits = Arc::new(Semaphore::new(limits.connections));
    let rules = Rules {
        limits,
        shutdown,
        tasks: TaskTracker::new(),
    };
    loop {
        let accepted = tokio::select! {
            () = rules.shutdown.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        if let Some((stream, peer, permit)) = accepted {
            spawn_connection(stream, permit, (rim.clone(), peer), &rules);
        }
    }
    empty(listener, &permits, &rim, &rules);
    rules.tasks.close();
    if tokio::time::timeout(limits.drain, rules.tasks.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            drain_s = limits.drain.as_secs(),
            "stopped with requests in flight"
        );
    }
}

/// `None` when the system refused (no file descriptors, a reset): the next one is tried after a
/// breath.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, Peer, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, Peer(Some(peer)), permit)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}

/// Takes in what waits in the queue of a socket before it is closed: the system would reset it.
fn empty(listener: TcpListener, permits: &Arc<Semaphore>, rim: &Rim, rules: &Rules) {
    let Ok(listener) = listener.into_std() else {
        return;
    };
    for _ in 0..BACKLOG {
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
            return;
        };
        match listener.accept() {
            Ok((stream, peer)) => {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    spawn_connection(stream, permit, (rim.clone(), Peer(Some(peer))), rules);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // Of this one alone (accept(2)): others wait behind it.
            Err(error) => tracing::warn!(%error, "cannot accept a connection"),
        }
    }
}

fn spawn_connection(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    (rim, peer): (Rim, Peer),
    rules: &Rules,
) {
    let stop = rules.shutdown.clone();
    let service = service_fn(move |request| {
        let stop = stop.clone();
        rim.clone().answer(peer, request).map(move |mut response| {
            if stop.is_cancelled() {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        })
    });
    let _best_effort = stream.set_nodelay(true);
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(rules.limits.head_timeout)
        .max_buf_size(64 << 10);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let (shutdown, linger) = (rules.shutdown.clone(), rules.limits.linger);
    rules.tasks.spawn(async move {
        let mut connection = pin!(connection);
        let parting = async {
            shutdown.cancelled().await;
            tokio::time::sleep(linger).await;
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = parting => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
        drop(permit);
    });
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
    async fn every_refusal_is_a_problem_with_the_request_id() {
        let (url, shutdown, served) = started().await;
        let client = reqwest::Client::new();
        let (status, _) = problem(
            client
                .get(format!("{url}/nowhere"))
                .send()
                .await
                .expect("answer"),
        )
        .await;
        assert_eq!(status, 404);
        let answer = client
            .get(format!("{url}/echo"))
            .send()
            .await
            .expect("answer");
        let heads = (
            &answer.headers()["allow"].clone(),
            &answer.headers()[crate::http::CODE].clone(),
        );
        assert_eq!(
            heads,
            (
                &"POST".parse().expect("text"),
                &"method_not_allowed".parse().expect("text")
            )
        );
        let (status, _) = problem(answer).await;
        assert_eq!(status, 405);
        let (status, body) = problem(
            client
                .get(format!("{url}/panic"))
                .send()
                .await
                .expect("answer"),
        )
        .await;
        assert_eq!((status, &body["code"]), (500, &"internal_error".into()));
        let wrong = client
            .post(format!("{url}/echo"))
            .json(&serde_json::json!({"n": "x", "m": 1}));
        let (status, body) = problem(wrong.send().await.expect("answer")).await;
        assert_eq!(
            (status, body["errors"].as_array().map(Vec::len)),
            (400, Some(2))
        );
        drop(client);
        shutdown.cancel();
        served.await.expect("drained");
    }

    #[tokio::test]
    async fn a_stop_lets_the_request_in_flight_finish() {
        let (url, shutdown, served) = started().await;
        let answer = reqwest::Client::new()
            .post(format!("{url}/echo"))
            .json(&serde_json::json!({"n": 3}));
        assert_eq!(
            answer
                .send()
                .await
                .expect("answer")
                .text()
                .await
                .expect("text"),
            "3"
        );
        shutdown.cancel();
        served.await.expect("drained");
    }

    const ASK: &[u8] = b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n";

    /// An answer that says that the connection ends, and its end.
    async fn last_answer(mut stream: TcpStream) {
        stream.write_all(ASK).await.expect("writes");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("an answer and an end");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer:?}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer:?}");
    }

    #[tokio::test]
    async fn a_stop_lets_who_has_only_just_connected_ask() {
        let (url, shutdown, served) = started().await;
        let address = url.trim_start_matches("http://").to_owned();
        let young = TcpStream::connect(&address).await.expect("connects");
        // Whoever comes later is accepted later.
        let other = reqwest::get(format!("{url}/nowhere"))
            .await
            .expect("answer");
        assert_eq!(other.status(), 404);
        drop(other);
        // No task runs between these two: they wait in the queue when the stop begins.
        let queued = std::net::TcpStream::connect(&address).expect("connects");
        shutdown.cancel();
        queued.set_nonblocking(true).expect("a socket");
        tokio::task::yield_now().await;
        last_answer(young).await;
        last_answer(TcpStream::from_std(queued).expect("a socket")).await;
        served.await.expect("drained");
    }

    #[tokio::test]
    async fn idle_connection_may_bring_one_more_request_after_the_stop() {
        let (url, shutdown, served) = started().await;
        let mut kept = TcpStream::connect(url.trim_start_matches("http://"))
            .await
            .expect("connects");
        kept.write_all(ASK).await.expect("writes");
        let (mut answer, mut idle) = (
            Vec::new(),
            TcpStream::connect(url.trim_start_matches("http://"))
                .await
                .expect("connects"),
        );
        while !answer.ends_with(b"}") {
            assert_ne!(kept.read_buf(&mut answer).await.expect("an answer"), 0);
        }
        shutdown.cancel();
        tokio::task::yield_now().await;
        last_answer(kept).await;
        assert_eq!(
            idle.read(&mut [0; 1]).await.expect("an end"),
            0,
            "who asks nothing is let go after a while"
        );
        served.await.expect("drained");
    }
}
