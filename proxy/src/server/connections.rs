//! One connection from its first request to its last.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_proxy::HttpProxy;
use postern_common::{Code, Problem};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use crate::admission::rate_limits::at_door;
use crate::config::Limits;
use crate::downstream::client_connection::{HeadEvent, Opening, Wire};
use crate::downstream::response_buffers::ResponseBuffers;
use crate::forwarding::fast_path;
use crate::forwarding::fast_path::Carried;
use crate::forwarding::streaming_path::Gateway;
use crate::state::State;
use crate::telemetry::metrics::Metrics;

/// Serves connections: reads and checks each head, and carries the request or lets Pingora do so.
pub(crate) struct Connections {
    pub(super) proxy: Arc<HttpProxy<Gateway>>,
    pub(super) state: Arc<State>,
    /// Tells Pingora that no connection is to be kept.
    pub(super) stopping: watch::Sender<bool>,
}

impl Connections {
    pub(crate) fn new(proxy: HttpProxy<Gateway>, state: Arc<State>) -> Self {
        let (stopping, _) = watch::channel(false);
        Self {
            proxy: Arc::new(proxy),
            state,
            stopping,
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.state.metrics
    }

    pub(crate) fn response_buffers(&self) -> Arc<ResponseBuffers> {
        Arc::clone(&self.state.response_buffers)
    }

    /// The limits for connections that begin now.
    pub(crate) fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.state.live.load().limits)
    }

    /// From now on every response closes its connection.
    pub(crate) fn stop_keeping(&self) {
        self.state.stopping.store(true, Ordering::Relaxed);
        self.stopping.send_replace(true);
    }

    /// Serves requests until the client leaves, a head is refused, or the connection is idle and
    /// has to leave.
    pub(crate) async fn serve(&self, mut wire: Box<Wire>, h2c: bool, leaving: CancellationToken) {
        let opening = match wire.is_http2() {
            true => Opening::Http2,
            false if h2c => wire.opening(pin!(leaving.cancelled())).await,
            false => Opening::Http1,
        };
        match opening {
            Opening::Http1 => self.serve_http1(wire, leaving).await,
            Opening::Http2 => Box::pin(self.serve_http2(wire, leaving)).await,
            Opening::Late => self.refuse_late(&mut wire).await,
        }
    }

    async fn serve_http1(&self, mut wire: Box<Wire>, leaving: CancellationToken) {
        let stopping = self.stopping.subscribe();
        let mut leaving = pin!(leaving.cancelled());
        let mut first = true;
        loop {
            match wire.read_head(first, leaving.as_mut()).await {
                HeadEvent::Ready => {}
                HeadEvent::Closed => return,
                HeadEvent::Late => return self.refuse_late(&mut wire).await,
                HeadEvent::Refused(fault) => {
                    return self
                        .refuse(&mut wire, Problem::new(fault.code()).detail(fault.detail()))
                        .await;
                }
            }
            first = false;
            // In a box, so that a connection that waits has no room for it.
            match Box::pin(fast_path::serve(&self.state, &mut wire)).await {
                Carried::Kept => continue,
                Carried::Closed => return,
                Carried::NotHere => {}
            }
            let mut session = ServerSession::new_http1(wire as Stream);
            // The head is there, and the deadlines of a body are the wire's.
            session.set_read_timeout(None);
            let Some(reused) = self.proxy.process_new_http(session, &stopping).await else {
                return;
            };
            let (stream, _settings) = reused.consume();
            match stream.into_any().downcast() {
                Ok(back) => wire = back,
                Err(_) => return,
            }
        }
    }

    async fn refuse_late(&self, wire: &mut Wire) {
        let detail = "The head of the request did not arrive in time.";
        self.refuse(wire, Problem::new(Code::RequestTimeout).detail(detail))
            .await;
    }

    /// Answers what never became a request, and closes.
    async fn refuse(&self, wire: &mut Wire, problem: Problem) {
        let id = self.state.ids.next(self.state.clock.now());
        let limits = self.limits();
        let (code, rendered) = at_door(
            (&self.state, &limits),
            wire.client(),
            &problem,
            &id.to_string(),
        );
        let mut answer = format!(
            "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Length: {}\r\nX-Request-Id: {id}\r\n",
            rendered.status.as_u16(),
            rendered.status.canonical_reason().unwrap_or_default(),
            rendered.body.len(),
        )
        .into_bytes();
        for (name, value) in &rendered.headers {
            answer.extend_from_slice(name.as_str().as_bytes());
            answer.extend_from_slice(b": ");
            answer.extend_from_slice(value.as_bytes());
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"\r\n");
        answer.extend_from_slice(&rendered.body);
        wire.abandon();
        wire.watch()
            .set_deadline(limits.head_timeout, Instant::now());
        if wire.write_all(&answer).await.is_ok() {
            let _gone = wire.flush().await;
        }
        self.state.note_at_door(id, code, "HTTP/1.1", wire.client());
    }
}
