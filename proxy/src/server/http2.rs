//! The handling of an HTTP/2 connection, from its preface to its last stream.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use h2::server::Builder;
use http::header::CONTENT_LENGTH;
use pingora::apps::HttpServerApp;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora_proxy::HttpProxy;
use postern_core::{Code, Problem};
use postern_http::client_shares::{ClientShare, ClientShares, client_limit};
use postern_http::downstream::{
    ClientConnection, ClientStream, DeadlineTimer, FIRST_REQUEST_GRACE, Http2ConnectionInfo,
    Http2Exchange,
};
use postern_http::message::MAX_FRAME_DATA_BYTES;
use postern_http::message::head::{HeadFault, http2};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admission::early_ends;
use crate::admission::rate_limits::{self, reject_head};
use crate::certificates::TlsClient;
use crate::config::ClientLimits;
use crate::downstream::session_ext;
use crate::forwarding::pipeline::GatewayProxy;
use crate::server::abuse_tracker::{ConnectionAbuseTracker, StreamEnd, Violation};
use crate::server::connection_handler::ConnectionHandler;
use crate::state::GatewayState;

/// Bytes of a response that are buffered per stream: one frame, so that no room for a part of the next is left.
/// Completed responses that the client does not read occupy this as well, a hundred per connection.
const SEND_BUFFER_BYTES: usize = MAX_FRAME_DATA_BYTES;

/// Bytes of a request body that a client may send before they are read (RFC 9113 section 5.2).
const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// The same for all streams of a connection: more than one stream, so that a stream whose upstream
/// accepts nothing does not block the others. A trusted proxy gets the sum of all streams, because
/// those of one client must not block those of another.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Budget for the overhead of DATA frames that are not read yet: each frame below 256 bytes counts
/// for the difference. Allows 1,024 frames of one byte. A trusted proxy gets it for each stream.
const DATA_FRAME_OVERHEAD_BYTES: usize = 256 << 10;

/// Streams that the HTTP/2 layer may reset because of errors of a client, over the life of the
/// connection: its default. There is no limit for trusted proxies.
const MAX_LOCAL_RESETS: usize = 1024;

/// Keeps the keys of shares of streams apart from those of rate limits.
const STREAM_SALT: u64 = 49;

/// Streams that a client may reset before they are accepted. A trusted proxy gets it for each stream.
const MAX_PENDING_RESETS: usize = 20;

/// The state that the streams of a connection share.
#[derive(Clone)]
struct StreamHandler {
    proxy: Arc<HttpProxy<GatewayProxy>>,
    state: Arc<GatewayState>,
    limits: Arc<ClientLimits>,
    stopping: watch::Receiver<bool>,
    connection: Http2ConnectionInfo,
    /// The streams of each client, if many share the connection.
    shares: Option<Arc<ClientShares>>,
}

struct StreamOrigin {
    /// `None` if it is not known.
    client: Option<IpAddr>,
    /// Whether too many of its streams have ended early, or are open.
    is_limited: bool,
    _share: Option<ClientShare>,
}

impl ConnectionHandler {
    /// Serves streams until the client disconnects or is idle for too long, or until the last
    /// stream has ended during shutdown.
    pub(super) async fn serve_http2(
        &self,
        mut client: Box<ClientConnection>,
        close_idle: CancellationToken,
    ) {
        let limits = self.limits();
        let connection_info = Http2ConnectionInfo::new(&client);
        let (peer, tls_client) = (client.peer_address(), session_ext::tls_client(&client));
        let is_shared = peer.is_some_and(|peer| limits.http.is_trusted_proxy(peer));
        let socket = Arc::clone(client.socket_digest());
        let has_backlog = client.switch_to_http2(is_shared);
        let handshaking = options(&limits, is_shared).handshake(client);
        let Ok(Ok(mut connection)) =
            tokio::time::timeout(limits.http.head_timeout, handshaking).await
        else {
            return;
        };
        let connected_at = Instant::now();
        let mut tracker = ConnectionAbuseTracker::new(&limits, is_shared, connected_at);
        let stream_handler = self.stream_handler(&limits, connection_info, is_shared);
        let mut streams = JoinSet::new();
        let mut stopping = self.stopping.subscribe();
        let mut stopping = pin!(stopping.wait_for(|is_stopping| *is_stopping));
        let mut idle_close = pin!(wait_for_idle_close(&close_idle, connected_at));
        let mut idle_timer = DeadlineTimer::default();
        loop {
            let idle_until = Instant::now() + tracker.idle_timeout;
            let must_stop = poll_fn(|cx| match tracker.has_opened_stream {
                true => stopping.as_mut().poll(cx).map(drop),
                false => idle_close.as_mut().poll(cx),
            });
            tokio::select! {
                // Ended streams are counted before further ones are accepted.
                biased;
                () = must_stop, if !tracker.is_goaway_sent() => {
                    connection.graceful_shutdown();
                    tracker.note_goaway(Instant::now());
                }
                Some(end) = streams.join_next() => tracker.note_stream_ended(end.unwrap_or(StreamEnd::Completed), Instant::now()),
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        let exchange = Http2Exchange::new(request, respond, Arc::clone(&socket));
                        tracker.note_stream_opened(&limits, Instant::now());
                        let origin = stream_handler.origin(&exchange, streams.len());
                        streams.spawn(stream_handler.clone().handle(exchange, origin));
                    }
                    None | Some(Err(_)) => break,
                },
                () = poll_fn(|cx| idle_timer.poll(idle_until, cx)), if streams.is_empty() => {
                    if tracker.is_done(&limits, has_backlog.load(Ordering::Relaxed), Instant::now()) {
                        break;
                    }
                    if !tracker.is_goaway_sent() {
                        connection.graceful_shutdown();
                        tracker.note_goaway(Instant::now());
                    }
                }
            }
            let is_revoked = |client: &Arc<TlsClient>| !client.is_accepted(self.state.clock.now());
            if !tracker.is_goaway_sent() && tls_client.as_ref().is_some_and(is_revoked) {
                connection.graceful_shutdown();
                tracker.note_goaway(Instant::now());
            }
            if let Some(violation) = tracker.violation(&limits, streams.len()) {
                let rapid_resets = &self.state.metrics.rapid_resets;
                rapid_resets.inc_by((violation == Violation::RapidReset).into());
                connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                tracker.note_goaway(Instant::now());
            }
        }
        // Closes the connection, which the remaining streams detect.
        drop(connection);
        while streams.join_next().await.is_some() {}
    }

    fn stream_handler(
        &self,
        limits: &Arc<ClientLimits>,
        connection: Http2ConnectionInfo,
        is_shared: bool,
    ) -> StreamHandler {
        StreamHandler {
            proxy: Arc::clone(&self.proxy),
            state: Arc::clone(&self.state),
            limits: Arc::clone(limits),
            stopping: self.stopping.subscribe(),
            connection,
            shares: is_shared.then(Arc::default),
        }
    }
}

/// Waits until a connection without requests must be closed. A client that has just connected gets
/// some time for its first request: GOAWAY before the first stream would make it fail instead of
/// moving it to another connection.
async fn wait_for_idle_close(close_idle: &CancellationToken, connected_at: Instant) {
    close_idle.cancelled().await;
    tokio::time::sleep_until((connected_at + FIRST_REQUEST_GRACE).into()).await;
}

impl StreamHandler {
    /// Returns the client of a stream, beside which `open` others are being served.
    fn origin(&self, exchange: &Http2Exchange, open: usize) -> StreamOrigin {
        let headers = &exchange.request().headers;
        let client = rate_limits::client_address(&self.limits, peer_address(exchange), headers);
        let mut is_limited =
            client.is_some_and(|client| early_ends::is_exceeded(&self.state, client));
        let share = self
            .shares
            .as_ref()
            .zip(client)
            .and_then(|(shares, client)| {
                let key = self.state.address_key(client, STREAM_SALT);
                let share =
                    shares.try_add(key, 1, client_limit(open, self.limits.streams as usize));
                is_limited |= share.is_none();
                share
            });
        StreamOrigin {
            client,
            is_limited,
            _share: share,
        }
    }

    async fn handle(self, exchange: Http2Exchange, origin: StreamOrigin) -> StreamEnd {
        let (client, is_limited) = (origin.client, origin.is_limited);
        let checked = http2::check(exchange.request(), &self.limits.http.head);
        if checked.is_err() || is_limited {
            let problem = match checked {
                Err(fault) if !is_limited => Problem::new(fault.code()).detail(fault.detail()),
                Ok(()) | Err(_) => Problem::new(Code::RateLimited).retry_after(1),
            };
            self.reject(exchange, client, &problem).await;
            let is_malformed = checked.is_err_and(HeadFault::is_malformed);
            if is_malformed && let Some(client) = client {
                early_ends::note(&self.state, client);
            }
            return match is_malformed {
                true => StreamEnd::Malformed,
                false => StreamEnd::Completed,
            };
        }
        let state = Arc::clone(&self.state);
        let stream = ClientStream::new(exchange, Arc::clone(&self.limits.http), &self.connection);
        let deadline = stream.deadline();
        let session = ServerSession::new_custom(Box::new(stream));
        self.proxy.process_new_http(session, &self.stopping).await;
        if deadline.is_client_aborted() {
            if let Some(client) = client {
                early_ends::note(&state, client);
            }
            StreamEnd::Reset
        } else {
            StreamEnd::Completed
        }
    }

    /// Answers a request that is not served. The other streams of the connection are not affected.
    async fn reject(&self, mut exchange: Http2Exchange, client: Option<IpAddr>, problem: &Problem) {
        let id = self.state.ids.next_id(self.state.clock.now());
        let (code, rendered) =
            reject_head(&self.state, &self.limits, client, problem, &id.to_string());
        self.state
            .record_rejected_head(id, code, "HTTP/2", peer_address(&exchange));
        let id = id.to_string();
        let Ok(mut head) = ResponseHeader::build(rendered.status, Some(5)) else {
            return;
        };
        // With a length, clients that are still sending know the end of the response. curl 7.88 ends
        // its stream after the response, and then does not notice that the stream is closed.
        let _always_fits = head.insert_header(CONTENT_LENGTH, rendered.body.len());
        for (name, value) in &rendered.headers {
            let _always_fits = head.insert_header(name, value);
        }
        let _always_fits = head.insert_header("X-Request-Id", id);
        if exchange.write_head(Box::new(head), false).is_ok() {
            let body = exchange.write_data(Bytes::from(rendered.body), true);
            let _gone_or_slow = tokio::time::timeout(self.limits.http.head_timeout, body).await;
            exchange.drain().await;
        }
    }
}

fn peer_address(exchange: &Http2Exchange) -> Option<IpAddr> {
    exchange
        .client_addr()?
        .as_inet()
        .map(std::net::SocketAddr::ip)
}

/// Returns limits on all memory that a client can occupy per connection.
fn options(limits: &ClientLimits, is_shared: bool) -> Builder {
    let mut options = Builder::new();
    let (connection_window, clients, local_resets) = match is_shared {
        true => {
            let window = limits.streams.saturating_mul(STREAM_WINDOW_BYTES);
            (window, limits.streams as usize, None)
        }
        false => (CONNECTION_WINDOW_BYTES, 1, Some(MAX_LOCAL_RESETS)),
    };
    options
        .max_concurrent_streams(limits.streams)
        // The HTTP/2 layer answers a header list above this size with a bare 431. Lists between the
        // limit and twice the limit are rejected as over HTTP/1.
        .max_header_list_size(u32::try_from(2 * limits.http.head.bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(connection_window)
        .max_concurrent_reset_streams(20)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS.saturating_mul(clients))
        .max_local_error_reset_streams(local_resets)
        .data_frame_budget(DATA_FRAME_OVERHEAD_BYTES.saturating_mul(clients));
    options
}
