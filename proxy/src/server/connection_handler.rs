//! The handling of one client connection, from its first request to its last.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora_proxy::HttpProxy;
use postern_core::{Code, Problem};
use postern_http::downstream::{
    ClientConnection, ConnectionSlot, DetectedProtocol, HeadEvent, Http1Session,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use crate::admission::rate_limits::reject_head;
use crate::config::ClientLimits;
use crate::forwarding::pipeline::GatewayProxy;
use crate::state::GatewayState;
use crate::telemetry::metrics::CloseReason;

/// Serves connections: reads and checks each head, and passes the request to Pingora.
pub(crate) struct ConnectionHandler {
    pub(super) proxy: Arc<HttpProxy<GatewayProxy>>,
    pub(super) state: Arc<GatewayState>,
    /// Notifies Pingora that connections must not be kept alive.
    pub(super) stopping: watch::Sender<bool>,
}

impl ConnectionHandler {
    pub(crate) fn new(proxy: HttpProxy<GatewayProxy>, state: Arc<GatewayState>) -> Self {
        let (stopping, _) = watch::channel(false);
        Self {
            proxy: Arc::new(proxy),
            state,
            stopping,
        }
    }

    pub(crate) fn limits(&self) -> Arc<ClientLimits> {
        Arc::clone(&self.state.runtime_config.load().limits)
    }

    /// Returns whether connections of a peer are accepted. One that the access list of the listener
    /// refuses is counted.
    pub(super) fn allows(&self, listener: SocketAddr, peer: IpAddr) -> bool {
        let config = self.state.runtime_config.load();
        let is_accepted = config.listener_access.accepts(listener, peer);
        if !is_accepted {
            self.close_reason(CloseReason::AddressNotAllowed);
        }
        is_accepted
    }

    /// Counts a connection that is closed before its first request.
    pub(super) fn close_reason(&self, reason: CloseReason) {
        tracing::debug!(reason = reason.as_str(), "client connection refused");
        self.state.metrics.count_closed(reason);
    }

    /// Makes every response close its connection.
    pub(crate) fn disable_keep_alive(&self) {
        self.state.is_draining.store(true, Ordering::Relaxed);
        self.stopping.send_replace(true);
    }

    /// Serves requests until the client disconnects, a head is rejected, or the connection is idle
    /// and `close_idle` is cancelled.
    pub(crate) async fn serve(
        &self,
        mut connection: Box<ClientConnection>,
        h2c: bool,
        close_idle: CancellationToken,
    ) {
        let protocol = match connection.is_http2() {
            true => DetectedProtocol::Http2,
            false if h2c => {
                connection
                    .detect_protocol(pin!(close_idle.cancelled()))
                    .await
            }
            false => DetectedProtocol::Http1,
        };
        match protocol {
            DetectedProtocol::Http1 => self.serve_http1(connection, close_idle).await,
            DetectedProtocol::Http2 => Box::pin(self.serve_http2(connection, close_idle)).await,
            DetectedProtocol::TimedOut => self.reject_slow_head(&mut connection).await,
        }
    }

    async fn serve_http1(
        &self,
        mut connection: Box<ClientConnection>,
        close_idle: CancellationToken,
    ) {
        let stopping = self.stopping.subscribe();
        let mut close_idle = pin!(close_idle.cancelled());
        let slot = ConnectionSlot::default();
        let mut is_first_request = true;
        loop {
            match connection
                .read_head(is_first_request, close_idle.as_mut())
                .await
            {
                HeadEvent::Ready => {}
                HeadEvent::Closed => return,
                HeadEvent::TimedOut => return self.reject_slow_head(&mut connection).await,
                HeadEvent::Rejected(fault) => {
                    let problem = Problem::new(fault.code()).detail(fault.detail());
                    return self.reject(&mut connection, problem).await;
                }
            }
            is_first_request = false;
            match self.serve_request(connection, &slot, &stopping).await {
                Some(back) => connection = back,
                None => return,
            }
            // An unread request body precedes the next request.
            if connection.skip_body().await.is_err() {
                return;
            }
        }
    }

    /// Serves the request whose head was read. Returns the connection if it can carry another.
    async fn serve_request(
        &self,
        connection: Box<ClientConnection>,
        slot: &ConnectionSlot,
        stopping: &watch::Receiver<bool>,
    ) -> Option<Box<ClientConnection>> {
        let session = Http1Session::new(connection, Arc::clone(slot))?;
        let session = ServerSession::new_custom(Box::new(session));
        self.proxy.process_new_http(session, stopping).await;
        slot.lock().take()
    }

    async fn reject_slow_head(&self, connection: &mut ClientConnection) {
        let detail = "The head of the request did not arrive in time.";
        let problem = Problem::new(Code::RequestTimeout).detail(detail);
        self.reject(connection, problem).await;
    }

    /// Writes a response to a rejected head and closes the connection.
    async fn reject(&self, connection: &mut ClientConnection, problem: Problem) {
        let id = self.state.ids.next_id(self.state.clock.now());
        let limits = self.limits();
        // The head of a trusted proxy's request was rejected, so that no field of it is trusted.
        let client = connection.peer_address();
        let client = client.filter(|client| !limits.http.is_trusted_proxy(*client));
        let (code, rendered) = reject_head(&self.state, &limits, client, &problem, &id.to_string());
        let mut response = format!(
            "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Length: {}\r\nX-Request-Id: {id}\r\n",
            rendered.status.as_u16(),
            rendered.status.canonical_reason().unwrap_or_default(),
            rendered.body.len(),
        )
        .into_bytes();
        for (name, value) in &rendered.headers {
            response.extend_from_slice(name.as_str().as_bytes());
            response.extend_from_slice(b": ");
            response.extend_from_slice(value.as_bytes());
            response.extend_from_slice(b"\r\n");
        }
        response.extend_from_slice(b"\r\n");
        response.extend_from_slice(&rendered.body);
        connection.linger_on_close();
        connection
            .deadline()
            .set_timeout(limits.http.head_timeout, Instant::now());
        if connection.write_all(&response).await.is_ok() {
            let _gone = connection.flush().await;
        }
        self.state
            .record_rejected_head(id, code, "HTTP/1.1", connection.peer_address());
    }
}
