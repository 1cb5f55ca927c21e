//! The stages of one request on its way through admission and forwarding.
//!
//! Every request is a [`ReceivedRequest`], which admission completes and which does not change afterwards.
//! Forwarding takes an [`AdmittedRequest`], which has a route and an upstream, and makes
//! [`UpstreamAttempt`]s. The [`RequestContext`] owns what the request record reads at the end.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use postern_core::Code;
use postern_core::clock::Timestamp;
use postern_core::token::Caller;
use postern_http::compression::BodyEncoder;
use prometheus::IntGauge;
use uuid::Uuid;

use crate::config::Route;
use crate::external_authorization::AddedHeaders;
use crate::routing::router::RouteIndex;
use crate::state::GatewayState;
use crate::state::runtime_config::RuntimeConfig;
use crate::telemetry::failure_cause::FailureCause;
use crate::telemetry::metrics::NO_ROUTE;
use crate::telemetry::trace_context::TraceContext;
use crate::upstream::{Endpoint, InFlightPermit, UpstreamPool};

/// The context of a request in Pingora's hooks.
pub(crate) struct RequestContext {
    pub(crate) request: ReceivedRequest,
    /// What forwarding has done; `None` unless the request was admitted to an upstream.
    pub(crate) forwarding: Option<ForwardingRecord>,
    pub(crate) error_code: Option<Code>,
    pub(crate) failure: Option<FailureCause>,
    /// Whether the client disconnected before the response was complete.
    pub(crate) client_aborted: bool,
}

/// A request, and what admission has found out about it.
pub(crate) struct ReceivedRequest {
    /// The configuration in force when the request started, used until it ends.
    pub(crate) config: Arc<RuntimeConfig>,
    pub(crate) started: Instant,
    /// The same time on the wall clock. Both clocks are read once per request.
    pub(crate) start_time: Timestamp,
    pub(crate) id: Uuid,
    pub(crate) trace: TraceContext,
    /// The client address, as reported by trusted proxies.
    pub(crate) client_address: Option<IpAddr>,
    /// Whether `client_address` is that of the client. If a trusted proxy does not know it, it is
    /// that of the proxy, for limits; access lists refuse it.
    pub(crate) is_client_known: bool,
    /// A hash of the client address, for limits and shares of upstreams.
    pub(crate) client_key: u64,
    /// The host that a trusted proxy reports as the requested one, if a route accepts it.
    pub(crate) forwarded_host: Option<HeaderValue>,
    /// Whether the client uses TLS, to the gateway or to a trusted proxy.
    pub(crate) is_tls: bool,
    /// Whether the target is canonical, so that its path may be logged.
    pub(crate) has_canonical_target: bool,
    /// The matching route, also of a request that is rejected.
    pub(crate) route: Option<RouteIndex>,
    /// The caller; `None` on public routes and without a valid credential.
    pub(crate) caller: Option<Caller>,
    /// The code with which a route with `report_only` would have rejected the request.
    pub(crate) reported: Option<Code>,
    _in_flight: GaugeGuard,
}

pub(crate) struct Admission {
    pub(crate) route: RouteIndex,
    /// Header fields that an external authorization service adds to the request.
    pub(crate) added_headers: Option<AddedHeaders>,
    /// Whether the subprotocols that the client offers contained a token.
    pub(crate) offers_token: bool,
}

pub(crate) struct AdmittedRequest<'r> {
    pub(crate) state: &'r GatewayState,
    pub(crate) request: &'r ReceivedRequest,
    pub(crate) route: &'r Route,
    /// The upstream that the weights of the route have chosen.
    pub(crate) pool: &'r Arc<UpstreamPool>,
    pub(crate) admission: Admission,
}

pub(crate) struct UpstreamAttempt<'r> {
    pub(crate) admitted: &'r AdmittedRequest<'r>,
    /// 1 for the first one.
    pub(crate) number: u32,
    pub(crate) permit: InFlightPermit,
    pub(crate) started: Instant,
}

/// What forwarding has done, for the request record.
pub(crate) struct ForwardingRecord {
    pub(crate) pool: Arc<UpstreamPool>,
    pub(crate) attempts: u32,
    /// The address and the beginning of the last attempt; `None` if there was no address for it.
    pub(crate) last: Option<(Arc<Endpoint>, Instant)>,
    /// Microseconds from the beginning of the attempt to the response head.
    pub(crate) latency_us: Option<u64>,
    /// The problem code of an upstream's error response, if it is known.
    pub(crate) upstream_code: Option<Code>,
    pub(crate) encoder: Option<Box<BodyEncoder>>,
}

/// A count in a gauge, until it is dropped.
pub(crate) struct GaugeGuard(IntGauge);

impl GaugeGuard {
    pub(crate) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl RequestContext {
    pub(crate) fn new(
        config: Arc<RuntimeConfig>,
        id: Uuid,
        now: Timestamp,
        in_flight: GaugeGuard,
    ) -> Self {
        Self {
            request: ReceivedRequest {
                config,
                started: Instant::now(),
                start_time: now,
                id,
                trace: TraceContext::default(),
                client_address: None,
                is_client_known: true,
                client_key: 0,
                forwarded_host: None,
                is_tls: false,
                has_canonical_target: false,
                route: None,
                caller: None,
                reported: None,
                _in_flight: in_flight,
            },
            forwarding: None,
            error_code: None,
            failure: None,
            client_aborted: false,
        }
    }

    /// Returns the upstream, and the address and the beginning of the last attempt, if there was one.
    pub(crate) fn last_attempt(&self) -> Option<(&UpstreamPool, &Endpoint, Instant)> {
        let forwarding = self.forwarding.as_ref()?;
        let (endpoint, started) = forwarding.last.as_ref()?;
        Some((&forwarding.pool, endpoint, *started))
    }
}

impl ReceivedRequest {
    /// Returns the key of the client in shares of common resources; `None` if the address is that
    /// of a trusted proxy, which stands for many clients.
    pub(crate) fn client_share(&self) -> Option<u64> {
        let limits = &self.config.limits;
        let address = self.client_address?;
        (!limits.http.is_trusted_proxy(address)).then_some(self.client_key)
    }

    /// Returns the client address for decisions; `None` if it is not known.
    pub(crate) fn known_address(&self) -> Option<IpAddr> {
        self.client_address.filter(|_| self.is_client_known)
    }

    pub(crate) fn matched_route(&self) -> Option<&Route> {
        self.route
            .map(|index| &self.config.route_table.routes[index])
    }

    /// Returns the name of the matching route, or that of none in metrics and events.
    pub(crate) fn route_name(&self) -> &str {
        self.matched_route()
            .map_or(NO_ROUTE, |route| route.name.as_str())
    }
}

impl<'r> AdmittedRequest<'r> {
    pub(crate) fn new(
        state: &'r GatewayState,
        request: &'r ReceivedRequest,
        admission: Admission,
    ) -> Self {
        let route = &request.config.route_table.routes[admission.route];
        Self {
            state,
            request,
            route,
            pool: request.config.pool(route, state.ids.random_u64()),
            admission,
        }
    }

    pub(crate) fn read_timeout(&self) -> Duration {
        let own = self.route.settings.read_timeout;
        own.unwrap_or(self.pool.config.read_timeout)
    }
}

impl UpstreamAttempt<'_> {
    /// Returns whether another attempt may be made, after this one was sent or not.
    pub(crate) fn may_retry(&self, was_sent: bool) -> bool {
        let own = self.route.settings.retries;
        let limit = own.unwrap_or(self.pool.config.retries);
        let share = self.client_share();
        self.pool.may_retry(share, self.number, limit, was_sent)
    }
}

impl Deref for AdmittedRequest<'_> {
    type Target = ReceivedRequest;

    fn deref(&self) -> &ReceivedRequest {
        self.request
    }
}

impl<'r> Deref for UpstreamAttempt<'r> {
    type Target = AdmittedRequest<'r>;

    fn deref(&self) -> &AdmittedRequest<'r> {
        self.admitted
    }
}

impl ForwardingRecord {
    pub(crate) fn new(pool: &Arc<UpstreamPool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            attempts: 0,
            last: None,
            latency_us: None,
            upstream_code: None,
            encoder: None,
        }
    }
}
