//! An HTTP/2 connection from its preface to its last stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, handshake};
use pingora_core::protocols::{Digest, Stream};
use pingora_proxy::HttpProxy;
use postern_common::{Problem, Shutdown};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::Connections;
use crate::config::Limits;
use crate::gateway::Gateway;
use crate::head::{HeadFault, http2};
use crate::state::State;
use crate::stream::ClientStream;
use crate::wire::Wire;

/// How many more streams than it let come to an end a client may give up. Above it, it only makes work (the rapid
/// reset of CVE-2023-44487).
const MOST_ABANDONED: usize = 100;

/// How many streams of a connection may be malformed before it ends.
const MOST_MALFORMED: usize = 32;

/// How long a client may take to close a connection that is over.
const GOODBYE: Duration = Duration::from_secs(1);

/// What every stream of a connection needs.
#[derive(Clone)]
struct Carrier {
    proxy: Arc<HttpProxy<Gateway>>,
    state: Arc<State>,
    limits: Arc<Limits>,
    stopping: watch::Receiver<bool>,
}

/// How a stream ended.
enum End {
    /// With its answer, or for a reason of ours.
    Over,
    /// The client gave it up.
    Abandoned,
}

/// How a connection stands.
struct Standing {
    /// Requests that were malformed.
    malformed: usize,
    /// Streams that the client gave up, less those that it let come to an end.
    abandoned: usize,
    /// Whether the client has been told to go.
    over: bool,
    /// How long the connection may have no stream.
    patience: Duration,
}

impl Connections {
    /// Serves streams until the client leaves, is idle for too long, or the stop has let the last one end.
    pub(super) async fn serve_http2(&self, mut wire: Box<Wire>, stop: Shutdown) {
        let limits = self.limits();
        let socket_digest = Some(wire.socket());
        let digest =
            Digest { ssl_digest: None, timing_digest: Vec::new(), proxy_digest: None, socket_digest };
        let digest = Arc::new(digest);
        wire.carry_frames();
        let shaking = handshake(wire as Stream, Some(options(&limits)));
        let Ok(Ok(mut connection)) = tokio::time::timeout(limits.head_timeout, shaking).await else { return };
        let mut standing =
            Standing { malformed: 0, abandoned: 0, over: false, patience: limits.head_timeout };
        let carrier = self.carrier(&limits);
        let mut streams = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.begun(), if !standing.over => {
                    connection.graceful_shutdown();
                    standing.end();
                }
                Some(end) = streams.join_next() => if standing.note(&end) {
                    self.state.metrics.rapid_resets.inc();
                    connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                    standing.end();
                },
                accepted = HttpSession::from_h2_conn(&mut connection, Arc::clone(&digest)) => match accepted {
                    Ok(Some(H2Accept::Session(session))) => {
                        standing.patience = if standing.over { GOODBYE } else { limits.idle_timeout };
                        streams.spawn(carrier.clone().carry(session));
                    }
                    Ok(Some(H2Accept::Rejected)) if standing.malformed < MOST_MALFORMED => {
                        self.state.metrics.unheard.inc();
                        standing.malformed += 1;
                    }
                    Ok(Some(H2Accept::Rejected) | None) | Err(_) => break,
                },
                () = tokio::time::sleep(standing.patience), if streams.is_empty() => {
                    if standing.over {
                        break;
                    }
                    connection.graceful_shutdown();
                    standing.end();
                }
            }
        }
        // Streams that are still open learn from this that their connection is gone.
        drop(connection);
        while streams.join_next().await.is_some() {}
    }

    fn carrier(&self, limits: &Arc<Limits>) -> Carrier {
        Carrier {
            proxy: Arc::clone(&self.proxy),
            state: Arc::clone(&self.state),
            limits: Arc::clone(limits),
            stopping: self.stopping.subscribe(),
        }
    }
}

impl Standing {
    fn end(&mut self) {
        self.over = true;
        self.patience = GOODBYE;
    }

    /// A stream has ended. Whether its client has given up too many.
    fn note(&mut self, end: &Result<End, JoinError>) -> bool {
        self.abandoned = match end {
            Ok(End::Abandoned) => self.abandoned + 1,
            Ok(End::Over) | Err(_) => self.abandoned.saturating_sub(1),
        };
        self.abandoned > MOST_ABANDONED && !self.over
    }
}

impl Carrier {
    async fn carry(self, session: HttpSession) -> End {
        if let Err(fault) = http2::check(session.req_header(), &self.limits.head) {
            self.refuse(session, fault).await;
            return End::Over;
        }
        let stream = ClientStream::new(session, self.limits);
        let watch = stream.watch();
        let session = ServerSession::new_custom(Box::new(stream));
        self.proxy.process_new_http(session, &self.stopping).await;
        if watch.is_gone() { End::Abandoned } else { End::Over }
    }

    /// Answers what is no request of ours; the other streams of its connection go on.
    async fn refuse(&self, mut session: HttpSession, fault: HeadFault) {
        let id = self.state.ids.next(&self.state.clock);
        let problem = Problem::new(fault.code()).detail(fault.detail());
        let rendered = problem.render(&id.to_string());
        self.state.note_at_door(id, problem.code(), "HTTP/2", client(&session));
        let Ok(mut head) = ResponseHeader::build(rendered.status, Some(4)) else { return };
        for (name, value) in &rendered.headers {
            let _always_fits = head.insert_header(name, value);
        }
        let _always_fits = head.insert_header("X-Request-Id", id.to_string());
        if session.write_response_header(Box::new(head), false).is_ok() {
            let body = session.write_body(Bytes::from(rendered.body), true);
            let _gone_or_slow = tokio::time::timeout(self.limits.head_timeout, body).await;
        }
    }
}

fn client(session: &HttpSession) -> Option<std::net::IpAddr> {
    session.client_addr()?.as_inet().map(std::net::SocketAddr::ip)
}

/// Bounds on everything that a client can make a connection hold.
fn options(limits: &Limits) -> H2Options {
    let mut options = H2Options::new();
    options
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head.bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(64 << 10)
        .initial_window_size(64 << 10)
        .max_concurrent_reset_streams(20)
        .max_pending_accept_reset_streams(20);
    options
}
