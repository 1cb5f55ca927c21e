//! The state of one request on its way through admission and forwarding.
//!
//! Each stage records its results here; later stages and the request record read them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::HeaderValue;
use postern_core::clock::Timestamp;
use postern_core::token::Caller;
use postern_core::{Code, Secret};
use prometheus::IntGauge;
use uuid::Uuid;

use crate::client_shares::BudgetPermit;
use crate::compression::BodyEncoder;
use crate::config::Route;
use crate::external_authorization::AddedHeaders;
use crate::routing::router::RouteIndex;
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::failure_cause::FailureCause;
use crate::telemetry::trace_context::TraceContext;
use crate::upstream::{InFlightPermit, UpstreamPool};

/// The state of a request.
pub(crate) struct RequestContext {
    /// The configuration in force when the request started, used until it ends.
    pub(crate) config: Arc<RuntimeConfig>,
    pub(crate) started: Instant,
    /// The same time on the wall clock. Both clocks are read once per request.
    pub(crate) start_time: Timestamp,
    pub(crate) id: Uuid,
    pub(crate) trace: TraceContext,
    /// Whether the target is canonical, so that its path may be logged.
    pub(crate) has_canonical_target: bool,
    pub(crate) route: Option<RouteIndex>,
    pub(crate) caller: Option<Caller>,
    /// The credential that was taken out of the request, until it is verified.
    pub(crate) credential: Option<Credential>,
    /// Whether the subprotocols that the client offers contained a token.
    pub(crate) offers_token: bool,
    /// The problem code of a rejection or failure.
    pub(crate) error_code: Option<Code>,
    /// The problem code of an upstream's error response, if it is known.
    pub(crate) upstream_code: Option<Code>,
    /// The problem code that a report-only policy would have rejected with.
    pub(crate) report_only_code: Option<Code>,
    /// The cause of a failure of the request.
    pub(crate) failure: Option<FailureCause>,
    /// Whether the client disconnected before the response was complete.
    pub(crate) client_aborted: bool,
    /// The client address, as reported by trusted proxies.
    pub(crate) client_address: Option<IpAddr>,
    /// Whether `client_address` is that of the client. If a trusted proxy does not know it, it is
    /// that of the proxy, for limits; access lists refuse it.
    pub(crate) is_client_known: bool,
    /// The host that a trusted proxy reports as the requested one, if a route accepts it.
    pub(crate) forwarded_host: Option<HeaderValue>,
    /// Whether the client uses TLS, to the gateway or to a trusted proxy.
    pub(crate) is_tls: bool,
    /// A hash of the client address, for consistent hashing and shares of upstreams.
    pub(crate) client_key: u64,
    /// Header fields that an external authorization service adds to the request.
    pub(crate) added_headers: Option<AddedHeaders>,
    /// The status of the tightest rate limit.
    pub(crate) rate_limit: Option<RateLimitStatus>,
    /// Whether the request was admitted to an upstream.
    pub(crate) is_forwarded: bool,
    pub(crate) attempt: Option<UpstreamAttempt>,
    /// The upstream that had no address for the request.
    pub(crate) unavailable: Option<Arc<UpstreamPool>>,
    pub(crate) attempts: u32,
    /// Time spent reading the request body before an address was chosen.
    pub(crate) body_read_time: Duration,
    pub(crate) upstream_latency_us: Option<u64>,
    /// The encoder of a compressed response.
    pub(crate) encoder: Option<Box<BodyEncoder>>,
    /// The copy of a request that is mirrored, until its body is complete.
    pub(crate) mirror: Option<Box<MirrorCapture>>,
    _in_flight: InFlightRequest,
}

/// A credential that was not in `Authorization`.
#[derive(Debug)]
pub(crate) enum Credential {
    /// An API key.
    ApiKey(Secret),
    /// What else would be a Bearer token.
    Token(Secret),
}

/// A request in the gauge of requests in flight, until it is dropped.
pub(crate) struct InFlightRequest(IntGauge);

/// The copy of a request whose body is being received.
#[derive(Debug)]
pub(crate) struct MirrorCapture {
    /// The slot among the mirrored requests of the route.
    pub(crate) slot: BudgetPermit,
    pub(crate) body: BytesMut,
}

/// The status of a rate limit, for the RateLimit fields (draft-ietf-httpapi-ratelimit-headers).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimitStatus {
    pub(crate) name: &'static str,
    pub(crate) limit: u32,
    pub(crate) window_s: u64,
    pub(crate) remaining: u32,
    pub(crate) reset_s: u64,
    /// Whether the route defines the limit; every response then reports it. Limits of the gateway
    /// are reported only when they are exceeded.
    pub(crate) is_route_limit: bool,
}

/// An attempt to forward a request to an upstream.
pub(crate) struct UpstreamAttempt {
    pub(crate) pool: Arc<UpstreamPool>,
    pub(crate) permit: Arc<InFlightPermit>,
    pub(crate) started: Instant,
}

impl InFlightRequest {
    pub(crate) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl RequestContext {
    pub(crate) fn new(
        config: Arc<RuntimeConfig>,
        id: Uuid,
        now: Timestamp,
        in_flight: InFlightRequest,
    ) -> Self {
        Self {
            config,
            started: Instant::now(),
            start_time: now,
            id,
            trace: TraceContext::default(),
            has_canonical_target: false,
            route: None,
            caller: None,
            credential: None,
            offers_token: false,
            error_code: None,
            upstream_code: None,
            report_only_code: None,
            failure: None,
            client_aborted: false,
            client_address: None,
            is_client_known: true,
            forwarded_host: None,
            is_tls: false,
            client_key: 0,
            added_headers: None,
            rate_limit: None,
            is_forwarded: false,
            attempt: None,
            unavailable: None,
            attempts: 0,
            body_read_time: Duration::ZERO,
            upstream_latency_us: None,
            encoder: None,
            mirror: None,
            _in_flight: in_flight,
        }
    }

    /// Returns the key of the client in shares of common resources; `None` if the address is that
    /// of a trusted proxy, which stands for many clients.
    pub(crate) fn client_share(&self) -> Option<u64> {
        let limits = &self.config.limits;
        let address = self.client_address?;
        (!limits.is_trusted_proxy(address)).then_some(self.client_key)
    }

    /// Returns the read timeout of this upstream.
    pub(crate) fn read_timeout(&self, pool: &UpstreamPool) -> Duration {
        self.route()
            .and_then(|route| route.settings.read_timeout)
            .unwrap_or(pool.config.read_timeout)
    }

    /// Returns whether another attempt may be made, after one that was sent or not.
    pub(crate) fn may_retry(&self, pool: &UpstreamPool, was_sent: bool) -> bool {
        let limit = self
            .route()
            .and_then(|route| route.settings.retries)
            .unwrap_or(pool.config.retries);
        pool.may_retry(self.client_share(), self.attempts, limit, was_sent)
    }

    /// Records that the upstream has completed its response, which frees its slot in flight.
    pub(crate) fn note_response_complete(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.permit.release();
        }
    }

    /// Returns the matched route.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.route
            .map(|index| &self.config.route_table.routes[index])
    }
}

impl RateLimitStatus {
    /// Returns the `RateLimit` header fields.
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
                "RateLimit-Policy",
                format!("\"{name}\";q={limit};w={window_s}"),
            ),
            ("RateLimit", format!("\"{name}\";r={remaining};t={reset_s}")),
        ]
    }
}
