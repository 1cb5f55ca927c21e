//! What is known about one request while it is on its way. It observes; decisions travel as types.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postern_common::Code;
use postern_common::clock::Timestamp;
use postern_common::token::Caller;
use uuid::Uuid;

use crate::config::Route;
use crate::routing::router::RouteIndex;
use crate::state::runtime_config::Live;
use crate::telemetry::trace_context::Trace;
use crate::upstream::{Pool, Ticket};

/// One request.
pub(crate) struct Context {
    /// The configuration that it began under, and ends under.
    pub(crate) live: Arc<Live>,
    pub(crate) started: Instant,
    /// The same moment on the wall clock. Both are read once, and what is measured from them is not
    /// asked for again.
    pub(crate) began_at: Timestamp,
    pub(crate) id: Uuid,
    pub(crate) trace: Trace,
    /// Whether the target passed, so that its path may be written down.
    pub(crate) is_canonical: bool,
    pub(crate) route: Option<RouteIndex>,
    pub(crate) caller: Option<Caller>,
    /// Why it was refused or failed.
    pub(crate) refused: Option<Code>,
    /// Why the upstream refused, if it said so by a code that is known.
    pub(crate) refused_behind: Option<Code>,
    /// What an audit-only policy would have refused with.
    pub(crate) audit: Option<Code>,
    /// The client left before the answer was complete.
    pub(crate) is_abandoned: bool,
    /// The client's address, as far as proxies in front can be believed.
    pub(crate) client: Option<IpAddr>,
    /// Whether the client speaks TLS, to this gateway or to a trusted proxy in front.
    pub(crate) is_tls: bool,
    /// Spreads the client over addresses, always the same way.
    pub(crate) client_key: u64,
    /// The tightest rate limit that the request met.
    pub(crate) quota: Option<Quota>,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) attempts: u32,
    /// How long the client took to send a body that was read before an address was chosen.
    pub(crate) upload: Duration,
    pub(crate) upstream_us: Option<u64>,
    pub(crate) body_bytes: u64,
}

/// What is left of a rate limit, for the RateLimit fields (draft-ietf-httpapi-ratelimit-headers).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) name: &'static str,
    pub(crate) most: u32,
    pub(crate) window_s: u64,
    pub(crate) remaining: u32,
    pub(crate) reset_s: u64,
    /// Whether the route has it: then every answer tells it. The limits of the whole gateway are
    /// told only to those who have run into them.
    pub(crate) is_of_route: bool,
}

/// One try at an upstream.
pub(crate) struct Attempt {
    pub(crate) pool: Arc<Pool>,
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) began: Instant,
    /// Whether Pingora got a connection that had been idle, where it gets them from the pool of the
    /// fast path.
    pub(crate) is_reused: Option<Arc<AtomicBool>>,
}

impl Attempt {
    /// Whether its connection had been idle, as far as Pingora does not know that itself.
    pub(crate) fn was_idle(&self) -> bool {
        self.is_reused
            .as_ref()
            .is_some_and(|is_reused| is_reused.load(Ordering::Relaxed))
    }
}

impl Context {
    pub(crate) fn new(live: Arc<Live>, id: Uuid, now: Timestamp) -> Self {
        Self {
            live,
            started: Instant::now(),
            began_at: now,
            id,
            trace: Trace::default(),
            is_canonical: false,
            route: None,
            caller: None,
            refused: None,
            refused_behind: None,
            audit: None,
            is_abandoned: false,
            client: None,
            is_tls: false,
            client_key: 0,
            quota: None,
            attempt: None,
            attempts: 0,
            upload: Duration::ZERO,
            upstream_us: None,
            body_bytes: 0,
        }
    }

    /// How long this upstream may be silent.
    pub(crate) fn read_timeout(&self, pool: &Pool) -> Duration {
        self.route()
            .and_then(|route| route.read_timeout)
            .unwrap_or(pool.config.read_timeout)
    }

    /// Whether one more attempt may be made at the upstream, after one of which something was sent
    /// or nothing.
    pub(crate) fn may_retry(&self, pool: &Pool, was_sent: bool) -> bool {
        let most = self
            .route()
            .and_then(|route| route.retries)
            .unwrap_or(pool.config.retries);
        pool.may_retry(self.attempts, most, was_sent)
    }

    /// The upstream has done with the request: nothing of its answer is still to come from there.
    pub(crate) fn note_answer_complete(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.ticket.release();
        }
    }

    /// The route that it takes.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.route.map(|index| &self.live.table.routes[index])
    }
}

impl Quota {
    /// The fields that tell it.
    pub(crate) fn fields(self) -> [(&'static str, String); 2] {
        let Self {
            name,
            most,
            window_s,
            remaining,
            reset_s,
            ..
        } = self;
        [
            (
                "RateLimit-Policy",
                format!("\"{name}\";q={most};w={window_s}"),
            ),
            ("RateLimit", format!("\"{name}\";r={remaining};t={reset_s}")),
        ]
    }
}
