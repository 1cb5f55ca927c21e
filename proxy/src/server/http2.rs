//! An HTTP/2 connection from its preface to its last stream.

use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, handshake};
use pingora_core::protocols::{Digest, Stream};
use pingora_proxy::HttpProxy;
use postern_common::Problem;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::rate_limits::at_door;
use crate::config::Limits;
use crate::downstream::client_connection::{Wire, YOUNG};
use crate::downstream::http2_stream;
use crate::downstream::http2_stream::ClientStream;
use crate::forwarding::streaming_path::Gateway;
use crate::message::grpc;
use crate::message::grpc::Status;
use crate::message::head::{HeadFault, http2};
use crate::server::abuse_tracker::{End, Offence, Standing};
use crate::server::connections::Connections;
use crate::state::State;

/// What is kept of an answer, in bytes, until the client takes it: one frame (RFC 9113 section
/// 4.2). Answers that are over but not taken keep it as well, a hundred of them on each connection.
const SEND_BUFFER: usize = 16 << 10;

/// What the frames of bodies may take beside their bytes, until the bodies are read: each that is
/// smaller than 256 bytes counts for what it lacks to that. 1,024 frames of one byte fit in.
const DATA_FRAME_BUDGET: usize = 256 << 10;

/// What every stream of a connection needs.
#[derive(Clone)]
struct Carrier {
    proxy: Arc<HttpProxy<Gateway>>,
    state: Arc<State>,
    limits: Arc<Limits>,
    stopping: watch::Receiver<bool>,
    connection: http2_stream::Connection,
}

impl Connections {
    /// Serves streams until the client leaves, is idle for too long, or the stop has let the last
    /// one end.
    pub(super) async fn serve_http2(&self, mut wire: Box<Wire>, leaving: CancellationToken) {
        let (limits, is_tls) = (self.limits(), wire.is_tls());
        let socket_digest = Some(wire.socket());
        let digest = Digest {
            ssl_digest: None,
            timing_digest: Vec::new(),
            proxy_digest: None,
            socket_digest,
        };
        let digest = Arc::new(digest);
        let backlog = wire.carry_frames();
        let shaking = handshake(wire as Stream, Some(options(&limits)));
        let Ok(Ok(mut connection)) = tokio::time::timeout(limits.head_timeout, shaking).await
        else {
            return;
        };
        let mut standing = Standing::new(&limits, Instant::now());
        let carrier = self.carrier(&limits, is_tls);
        let mut streams = JoinSet::new();
        loop {
            tokio::select! {
                // What has ended is counted before more is taken in.
                biased;
                () = self.parting(&standing, &leaving), if !standing.is_over() => {
                    connection.graceful_shutdown();
                    standing.end(Instant::now());
                }
                Some(end) = streams.join_next() => standing.note(end.unwrap_or(End::Over), Instant::now()),
                accepted = HttpSession::from_h2_conn(&mut connection, Arc::clone(&digest)) => match accepted {
                    Ok(Some(H2Accept::Session(session))) => {
                        standing.begin(&limits, Instant::now());
                        streams.spawn(carrier.clone().carry(session));
                    }
                    Ok(Some(H2Accept::Rejected)) => {
                        self.state.metrics.unheard.inc();
                        standing.note(End::Malformed, Instant::now());
                    }
                    Ok(None) | Err(_) => break,
                },
                () = tokio::time::sleep(standing.patience()), if streams.is_empty() => {
                    if standing.is_done(&limits, backlog.waits(), Instant::now()) {
                        break;
                    }
                    if !standing.is_over() {
                        connection.graceful_shutdown();
                        standing.end(Instant::now());
                    }
                }
            }
            if let Some(offence) = standing.offence(&limits, streams.len()) {
                if offence == Offence::Abandons {
                    self.state.metrics.rapid_resets.inc();
                }
                connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                standing.end(Instant::now());
            }
        }
        // Streams that are still open learn from this that their connection is gone.
        drop(connection);
        while streams.join_next().await.is_some() {}
    }

    /// Returns when the client is to be told to go. One that has only just connected is about to
    /// ask: a GOAWAY before its first stream would make its request fail, and not just go
    /// elsewhere.
    async fn parting(&self, standing: &Standing, leaving: &CancellationToken) {
        if standing.has_begun() {
            let mut stopping = self.stopping.subscribe();
            drop(stopping.wait_for(|stopping| *stopping).await);
        } else {
            leaving.cancelled().await;
            tokio::time::sleep_until((standing.born() + YOUNG).into()).await;
        }
    }

    fn carrier(&self, limits: &Arc<Limits>, is_tls: bool) -> Carrier {
        Carrier {
            proxy: Arc::clone(&self.proxy),
            state: Arc::clone(&self.state),
            limits: Arc::clone(limits),
            stopping: self.stopping.subscribe(),
            connection: http2_stream::Connection {
                is_tls,
                buffers: Arc::clone(&self.state.response_buffers),
            },
        }
    }
}

impl Carrier {
    async fn carry(self, session: HttpSession) -> End {
        if let Err(fault) = http2::check(session.req_header(), &self.limits.head) {
            self.refuse(session, fault).await;
            return End::Malformed;
        }
        let stream = ClientStream::new(session, self.limits, &self.connection);
        let watch = stream.watch();
        let session = ServerSession::new_custom(Box::new(stream));
        self.proxy.process_new_http(session, &self.stopping).await;
        if watch.is_gone() {
            End::Abandoned
        } else {
            End::Over
        }
    }

    /// Answers what is no request of ours; the other streams of its connection go on.
    async fn refuse(&self, mut session: HttpSession, fault: HeadFault) {
        let id = self.state.ids.next(self.state.clock.now());
        let problem = Problem::new(fault.code()).detail(fault.detail());
        let limits = (&*self.state, &*self.limits);
        let (code, rendered) = at_door(limits, client(&session), &problem, &id.to_string());
        self.state
            .note_at_door(id, code, "HTTP/2", client(&session));
        let id = id.to_string();
        if grpc::is_call(session.req_header()) {
            let message = if code == problem.code() {
                problem.message()
            } else {
                code.title()
            };
            if let Ok(mut head) = Status::of(code).head(message, &rendered.headers) {
                let _always_fits = head.insert_header("X-Request-Id", id);
                let _gone = session.write_response_header(Box::new(head), true);
            }
            return;
        }
        let Ok(mut head) = ResponseHeader::build(rendered.status, Some(4)) else {
            return;
        };
        for (name, value) in &rendered.headers {
            let _always_fits = head.insert_header(name, value);
        }
        let _always_fits = head.insert_header("X-Request-Id", id);
        if session.write_response_header(Box::new(head), false).is_ok() {
            let body = session.write_body(Bytes::from(rendered.body), true);
            let _gone_or_slow = tokio::time::timeout(self.limits.head_timeout, body).await;
        }
    }
}

fn client(session: &HttpSession) -> Option<std::net::IpAddr> {
    session
        .client_addr()?
        .as_inet()
        .map(std::net::SocketAddr::ip)
}

/// Bounds on everything that a client can make a connection hold.
fn options(limits: &Limits) -> H2Options {
    let mut options = H2Options::new();
    options
        .max_concurrent_streams(limits.streams)
        // A list above this is answered 431 by HTTP/2 itself, with nothing more: what is above the
        // limit but not beyond all measure is refused as over HTTP/1.
        .max_header_list_size(u32::try_from(2 * limits.head.bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .initial_window_size(64 << 10)
        .max_concurrent_reset_streams(20)
        .max_pending_accept_reset_streams(20)
        .data_frame_budget(DATA_FRAME_BUDGET);
    options
}
