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
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::trace_context::TraceContext;
use crate::upstream::{InFlightPermit, UpstreamPool};

/// One request.
pub(crate) struct RequestContext {
    /// The configuration that it started under, and ends under.
    pub(crate) config: Arc<RuntimeConfig>,
    pub(crate) started: Instant,
    /// The same moment on the wall clock. Both are read once, and what is measured from them is not
    /// asked for again.
    pub(crate) started_at: Timestamp,
    pub(crate) id: Uuid,
    pub(crate) trace: TraceContext,
    /// Whether the target passed, so that its path may be written down.
    pub(crate) has_canonical_target: bool,
    pub(crate) route: Option<RouteIndex>,
    pub(crate) caller: Option<Caller>,
    /// Why it was error_code or failed.
    pub(crate) error_code: Option<Code>,
    /// Why the upstream error_code, if it said so by a code that is known.
    pub(crate) upstream_code: Option<Code>,
    /// What an report_only_code-only policy would have error_code with.
    pub(crate) report_only_code: Option<Code>,
    /// The client left before the answer was complete.
    pub(crate) client_aborted: bool,
    /// The client's address, as far as proxies in front can be believed.
    pub(crate) client_address: Option<IpAddr>,
    /// Whether the client speaks TLS, to this gateway or to a trusted proxy in front.
    pub(crate) is_tls: bool,
    /// Spreads the client over addresses, always the same way.
    pub(crate) client_key: u64,
    /// The tightest rate limit that the request met.
    pub(crate) rate_limit: Option<RateLimitStatus>,
    pub(crate) attempt: Option<UpstreamAttempt>,
    pub(crate) attempts: u32,
    /// How long the client took to send a body that was read before an address was chosen.
    pub(crate) body_read_time: Duration,
    pub(crate) upstream_latency_us: Option<u64>,
    pub(crate) body_bytes: u64,
}

/// What is left of a rate limit, for the RateLimit fields (draft-ietf-httpapi-ratelimit-headers).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimitStatus {
    pub(crate) name: &'static str,
    pub(crate) limit: u32,
    pub(crate) window_s: u64,
    pub(crate) remaining: u32,
    pub(crate) reset_s: u64,
    /// Whether the route has it: then every answer tells it. The limits of the whole gateway are
    /// told only to those who have run into them.
    pub(crate) is_route_limit: bool,
}

/// One try at an upstream.
pub(crate) struct UpstreamAttempt {
    pub(crate) pool: Arc<UpstreamPool>,
    pub(crate) permit: Arc<InFlightPermit>,
    pub(crate) started: Instant,
    /// Whether Pingora got a connection that had been idle, where it gets them from the pool of the
    /// fast path.
    pub(crate) is_reused: Option<Arc<AtomicBool>>,
}

impl UpstreamAttempt {
    /// Whether its connection had been idle, as far as Pingora does not know that itself.
    pub(crate) fn used_idle_connection(&self) -> bool {
        self.is_reused
            .as_ref()
            .is_some_and(|is_reused| is_reused.load(Ordering::Relaxed))
    }
}

impl RequestContext {
    pub(crate) fn new(config: Arc<RuntimeConfig>, id: Uuid, now: Timestamp) -> Self {
        Self {
            config,
            started: Instant::now(),
            started_at: now,
            id,
            trace: TraceContext::default(),
            has_canonical_target: false,
            route: None,
            caller: None,
            error_code: None,
            upstream_code: None,
            report_only_code: None,
            client_aborted: false,
            client_address: None,
            is_tls: false,
            client_key: 0,
            rate_limit: None,
            attempt: None,
            attempts: 0,
            body_read_time: Duration::ZERO,
            upstream_latency_us: None,
            body_bytes: 0,
        }
    }

    /// How long this upstream may be silent.
    pub(crate) fn read_timeout(&self, pool: &UpstreamPool) -> Duration {
        self.route()
            .and_then(|route| route.read_timeout)
            .unwrap_or(pool.config.read_timeout)
    }

    /// Whether one more attempt may be made at the upstream, after one of which something was sent
    /// or nothing.
    pub(crate) fn may_retry(&self, pool: &UpstreamPool, was_sent: bool) -> bool {
        let limit = self
            .route()
            .and_then(|route| route.retries)
            .unwrap_or(pool.config.retries);
        pool.may_retry(self.attempts, limit, was_sent)
    }

    /// The upstream has done with the request: nothing of its answer is still to come from there.
    pub(crate) fn note_response_complete(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.permit.release();
        }
    }

    /// The route that it takes.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.route
            .map(|index| &self.config.route_table.routes[index])
    }
}

impl RateLimitStatus {
    /// The fields that tell it.
    pub(crate) fn header_fields(self) -> [(&'static str, String); 2] {
        let Self {
            name,
            limit,
            window_s,
            remaining,
            reset_s,
            ..
        } = self;
        [
            (
                "RateLimit-RoutePolicy",
                format!("\"{name}\";q={limit};w={window_s}"),
            ),
            ("RateLimit", format!("\"{name}\";r={remaining};t={reset_s}")),
        ]
    }
}
